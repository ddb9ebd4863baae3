"""What changed in the code is asked of the repositories at hand, and of what the runs kept."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from repositories import commit, git, make_repository
from traceml.api import code_diff as diffs
from traceml.api.code_diff import Version, code_diff, code_stat, differing
from traceml.model.lineage import Changes, Code


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder in no repository."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path / "project"


def _run_of(found: str | None, folder: Path = Path("/none"), **known: object) -> Version:
    return Version(Code(commit=found, **{"dirty": False, **known}), folder)  # type: ignore[arg-type]


@pytest.fixture
def runs(project: Path) -> tuple[Version, Version]:
    first = make_repository(project, train="a\nb\n")
    second = commit(project, train="a\nc\n", other="x\n")
    return _run_of(first), _run_of(second)


def test_the_change_is_shown_as_a_stat_and_in_full(
    project: Path, runs: tuple[Version, Version]
) -> None:
    stat = code_stat(*runs, project)
    assert stat is not None
    assert "train.py | 2 +-" in stat and "2 files changed, 2 insertions(+), 1 deletion(-)" in stat
    full = code_diff(*runs, project)
    assert full is not None
    assert "-b\n+c\n" in full and "+x" in full


def test_one_commit_has_no_change(project: Path, runs: tuple[Version, Version]) -> None:
    assert code_stat(runs[0], runs[0], project) == code_diff(runs[0], runs[0], project) == ""


def test_a_long_change_says_that_there_is_more(
    project: Path, runs: tuple[Version, Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffs, "MAX_BYTES", 64)
    full = code_diff(*runs, project)
    assert full is not None and full.endswith("only the first 64 B are shown")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Version(None, Path("/none")), id="no code"),
        pytest.param(_run_of(None), id="no commit"),
        pytest.param(_run_of("b" * 40), id="a commit of another repository"),
        pytest.param(_run_of("--output=/tmp/pwned"), id="no commit at all"),
        pytest.param(_run_of("main"), id="the name of a branch"),
    ],
)
def test_what_is_not_known_here_is_not_shown(
    project: Path, runs: tuple[Version, Version], other: Version
) -> None:
    assert code_stat(runs[0], other, project) is None
    assert code_diff(other, runs[0], project) is None


def test_the_recorded_repository_is_asked_too(
    project: Path, elsewhere: Path, runs: tuple[Version, Version]
) -> None:
    a, b = runs
    assert code_stat(a, b, elsewhere) is None
    there = _run_of(b.commit, repository=str(project))
    for pair in ((a, there), (there, a)):
        stat = code_stat(*pair, elsewhere)
        assert stat is not None and "train.py" in stat


def _dirty(folder: Path, patch: str, found: str = "a" * 40) -> Version:
    folder.mkdir()
    (folder / "diff.patch").write_text(patch)
    return _run_of(found, folder, dirty=True, changes=Changes(patch))


@pytest.mark.slow
def test_what_was_not_committed_is_told_apart(tmp_path: Path, elsewhere: Path) -> None:
    a, b = _dirty(tmp_path / "first", "+lr = 1\n"), _dirty(tmp_path / "second", "+lr = 2\n")
    stat, full = code_stat(a, b, elsewhere), code_diff(a, b, elsewhere)
    assert stat is not None and full is not None
    assert stat.startswith("not committed:\n")
    assert "first => second" in stat and "1 insertion(+), 1 deletion(-)" in stat
    assert "-+lr = 1\n++lr = 2\n" in full and "second/diff.patch" in full
    clean = _run_of("a" * 40, tmp_path)
    against_clean = code_diff(clean, b, elsewhere)
    assert against_clean is not None and "++lr = 2\n" in against_clean
    assert code_diff(b, b, elsewhere) == ""


def test_commits_and_what_was_not_committed_are_both_told(
    tmp_path: Path, project: Path, runs: tuple[Version, Version]
) -> None:
    assert runs[1].commit is not None
    stat = code_stat(runs[0], _dirty(tmp_path / "run", "+y\n", runs[1].commit), project)
    assert stat is not None
    assert stat.index("train.py | 2 +-") < stat.index("not committed:") < stat.index("diff.patch")


def test_a_patch_that_is_not_kept_is_not_taken_for_none(tmp_path: Path) -> None:
    a = _dirty(tmp_path / "run", "+y\n")
    (tmp_path / "run" / "diff.patch").unlink()
    assert code_diff(a, _run_of("a" * 40), tmp_path) is None


def test_of_groups_two_that_differ_are_shown() -> None:
    a, b, c = (_run_of(letter * 40) for letter in "abc")
    assert differing([a, a], [a, c, b]) == (a, c)
    assert differing([a], [a]) == (a, a)


def test_a_recorded_repository_runs_nothing(
    project: Path, runs: tuple[Version, Version], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own settings say how to fetch what it lacks, and allow it; with a git before 2.45."""
    command, mark = elsewhere / "fetch", elsewhere / "was-run"
    _write_script(command, f"touch {mark}")
    for setting, value in (
        ("core.repositoryformatversion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::{command}"),
        ("protocol.ext.allow", "always"),
    ):
        git(project, "config", setting, value)
    blob = git(project, "rev-parse", "HEAD:other.py")
    (project / ".git/objects" / blob[:2] / blob[2:]).unlink()
    older = elsewhere / "bin"
    older.mkdir()
    _write_script(older / "git", f'unset GIT_NO_LAZY_FETCH\nexec {shutil.which("git")} "$@"')
    monkeypatch.setenv("PATH", f"{older}:{os.environ['PATH']}")
    assert code_diff(*runs, project) is None
    assert not mark.exists()


def _write_script(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
