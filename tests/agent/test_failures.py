"""Ranks' ends are seen in order and with their status, and are written down at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import kernel_tells_of_collected_processes, wait_until
from traceml.agent.failures import Deaths, FailureWatch
from traceml.model.failure import Death
from traceml.store.failures import read_seen


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])


def next_death(deaths: Deaths, ranks: dict[int, int]) -> Death:
    (found,) = wait_until(lambda: deaths.poll(ranks, 5.0), "a process is seen to end")
    return found


def test_an_end_is_seen_once_with_its_signal() -> None:
    """A process that its parent has not yet asked about says how it ended."""
    with sleeper() as process:
        deaths = Deaths()
        deaths.follow(process.pid)
        deaths.follow(process.pid)
        assert deaths.poll({process.pid: 3}, 5.0) == []
        os.kill(process.pid, signal.SIGKILL)
        found = next_death(deaths, {process.pid: 3})
        assert found == Death(rank=3, pid=process.pid, unix_s=5.0, status=137)
        assert deaths.poll({process.pid: 3}, 6.0) == []
        assert deaths.wakers() == []


@pytest.mark.skipif(not kernel_tells_of_collected_processes(), reason="needs Linux 6.15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_that_the_parent_has_collected_is_still_told(number: signal.Signals) -> None:
    """As behind `timeout` or a shell, who wait for the rank themselves."""
    with sleeper() as process:
        deaths = Deaths()
        deaths.follow(process.pid)
        os.kill(process.pid, number)
        process.wait()
        assert next_death(deaths, {}).status == 128 + number


def test_a_process_that_is_gone_already_is_seen_without_a_status() -> None:
    with sleeper() as process:
        process.kill()
    deaths = Deaths()
    deaths.follow(process.pid)
    assert next_death(deaths, {}).status is None


def test_where_the_system_wakes_nobody_we_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with sleeper() as process:
        deaths = Deaths()
        deaths.follow(process.pid)
        assert deaths.wakers() == []
        assert deaths.poll({}, 5.0) == []
        process.kill()
        assert next_death(deaths, {}).pid == process.pid


def test_ends_are_on_disk_in_order_and_survive_the_agent(tmp_path: Path) -> None:
    with sleeper() as first, sleeper() as second:
        watch = FailureWatch(tmp_path)
        for process in (first, second):
            watch.follow(process.pid)
        ranks = {first.pid: 0, second.pid: 1}
        for process in (second, first):
            process.kill()
            watch = _seen_on_disk(tmp_path, watch, ranks, process.pid)
            watch.follow(first.pid)
    assert [death.rank for death in read_seen(tmp_path).deaths] == [1, 0]


def _seen_on_disk(folder: Path, watch: FailureWatch, ranks: dict[int, int], pid: int) -> Any:
    """Wait until a process's end is on disk; the watch of the agent that comes after."""

    def is_there() -> bool:
        watch.look_for_deaths(ranks, 5.0)
        return pid in [death.pid for death in read_seen(folder).deaths]

    wait_until(is_there, "its end is on disk")
    return FailureWatch(folder)
