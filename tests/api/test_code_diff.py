"""What changed in the code is asked of the repository at hand, where it knows both commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from repositories import commit, make_repository
from traceml.api import code_diff as diffs
from traceml.api.code_diff import code_diff, code_stat
from traceml.model.lineage import Code, Lineage
from traceml.summaries.record import Summary


def _run_of(found: str | None) -> Summary:
    return Summary(lineage=Lineage(code=Code(commit=found)))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Summary, Summary]:
    first = make_repository(tmp_path, train="a\nb\n")
    second = commit(tmp_path, train="a\nc\n", other="x\n")
    return _run_of(first), _run_of(second)


def test_the_change_is_shown_as_a_stat_and_in_full(
    tmp_path: Path, runs: tuple[Summary, Summary]
) -> None:
    stat = code_stat(*runs, tmp_path)
    assert stat is not None
    assert "train.py | 2 +-" in stat and "2 files changed, 2 insertions(+), 1 deletion(-)" in stat
    full = code_diff(*runs, tmp_path)
    assert full is not None
    assert "-b\n+c\n" in full and "+x" in full


def test_one_commit_has_no_change(tmp_path: Path, runs: tuple[Summary, Summary]) -> None:
    assert code_stat(runs[0], runs[0], tmp_path) == ""


def test_a_long_change_says_that_there_is_more(
    tmp_path: Path, runs: tuple[Summary, Summary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffs, "MOST_BYTES", 64)
    full = code_diff(*runs, tmp_path)
    assert full is not None and full.endswith("only the first 64 B are shown")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(Summary(), id="no lineage"),
        pytest.param(Summary(lineage=Lineage()), id="no code"),
        pytest.param(_run_of(None), id="no commit"),
        pytest.param(_run_of("b" * 40), id="a commit of another repository"),
        pytest.param(_run_of("--output=/tmp/pwned"), id="no commit at all"),
        pytest.param(_run_of("main"), id="the name of a branch"),
    ],
)
def test_what_is_not_known_here_is_not_shown(
    tmp_path: Path, runs: tuple[Summary, Summary], other: Summary
) -> None:
    assert code_stat(runs[0], other, tmp_path) is None
    assert code_diff(other, runs[0], tmp_path) is None


def test_without_a_repository_nothing_is_shown(
    tmp_path: Path, runs: tuple[Summary, Summary]
) -> None:
    outside = tmp_path.parent
    assert code_stat(*runs, outside) is None
