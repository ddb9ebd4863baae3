"""Ranks of one machine that agree on one run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from traceml.model.environment import AGENT_MARK, MARKS
from traceml.trace import rank_meeting
from traceml.trace.rank_meeting import RankMeeting

RUN = {"folder": "/logs/run", "ring_folder": "/dev/shm/traceml-1-00000000"}


@pytest.fixture(autouse=True)
def _own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_meeting, "_SHARED_MEMORY", tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.get(name, "0"))
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)


def meeting() -> RankMeeting:
    found = RankMeeting.of_launcher()
    assert found is not None
    return found


def test_the_first_rank_makes_the_run_and_the_others_find_it():
    first, second = meeting(), meeting()
    assert first.is_first()
    assert not second.is_first()
    found: list[object] = []
    waiting = Thread(target=lambda: found.append(second.wait_for_run(30)))
    waiting.start()
    first.tell(RUN)
    waiting.join()
    assert found == [RUN]


def test_a_first_rank_without_a_run_is_not_waited_for():
    first, second = meeting(), meeting()
    assert first.is_first()
    first.tell({"trouble": "no room"})
    assert not second.is_first()
    assert second.wait_for_run(30) is None


def test_patience_ends():
    assert meeting().is_first()
    assert meeting().wait_for_run(0.05) is None


def test_a_run_that_is_over_is_not_found():
    first = meeting()
    assert first.is_first()
    first.tell(RUN)
    first.end()
    assert meeting().is_first()


def test_ranks_that_torchrun_starts_again_find_the_run_of_those_before(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert meeting().is_first()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not meeting().is_first()


@pytest.mark.parametrize("world_size", ["1", None])
def test_a_process_that_is_alone_meets_nobody(
    monkeypatch: pytest.MonkeyPatch, world_size: str | None
):
    if world_size is None:
        monkeypatch.delenv("RANK")
    else:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    assert RankMeeting.of_launcher() is None


def test_nobody_else_can_read_where_the_run_is(tmp_path: Path):
    first = meeting()
    assert first.is_first()
    first.tell(RUN)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert str(os.getppid()) in file.name


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / MARKS).mkdir(parents=True)
    return folder


def dead_process() -> int:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def say_who_looks(folder: Path, agent: int, host: str | None = None) -> None:
    (folder / MARKS / AGENT_MARK).write_text(f"{agent} {host or socket.gethostname()}")


def test_a_rank_that_is_started_again_makes_a_new_run_where_the_agent_is_dead(run_folder: Path):
    """Whoever started it lives on, as Ray's daemon does, and a rank that was killed told nobody."""
    run = {"folder": str(run_folder), "maker": os.getpid()}
    meeting().tell(run)
    assert not meeting().is_first()  # the agent has not said who it is yet
    say_who_looks(run_folder, os.getpid())
    assert not meeting().is_first()
    assert meeting().wait_for_run(30) == run
    say_who_looks(run_folder, dead_process())
    assert meeting().wait_for_run(0.05) is None
    assert meeting().is_first()
    assert not meeting().is_first()  # one makes it, the others wait for that one
    new = {"folder": str(run_folder / "new"), "maker": os.getpid()}
    meeting().tell(new)
    assert meeting().wait_for_run(30) == new


def test_an_agent_of_another_container_is_not_taken_for_dead(run_folder: Path):
    meeting().tell({"folder": str(run_folder), "maker": os.getpid()})
    say_who_looks(run_folder, dead_process(), host="another")
    assert not meeting().is_first()


def test_a_run_whose_first_rank_was_killed_is_about_to_end(run_folder: Path):
    say_who_looks(run_folder, os.getpid())
    meeting().tell({"folder": str(run_folder), "maker": dead_process()})
    assert meeting().is_first()


def test_under_torchrun_a_run_goes_on_without_its_first_rank(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    say_who_looks(run_folder, os.getpid())
    meeting().tell({"folder": str(run_folder), "maker": dead_process()})
    assert not meeting().is_first()


MAKE_NOTHING = """\
import sys
from pathlib import Path
from traceml.trace.rank_meeting import RankMeeting
print(RankMeeting(Path(sys.argv[1])).is_first(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "another"])
def test_a_first_rank_that_was_killed_before_it_said_anything_is_not_waited_for(
    tmp_path: Path, launcher: str, monkeypatch: pytest.MonkeyPatch
):
    if launcher == "torchrun":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    path = Path(meeting().path)
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_NOTHING, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "True\n"
        assert not meeting().is_first()  # it is about to make the run
        first.kill()
    assert meeting().is_first()
    assert not meeting().is_first()
    assert [*tmp_path.iterdir()] == [path]


def test_a_damaged_file_keeps_nobody_from_a_run(tmp_path: Path):
    assert meeting().is_first()
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    assert meeting().is_first()


def test_of_many_ranks_that_find_a_dead_run_one_makes_the_next(run_folder: Path):
    meeting().tell({"folder": str(run_folder), "maker": dead_process()})
    with ThreadPoolExecutor(8) as threads:
        first = list(threads.map(lambda _: meeting().is_first(), range(8)))
    assert sum(first) == 1
