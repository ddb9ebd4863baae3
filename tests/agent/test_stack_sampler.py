"""The agent looks at a training thread from outside: rarely, and never for nothing."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from processes import wait_until
from traceml.agent import stack_sampler
from traceml.agent.stack_sampler import (
    BURST_S,
    FIRST_BURSTS,
    MAX_REFUSALS,
    MAX_SIGNALS,
    StackSampler,
    Target,
    find_py_spy,
)
from traceml.model.sample import StackBurst

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the files of /proc are Linux's")

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
    with training(tmp_path) as target:
        burst = next_burst(StackSampler(), target)
    assert (burst.rank, burst.pid, burst.way) == (3, target.pid, "py-spy")
    seen = functions(burst)
    assert seen[("get_batch", "train.py", 9)] >= 10
    assert sum(seen.values()) + burst.torn == burst.looks


def test_where_py_spy_may_not_attach_the_signal_is_asked_for_sparingly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_sampler, "SIGNAL_EVERY_S", 0.0)
    monkeypatch.setattr(stack_sampler, "MAX_SIGNALS", 3)
    refuses = program(tmp_path, "echo 'Permission denied' >&2; exit 1")
    sampler = StackSampler(str(refuses))
    with training(tmp_path) as target:
        for _ in range(3):
            burst = next_burst(sampler, target)
            assert (burst.way, burst.looks) == ("signal", 1)
            assert list(functions(burst)) == [("get_batch", "train.py", 9)]
        assert sampler.poll([target]) is None
        assert sampler._burst is None  # no fourth one is asked for
    assert MAX_SIGNALS <= 20


@pytest.mark.slow
def test_a_process_that_has_gone_is_no_refusal(tmp_path: Path) -> None:
    sampler = StackSampler(str(program(tmp_path, "exit 1")))
    gone = Target(0, 2**22 + 1, tmp_path / "none.stacks")
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
        assert next_burst(sampler, target).looks == 15
    assert 0 < gaps[0] < gaps[1] < gaps[2]
    assert BURST_S <= 3.0


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
