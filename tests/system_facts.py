"""Facts of runs on machines whose sensors read what a test says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from factories import GIB, make_run
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.facts.gpu_use import GpuUse
from traceml.facts.sensors import GpuFacts, HostFacts, Level, ProcessFacts

DEVICE_BYTES = 140 * GIB


def always(value: float) -> Level:
    """A sensor that never moved."""
    return Level(value, value)


def in_use(share: float) -> dict[str, GpuUse]:
    """A GPU that was in use for this share of the time in which steps ran."""
    return {"use": GpuUse(samples=20, busy_share=share, busy_peak=share)}


def on_host(host: HostFacts, *processes: ProcessFacts, ranks: int = 1) -> Facts:
    """A run on the CPU of this host."""
    facts = gather(make_run(ranks))
    return replace(facts, host=replace(host, samples=host.samples or 10), processes=processes)


def on_gpus(*gpus: Mapping[str, Any], ranks: int | None = None, samples: int = 10) -> Facts:
    """A run on these GPUs of one machine, a rank on each unless there are fewer ranks."""
    facts = gather(make_run(len(gpus) if ranks is None else ranks, gpu=True))
    by_gpu = tuple(GpuFacts(index, "NVIDIA H200", **sensors) for index, sensors in enumerate(gpus))
    return replace(facts, host=HostFacts(samples=samples, gpus=len(gpus), by_gpu=by_gpu))


def with_peaks(peaks: Sequence[Mapping[str, Any]], gpu: bool = True) -> Facts:
    """A run whose ranks' memory peaked like this, on devices of 140 GiB or a host of 32 GiB."""
    facts = gather(make_run(len(peaks), gpu=gpu))
    return replace(
        facts,
        ranks=tuple(
            replace(rank, memory=replace(rank.memory, **peak))
            for rank, peak in zip(facts.ranks, peaks, strict=True)
        ),
    )
