"""The agent looks at a training thread from outside: rarely, and never for nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from processes import PATIENCE_S, wait_until
from traceml.agent import stack_sampler
from traceml.agent.stack_sampler import (
    ANSWER_S,
    BURST_S,
    DEEP_BURST_S,
    DEEP_RATE_HZ,
    DEEP_SHARE_OF_CORE,
    FIRST_BURSTS,
    MAX_IN_VAIN,
    MAX_REFUSALS,
    MAX_SIGNALS,
    MIN_RATE_HZ,
    StackSampler,
    Target,
    children_of,
    find_py_spy,
)
from traceml.model.sample import StackBurst

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the files of /proc are Linux's")

NOBODY = 2**22 + 1
"""No process has this number."""

SCRIPT = """\
import sys, threading, time
from pathlib import Path
from traceml.trace.stacks import answer_with_stacks

kept = answer_with_stacks(Path("rank.stacks"))
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

def get_batch():
    time.sleep(0.2)

print("ready", flush=True)
while True:
    get_batch()
"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for py-spy may take as long as a busy machine lets it."""
    monkeypatch.setattr(stack_sampler, "TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(stack_sampler, "LAST_S", PATIENCE_S)


@contextmanager
def training(folder: Path) -> Iterator[Target]:
    """A process that spends its time in `get_batch`, with another thread beside it."""
    (folder / "train.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=folder, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield Target(3, process.pid, folder / "rank.stacks")
    finally:
        process.kill()
        process.communicate()


def next_burst(sampler: StackSampler, target: Target) -> StackBurst:
    return wait_until(lambda: sampler.poll([target]), "a burst has ended")


def next_answer(sampler: StackSampler, target: Target, clock: Clock) -> StackBurst:
    """The stacks that the signal asked for; the clock stands still until they are written."""
    before = target.stacks.stat().st_size

    def has_answered() -> bool:
        assert sampler.poll([target]) is None
        return target.stacks.read_bytes()[before:].endswith(b" in <module>\n")

    wait_until(has_answered, "the stacks are written")
    clock.now_s += ANSWER_S
    return next_burst(sampler, target)


def functions(burst: StackBurst) -> dict[tuple[str, str, int], int]:
    found: dict[tuple[str, str, int], int] = {}
    for sample in burst.samples:
        assert sample.user is not None
        place = (sample.user.function, sample.user.file, sample.user.line)
        found[place] = found.get(place, 0) + sample.looks
    return found


def test_the_training_threads_line_is_seen(tmp_path: Path) -> None:
    if not find_py_spy():
        pytest.skip("py-spy is not installed")
    seen: Counter[tuple[str, str, int]] = Counter()
    with training(tmp_path) as target:

        def has_ten_looks() -> bool:
            burst = next_burst(StackSampler(), target)
            assert (burst.rank, burst.pid, burst.way) == (3, target.pid, "py-spy")
            found = functions(burst)
            assert sum(found.values()) + burst.torn == burst.looks
            seen.update(found)
            return seen[("get_batch", "train.py", 9)] >= 10

        wait_until(has_ten_looks, "it has looked ten times")  # a busy machine has few a burst


def test_where_py_spy_may_not_attach_the_signal_is_asked_for_sparingly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_sampler, "SIGNAL_EVERY_S", 0.0)
    monkeypatch.setattr(stack_sampler, "MAX_SIGNALS", 3)
    refuses = program(tmp_path, "echo 'Permission denied' >&2; exit 1")
    clock = Clock()
    sampler = StackSampler(str(refuses), clock)
    with training(tmp_path) as target:
        for _ in range(3):
            burst = next_answer(sampler, target, clock)
            assert (burst.way, burst.looks) == ("signal", 1)
            assert list(functions(burst)) == [("get_batch", "train.py", 9)]
        assert sampler.poll([target]) is None
        assert sampler._burst is None  # no fourth one is asked for
    assert MAX_SIGNALS <= 20


@pytest.mark.slow
def test_a_process_that_has_gone_is_no_refusal(tmp_path: Path) -> None:
    sampler = StackSampler(str(program(tmp_path, "exit 1")))
    gone = Target(0, NOBODY, tmp_path / "none.stacks")
    sampler.poll([gone])
    wait_until(lambda: sampler.poll([]) is None and sampler._burst is None, "it has ended")
    assert sampler._py_spy


def test_looks_that_were_all_torn_are_no_refusal(tmp_path: Path) -> None:
    nothing = 'for last; do :; done; echo "[]" > "$last"; echo "Samples: 0 Errors: 50"'
    sampler = StackSampler(str(program(tmp_path, nothing)))
    with training(tmp_path) as target:
        for _ in range(MAX_REFUSALS + 1):
            sampler.poll([target])
            wait_until(lambda: sampler.poll([]) is None and sampler._burst is None, "it has ended")
    assert sampler._py_spy


def test_a_trace_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the stand-in notes its calls
    program = recording(tmp_path)
    with training(tmp_path) as target:
        assert next_burst(StackSampler(str(program)), target).samples
        size = (tmp_path / "trace.json").stat().st_size
        monkeypatch.setattr(stack_sampler, "MAX_TRACE_BYTES", size - 1)
        sampler = StackSampler(str(program))
        assert sampler.poll([target]) is None
        wait_until(lambda: sampler.poll([]) is None and sampler._burst is None, "it has ended")
        assert sampler._py_spy, "no refusal"


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def program(folder: Path, script: str) -> Path:
    """A stand-in for py-spy."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def recording(folder: Path) -> Path:
    """One that has seen `work` for half a second; the last of its arguments is where it writes."""
    frame = {"name": "work", "tid": 1, "args": {"filename": "/job/train.py", "line": 4}}
    events = [{**frame, "ph": "B", "ts": 0}, {**frame, "ph": "E", "ts": 500_000}]
    (folder / "trace.json").write_text(json.dumps(events))
    return program(
        folder,
        'for last; do :; done\necho "$0" >> calls\n'
        f'cat {folder / "trace.json"} > "$last"; echo "Samples: 12 Errors: 3"',
    )


@pytest.mark.slow
def test_after_the_first_bursts_the_pauses_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clock = Clock()
    sampler = StackSampler(str(recording(tmp_path)), clock)
    target = Target(0, 1, tmp_path / "none.stacks")
    for number in range(FIRST_BURSTS):
        burst = next_burst(sampler, target)
        assert (burst.looks, burst.torn) == (15, 3), number
    gaps = []
    for _ in range(3):
        began_s = clock.now_s
        assert sampler.poll([target]) is None
        while sampler._burst is None:
            clock.now_s += 0.05
            assert sampler.poll([target]) is None
        gaps.append(clock.now_s - began_s)
        assert next_burst(sampler, target).samples
    assert 0 < gaps[0] < gaps[1] < gaps[2]
    assert BURST_S <= 3.0


@pytest.mark.slow
def test_the_deep_profile_always_looks_at_a_rate_that_it_can_afford(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in takes a tenth of a second for its looks, so that they are expensive."""
    monkeypatch.chdir(tmp_path)
    spends = 'echo "$@" >> said\npython3 -c "import time\nwhile time.process_time() < 0.1: pass"\n'
    writes = recording(tmp_path).read_text().removeprefix("#!/bin/sh\n")
    clock = Clock()
    sampler = StackSampler(str(program(tmp_path, spends + writes)), clock, is_deep=True)
    target = Target(0, NOBODY, tmp_path / "none.stacks")
    for _ in range(FIRST_BURSTS):
        next_burst(sampler, target)
    assert sampler.poll([target]) is None and sampler._burst is None  # it waits now
    clock.now_s += 0.1 * FIRST_BURSTS / DEEP_SHARE_OF_CORE - 1
    assert sampler.poll([target]) is None and sampler._burst is None
    clock.now_s += 3600
    next_burst(sampler, target)
    said = (tmp_path / "said").read_text().splitlines()
    rates = [float(line.split("--rate ")[1].split()[0]) for line in said]
    assert rates == [*[DEEP_RATE_HZ] * FIRST_BURSTS, MIN_RATE_HZ]


@pytest.mark.slow
def test_where_bursts_were_dropped_fewer_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clock = Clock()
    sampler = StackSampler(str(recording(tmp_path)), clock, is_deep=True)
    target = Target(0, NOBODY, tmp_path / "none.stacks")
    for _ in range(FIRST_BURSTS):
        next_burst(sampler, target)
    clock.now_s += 3600  # all is paid for
    wait_until(lambda: sampler.poll([target], 4), "a burst has ended")
    clock.now_s += 3 * DEEP_BURST_S - 1
    assert sampler.poll([target], 4) is None and sampler._burst is None
    clock.now_s += 2
    wait_until(lambda: sampler.poll([target], 4), "a burst has ended")


@pytest.mark.slow
def test_a_child_that_is_no_worker_is_looked_at_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sampler = StackSampler(str(recording(tmp_path)), Clock(), is_deep=True)
    with training(tmp_path) as child:
        rank = Target(0, os.getpid(), tmp_path / "none.stacks")
        assert child.pid in children_of(rank.pid)
        next_burst(sampler, rank)  # of itself: the next one is a worker's turn
        turn = Target(0, rank.pid, rank.stacks, worker=child.pid)
        for _ in range(MAX_IN_VAIN):
            sampler._sampled[child.pid] = -1  # of all children it is the one to be looked at next
            assert sampler._worker_of(rank) == turn
            sampler._begin(turn)
            wait_until(lambda: sampler.poll([]) is None and sampler._burst is None, "it has ended")
            sampler._bursts = 1
        sampler._sampled[child.pid] = -1
        again = sampler._worker_of(rank)
        assert again is None or again.worker != child.pid


def test_a_worker_that_may_not_be_looked_at_is_left_alone(tmp_path: Path) -> None:
    """Under Yama a forked worker has not allowed the agent to look, its parent has."""
    sampler = StackSampler(str(program(tmp_path, "exit 1")), is_deep=True)
    with training(tmp_path) as target:
        worker = Target(3, target.pid, target.stacks, worker=target.pid)
        for _ in range(MAX_REFUSALS):
            sampler._begin(worker)
            wait_until(lambda: sampler.poll([]) is None and sampler._burst is None, "it has ended")
        assert sampler._py_spy
        assert sampler._worker_of(target) is None


@pytest.mark.slow
def test_a_burst_under_way_at_the_end_of_the_run_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-spy writes down what it has when it is interrupted."""
    monkeypatch.chdir(tmp_path)
    writes = recording(tmp_path).read_text().removeprefix("#!/bin/sh\n")
    interrupted = f"write() {{\n{writes}\n}}\ntrap 'write \"$@\"; exit 0' INT\ntouch ready\n"
    sampler = StackSampler(str(program(tmp_path, f"{interrupted}while :; do sleep 0.01; done")))
    assert sampler.poll([Target(0, 1, tmp_path / "none.stacks")]) is None
    wait_until((tmp_path / "ready").exists, "it is at work")
    burst = sampler.finish()
    assert burst is not None
    assert burst.looks == 15
    assert sampler.finish() is None


def test_nobody_is_looked_at_while_nothing_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sampler = StackSampler(str(recording(tmp_path)), Clock())
    assert sampler.poll([]) is None
    assert sampler._burst is None
    assert not (tmp_path / "calls").exists()


@pytest.mark.slow
def test_ranks_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sampler = StackSampler(str(recording(tmp_path)), Clock())
    both = [Target(rank, 1 + rank, tmp_path / "none.stacks") for rank in (0, 1)]
    seen = [
        wait_until(lambda: sampler.poll(both), "a burst has ended").rank
        for _ in range(FIRST_BURSTS)
    ]
    assert seen[:2] == [0, 1]
