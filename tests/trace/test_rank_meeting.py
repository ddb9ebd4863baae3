"""Ranks of one machine that agree on one run."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

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
