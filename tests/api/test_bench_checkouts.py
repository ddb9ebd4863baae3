"""The temporary worktrees of a benchmark, and how a run in one of them is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from processes import wait_until
from repositories import commit, git, make_repository
from traceml.api import bench, bench_checkouts
from traceml.api.bench import run_until
from traceml.api.bench_checkouts import Repository
from traceml.model.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with two commits: only the second has a folder `deep` and a folder `src`."""
    place = tmp_path / "repository"
    make_repository(place, train="first = True\n")
    git(place, "tag", "first")
    for name in ("deep", "src"):
        (place / name).mkdir()
        (place / name / "kept.txt").write_text("kept\n")
    commit(place, train="first = False\n")
    return place


def test_a_commit_is_checked_out_and_removed_again(folder: Path):
    (folder / "train.py").write_text("uncommitted = True\n")
    repository = Repository(folder)
    assert repository.changed_files() == 1
    with repository.checked_out("first") as first, repository.checked_out("HEAD") as head:
        assert (first.folder / "train.py").read_text() == "first = True\n"
        assert (head.folder / "train.py").read_text() == "first = False\n"
        assert first.label == f"first ({git(folder, 'rev-parse', 'first')[:7]})"
        assert (first.import_path, head.import_path) == (first.root, head.folder / "src")
    assert not first.folder.exists() and not head.folder.parent.exists()
    assert len(git(folder, "worktree", "list").splitlines()) == 1
    assert (folder / "train.py").read_text() == "uncommitted = True\n"


def test_the_command_runs_in_the_counterpart_of_the_current_folder(folder: Path):
    repository = Repository(folder / "deep")
    with repository.checked_out("HEAD") as found:
        assert found.root is not None and found.folder == found.root / "deep"
    with pytest.raises(UsageError, match="has no folder deep"), repository.checked_out("first"):
        pass
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def test_another_worktree_whose_folder_is_absent_just_now_stays_known(folder: Path, tmp_path: Path):
    own = tmp_path / "own"
    git(folder, "worktree", "add", "--quiet", "--detach", str(own))
    own.rename(tmp_path / "unmounted")
    with Repository(folder).checked_out("HEAD"):
        pass
    (tmp_path / "unmounted").rename(own)
    assert git(own, "rev-parse", "HEAD") == git(folder, "rev-parse", "HEAD")


def test_hooks_of_the_repository_do_not_run(folder: Path, tmp_path: Path):
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    hook.chmod(0o755)
    with Repository(folder).checked_out("first"):
        pass
    assert not (tmp_path / "hook-ran").exists()


def test_the_working_tree_itself_is_measured_as_it_is(folder: Path):
    with Repository(folder).checked_out("WORKTREE") as found:
        assert (found.folder, found.commit, found.import_path) == (folder, None, None)
    assert folder.is_dir()


def test_a_run_that_exceeds_the_time_is_ended(tmp_path: Path):
    endless = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (tmp_path / "output").open("wb") as output, pytest.raises(subprocess.TimeoutExpired):
        run_until(endless, tmp_path, os.environ, output.fileno(), timeout_s=0.01)
    left = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it ends just now
            left.append(child.cmdline())
    assert endless not in left


DEAF = """\
import os, pathlib, signal, subprocess, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("pids.part").write_text(f"{os.getpid()} {worker.pid}")
pathlib.Path("pids.part").rename("pids")
time.sleep(600)
"""
"""A training that no Ctrl-C ends, with a worker in a session of its own, as a rank of torchrun."""


def test_of_a_run_that_does_not_end_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(bench, "CLOSING_TIMEOUT_S", 0.01)
    command = bench._traced([sys.executable, "-c", DEAF], tmp_path / "logs", "deaf")
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True
        )
        wait_until((tmp_path / "pids").exists, "it trains")
        bench._end(process)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(map(_runs, pids)), "the training and its worker have ended")
    wait_until((tmp_path / "logs/deaf/final_summary.json").exists, "the agent has ended the run")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_repository_of_somebody_else_is_measured_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """As in a job in a container, whose checkout another user made."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with Repository(folder).checked_out("first") as first:
        assert (first.folder / "train.py").read_text() == "first = True\n"


def test_the_reason_is_what_git_calls_fatal_and_not_its_advice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setattr(bench_checkouts, "_OPTIONS", ())
    with pytest.raises(UsageError, match=r"\(fatal: detected dubious ownership"):
        Repository(folder)
