"""Runs whose memory moves as a test says, step by step or second by second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from factories import GIB, STARTED_UNIX_S, make_run, map_steps
from traceml.model import record_layout
from traceml.model.sample import HostSample, ProcessSample, Sample
from traceml.store.records import RunRecords

MIB = 1 << 20
STEPS = 300

Curve = Callable[[npt.NDArray[np.float64], int], npt.NDArray[np.float64]]
"""Step numbers from 0 and the rank → MiB; NaN where nothing was read."""


def with_steps_memory(
    field: str, curve: Curve, ranks: int = 1, gpu: bool = False, **run: Any
) -> RunRecords:
    """Each step reads its rank's memory: `allocated_bytes` or `rss_bytes`."""

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        mib = curve(np.arange(len(steps), dtype=np.float64), rank)
        steps[field] = np.where(np.isnan(mib), record_layout.NOT_MEASURED, np.nan_to_num(mib) * MIB)

    made = make_run(**{"ranks": ranks, "steps": STEPS, "gpu": gpu, "sampled_s": 3, **run})
    return map_steps(made, change)


def with_sampled_memory(
    curve: Curve, *, of_workers: bool = True, ranks: int = 1, seconds: int = 30, workers: int = 2
) -> RunRecords:
    """Each second reads the memory of a rank's workers, or of its own process."""
    at = np.arange(seconds, dtype=np.float64)
    mib = [curve(at, rank) for rank in range(ranks)]

    def process(rank: int, second: int) -> ProcessSample:
        held = int(mib[rank][second] * MIB)
        return ProcessSample(
            rank,
            1000 + rank,
            rss_bytes=GIB if of_workers else held,
            workers=workers,
            workers_rss_bytes=held if of_workers else GIB,
        )

    host = HostSample(ram_used_bytes=8 * GIB, ram_total_bytes=32 * GIB)
    samples = tuple(
        Sample(STARTED_UNIX_S + second, host, tuple(process(rank, second) for rank in range(ranks)))
        for second in range(seconds)
    )
    # Steps of 0.1 s, so that they last as long as the samples.
    run = make_run(ranks, seconds * 10, forward_ms=63, backward_ms=30, noise=0)
    return replace(run, samples=samples)
