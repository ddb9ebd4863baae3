"""The version of the code is found in real repositories, and whatever is missing is unknown."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from processes import wait_until
from repositories import commit, git, make_repository
from traceml.agent import code
from traceml.agent.code import look_at_code
from traceml.agent.processes import is_alive, process_of
from traceml.model.lineage import ChangedFile, Code

pytestmark = pytest.mark.slow  # all of them ask git


def _look(folder: Path, left_s: float = 60.0) -> tuple[Code | None, str]:
    return look_at_code(folder, folder / "logs", lambda: left_s)


def _found(folder: Path) -> Code:
    found, _ = _look(folder)
    assert found is not None
    return found


def test_a_clean_repository(tmp_path: Path) -> None:
    head = make_repository(tmp_path, train="1")
    (tmp_path / "inner").mkdir()
    found, diff = _look(tmp_path / "inner")
    assert found == Code(
        repository=str(tmp_path), commit=head, branch="main", dirty=False, untracked=()
    )
    assert diff == ""


def test_what_is_not_committed_is_kept_and_what_is_untracked_is_named(tmp_path: Path) -> None:
    make_repository(tmp_path, train="a\nb\n", other="x\n")
    (tmp_path / "train.py").write_text("a\nc\nd\n")
    (tmp_path / "other.py").write_text("y\n")
    git(tmp_path, "add", "other.py")  # what is staged is not committed either
    (tmp_path / "new.py").write_text("secret text")
    (tmp_path / "image.png").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.yaml").touch()
    found, diff = _look(tmp_path)
    assert found is not None and found.changes is not None
    assert found.dirty
    assert found.untracked == ("new.py",)
    assert found.changes.files == (ChangedFile("other.py", 1, 1), ChangedFile("train.py", 2, 1))
    assert (found.changes.file_count, found.changes.added, found.changes.removed) == (2, 3, 2)
    assert "+d" in diff and "secret text" not in diff
    assert found.changes.sha256 == hashlib.sha256(diff.encode()).hexdigest()
    assert not found.changes.truncated and not found.changes.masked


def test_a_long_diff_is_cut(tmp_path: Path) -> None:
    make_repository(tmp_path, train="a\n")
    (tmp_path / "train.py").write_text("b\n" * code.MAX_DIFF_BYTES)
    found, diff = _look(tmp_path)
    assert found is not None and found.changes is not None
    assert found.changes.truncated
    assert len(diff) == code.MAX_DIFF_BYTES
    assert found.changes.added == code.MAX_DIFF_BYTES  # the numbers are those of all of it


def test_a_token_in_changed_code_is_not_kept(tmp_path: Path) -> None:
    make_repository(tmp_path, train="a\n")
    (tmp_path / "train.py").write_text("login('hf_" + "a" * 30 + "')\nurl = 'http://me:pw@host'\n")
    found, diff = _look(tmp_path)
    assert found is not None and found.changes is not None
    assert found.changes.masked
    assert "+login('***')" in diff and "+url = 'http://***@host'" in diff


def test_a_binary_file_has_no_lines(tmp_path: Path) -> None:
    make_repository(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\0\1")
    commit(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\0\2")
    changes = _found(tmp_path).changes
    assert changes is not None and changes.files == (ChangedFile("weights.bin"),)


def test_a_remote_is_told_without_its_credentials(tmp_path: Path) -> None:
    make_repository(tmp_path)
    git(tmp_path, "remote", "add", "fork", "git@host:fork.git")
    assert _found(tmp_path).remote == "git@host:fork.git"
    git(tmp_path, "remote", "add", "origin", "https://me:secret@host/own.git")
    assert _found(tmp_path).remote == "https://host/own.git"


def test_a_commit_without_a_branch(tmp_path: Path) -> None:
    head = make_repository(tmp_path)
    git(tmp_path, "checkout", "--quiet", "--detach")
    found = _found(tmp_path)
    assert (found.commit, found.branch) == (head, None)


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    (tmp_path / "train.py").touch()
    found = _found(tmp_path)
    assert (found.commit, found.branch, found.dirty) == (None, "main", None)
    assert found.untracked == ("train.py",)


def test_no_repository(tmp_path: Path) -> None:
    assert _look(tmp_path) == (None, "")
    assert _look(tmp_path / "not there") == (None, "")


def test_a_damaged_repository_says_nothing(tmp_path: Path) -> None:
    make_repository(tmp_path, train="1")
    (tmp_path / ".git" / "HEAD").write_text("nonsense")
    assert _look(tmp_path) == (None, "")


def test_a_damaged_index_leaves_the_commit_known(tmp_path: Path) -> None:
    head = make_repository(tmp_path, train="1")
    (tmp_path / ".git" / "index").write_bytes(b"nonsense")
    found = _found(tmp_path)
    assert (found.commit, found.dirty, found.changes) == (head, None, None)


def test_without_an_index_nothing_is_said_of_files(tmp_path: Path) -> None:
    head = make_repository(tmp_path, train="1")
    (tmp_path / ".git" / "index").unlink()
    found = _found(tmp_path)
    assert (found.commit, found.dirty) == (head, None)


def test_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _look(tmp_path) == (None, "")


def test_a_git_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {tmp_path}/pid\nwait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    said = tmp_path / "pid"
    said.touch()
    left_s = 0.5
    while not said.read_text():  # on a busy machine it has not even begun by then
        assert _look(tmp_path, left_s=left_s) == (None, "")
        assert left_s < 60
        left_s *= 2
    started = process_of(int(said.read_text()))
    wait_until(lambda: started is None or not is_alive(started), "what it started is gone")


def test_nobody_is_asked_when_the_time_is_over(tmp_path: Path) -> None:
    make_repository(tmp_path)
    assert _look(tmp_path, left_s=0.0) == (None, "")


def test_the_users_git_never_finds_the_index_touched(tmp_path: Path) -> None:
    make_repository(tmp_path, train="1")
    os.utime(tmp_path / "train.py", (1, 1))  # git would write down that it looked
    before = (tmp_path / ".git" / "index").stat().st_mtime_ns
    _look(tmp_path)
    assert (tmp_path / ".git" / "index").stat().st_mtime_ns == before


def test_variables_that_point_elsewhere_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = make_repository(tmp_path / "own")
    make_repository(tmp_path / "other", train="1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert _found(tmp_path / "own").commit == head


def test_a_secret_of_any_form_in_changed_code_is_not_kept(tmp_path: Path) -> None:
    make_repository(tmp_path, train="a\n")
    (tmp_path / "train.py").write_text("password = 'hunter2'\nsecret = 'x9'\nlr = 'fast'\n")
    found, diff = _look(tmp_path)
    assert found is not None and found.changes is not None and found.changes.masked
    assert "+password = '***'\n+secret = '***'\n+lr = 'fast'" in diff
