"""One sample joins the host, the ranks and the GPUs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any, NoReturn

import pytest

from fake_nvml import FakeDriver
from processes import PYTHON, run, wait_until
from traceml.agent.gpus import Counted
from traceml.agent.sampler import Sampler, Sampling
from traceml.model.sample import HostSample, Sample


def test_sample_joins_the_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the same on a machine with GPUs
    sampler = Sampler()
    began_s = time.process_time()
    sampler.sample({5: os.getpid()}, 0.0, 1_700_000_000.0)
    end_s = time.process_time() + 0.2
    while time.process_time() < end_s:
        pass
    sample = sampler.sample({5: os.getpid()}, 1.0, 1_700_000_001.0)
    spent_s = time.process_time() - began_s
    sampler.close()

    assert sample.unix_s == 1_700_000_001.0
    assert sample.host.ram_total_bytes is not None
    assert sample.host.cpu_share is not None
    assert sample.gpus == ()
    (rank,) = sample.processes
    assert (rank.rank, rank.pid) == (5, os.getpid())
    assert rank.cpu_cores is not None
    assert 0.18 <= rank.cpu_cores <= spent_s + 0.02  # two ticks


class Slow(Sampler):
    """A driver that answers only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = Event()
        self.asked: list[dict[int, int]] = []
        self.closed = Event()

    def sample(self, ranks: Mapping[int, int], now_s: float, unix_s: float) -> Sample:
        self.asked.append(dict(ranks))
        assert self.may_answer.wait(60)
        return Sample(unix_s, HostSample())

    def close(self) -> None:
        self.closed.set()


def taken(sampling: Sampling) -> Sample:
    return wait_until(sampling.take, "the sample is there")


def test_a_slow_driver_holds_up_nobody() -> None:
    slow = Slow()
    sampling = Sampling(slow)
    sampling.begin({0: 1})
    sampling.begin({0: 2})
    assert sampling.take() is None
    slow.may_answer.set()
    assert taken(sampling).unix_s > 0
    assert slow.asked == [{0: 1}]
    sampling.begin({0: 3})
    taken(sampling)
    assert slow.asked == [{0: 1}, {0: 3}]
    sampling.close()
    assert slow.closed.wait(60)


class Broken:
    """One of the three samplers, in a state nobody thought of."""

    counted: Counted = None

    def __init__(self) -> None:
        self.read = Event()

    def sample(self, *_: object) -> NoReturn:
        raise RuntimeError("the driver answers nonsense")

    def read_counters(self) -> NoReturn:
        self.read.set()
        raise KeyError("no counters")

    def close(self) -> None:
        return


@pytest.mark.parametrize("broken", ["host", "processes", "gpus"])
def test_what_one_sampler_cannot_read_costs_nothing_of_the_others(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver().module())
    samplers: dict[str, Any] = {broken: Broken()}
    sampler = Sampler(**samplers)
    sample = sampler.sample({5: os.getpid()}, 0.0, 1_700_000_000.0)
    assert (sample.host.ram_total_bytes is None) == (broken == "host")
    assert [process.rank for process in sample.processes] == ([] if broken == "processes" else [5])
    assert len(sample.gpus) == (0 if broken == "gpus" else 2)
    assert sampler.errors.count == 1


def test_what_went_wrong_is_raised_once_and_the_samples_go_on() -> None:
    broken: Any = Broken()
    sampling = Sampling(Sampler(gpus=broken))
    assert broken.read.wait(60)  # counters are read without anybody asking for a sample
    wait_until(lambda: _raised(sampling, KeyError), "the counters' error is raised")
    for _ in range(3):
        sampling.begin({0: os.getpid()})
        assert taken(sampling).host.ram_total_bytes is not None
    assert _raised(sampling, RuntimeError)
    assert not _raised(sampling, Exception)
    sampling.close()


def _raised(sampling: Sampling, kind: type[Exception]) -> bool:
    try:
        sampling.check()
    except kind:
        return True
    return False


STUCK = """
import threading
from traceml.agent.gpus import Counted
from traceml.agent.sampler import Sampler, Sampling

class Stuck(Sampler):
    def __init__(self):
        super().__init__()
        self.asked = threading.Event()

    def read_counters(self):
        pass

    def sample(self, ranks, now_s, unix_s):
        self.asked.set()
        threading.Event().wait()

stuck = Stuck()
sampling = Sampling(stuck)
sampling.begin({0: 1})
assert stuck.asked.wait(60)
assert sampling.last({0: 1}) is None
sampling.close()
sampling.close()
print("the end")
"""


def test_a_driver_that_never_answers_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The process must end by itself: `run` waits for it."""
    done = run([PYTHON, "-c", STUCK], tmp_path)
    assert (done.status, done.stdout) == (0, "the end\n")
