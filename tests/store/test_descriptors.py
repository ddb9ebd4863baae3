from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import traceml
from traceml.agent.failures import Deaths
from traceml.store.descriptors import wait_until_readable, wait_until_writable
from traceml.tui.keyboard import Keyboard

FIRST_UNKNOWN_TO_SELECT = 1024
Lift = Callable[[int], int]


def test_no_code_uses_what_refuses_many_open_files() -> None:
    package = Path(traceml.__file__).parent
    callers = [path for path in package.rglob("*.py") if "select.select(" in path.read_text()]
    assert callers == []


@pytest.fixture
def lift() -> Iterator[Lift]:
    """Gives a descriptor one more number, of those that `select.select` refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= 2 * FIRST_UNKNOWN_TO_SELECT:
        pytest.skip(f"at most {hard} files may be open here")
    if soft != resource.RLIM_INFINITY:
        enough = max(soft, 2 * FIRST_UNKNOWN_TO_SELECT)
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    lifted = []

    def lift(descriptor: int) -> int:
        lifted.append(_duplicate(descriptor))
        return lifted[-1]

    yield lift
    for each in lifted:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    yield ours, theirs
    for each in (ours, theirs):
        os.close(each)


def test_a_pipe_is_readable_once_something_was_written(pipe: tuple[int, int], lift: Lift) -> None:
    other = lift(pipe[0])
    assert wait_until_readable([pipe[0], other], 0) == set()
    os.write(pipe[1], b"x")
    assert wait_until_readable([pipe[0], other], 60) == {pipe[0], other}


def test_a_pipe_is_readable_at_its_end() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    assert wait_until_readable([ours], 60) == {ours}
    os.close(ours)


def test_nothing_to_wait_for_is_a_pause() -> None:
    before = time.monotonic()
    assert wait_until_readable([], 0.05) == set()
    assert time.monotonic() - before >= 0.05


def test_a_file_and_an_empty_device_are_always_readable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    for path in (tmp_path / "file", Path(os.devnull)):
        with path.open() as file:
            assert wait_until_readable([file.fileno()], 0) == {file.fileno()}


def test_a_full_pipe_is_not_writable(pipe: tuple[int, int], lift: Lift) -> None:
    other = lift(pipe[1])
    assert wait_until_writable(other, 0)
    os.set_blocking(other, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(other, bytes(4096))
    assert not wait_until_writable(other, 0)


def test_a_death_is_seen_among_many_open_files(lift: Lift, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "pidfd_open"):
        pytest.skip("there are no descriptors of processes here")
    open_process = os.pidfd_open
    monkeypatch.setattr(os, "pidfd_open", lambda pid: _duplicate(open_process(pid)))
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watch = Deaths()
    watch.follow(process.pid)
    assert watch.poll({process.pid: 3}, 0.0) == []
    process.kill()
    assert wait_until_readable(watch.wakers(), 60)
    (death,) = watch.poll({process.pid: 3}, 0.0)
    assert (death.rank, death.pid) == (3, process.pid)
    process.communicate()


def test_keys_reach_a_terminal_among_many_open_files(lift: Lift) -> None:
    ours, theirs = os.openpty()
    assert Keyboard(lift(ours)).write_line("typed")
    assert os.read(theirs, 100) == b"typed\n"
    for each in (ours, theirs):
        os.close(each)


def _duplicate(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_UNKNOWN_TO_SELECT)
