"""One sample joins the host, the ranks and the GPUs."""

from __future__ import annotations

import os
import sys
import time

import pytest

from traceml.agent.sampler import Sampler


def test_sample_joins_the_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the same on a machine with GPUs
    sampler = Sampler()
    sampler.sample({5: os.getpid()}, 0.0, 1_700_000_000.0)
    end_s = time.process_time() + 0.2
    while time.process_time() < end_s:
        pass
    sample = sampler.sample({5: os.getpid()}, 1.0, 1_700_000_001.0)
    sampler.close()

    assert sample.unix_s == 1_700_000_001.0
    assert sample.host.ram_total_bytes is not None
    assert sample.host.cpu_share is not None
    assert sample.gpus == ()
    (rank,) = sample.processes
    assert (rank.rank, rank.pid) == (5, os.getpid())
    assert rank.cpu_cores is not None
    assert 0.18 <= rank.cpu_cores < 0.5
