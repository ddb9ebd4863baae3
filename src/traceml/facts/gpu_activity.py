"""What the GPU did in a mean step, and which kernels took its time, by its own records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceml.facts.robust_statistics import Values
from traceml.store.layer_records import Launches, LayerRecords


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The kernels of one name, as means over the steps that were recorded."""

    name: str
    calls: float
    time_s: float
    layer: str | None
    """The layer that launched most of them; `None` where none did, such as the optimizer."""


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """What the GPU did in a mean step, as it recorded it itself; seconds per step and rank."""

    steps: int
    busy_s: float
    """Time in which at least one kernel or copy ran."""
    kernels_per_step: float
    copies_s: float
    copies_alone_s: float | None
    """Copies and fills beside which nothing else ran; `None` in runs of older TraceMLs."""
    communication_s: float
    communication_alone_s: float
    """Communication beside which nothing else ran."""
    kernels: tuple[KernelFacts, ...]
    """The longest first."""


def gpu_activity(records: Sequence[LayerRecords]) -> GpuActivity | None:
    """Returns the means over the steps of all processes; `None` where none was recorded."""
    steps = [step for each in records for step in each.kernels]
    count = sum(step.steps for step in steps)
    if not count:
        return None

    are_apart = all(step.copies_alone_ns is not None for step in steps)

    def mean(name: str) -> float:
        return float(sum(getattr(step, name) * step.steps for step in steps)) / count

    return GpuActivity(
        steps=count,
        busy_s=mean("busy_ns") / 1e9,
        kernels_per_step=mean("kernels"),
        copies_s=mean("copies_ns") / 1e9,
        copies_alone_s=mean("copies_alone_ns") / 1e9 if are_apart else None,
        communication_s=mean("communication_ns") / 1e9,
        communication_alone_s=mean("communication_alone_ns") / 1e9,
        kernels=_kernels_by_name(records, count),
    )


def _kernels_by_name(records: Sequence[LayerRecords], count: int) -> tuple[KernelFacts, ...]:
    """Returns the kernels with equal names added up, the longest first."""
    calls, took = Counter[str](), Counter[str]()
    layers: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for each in records:
        for launches, times in _by_table(each).items():
            for name, layer, called, ns in zip(
                launches.names, launches.layers.tolist(), *times.tolist(), strict=True
            ):
                calls[name] += called
                took[name] += ns
                layers[name][each.names[layer] if layer >= 0 else None] += ns
    return tuple(
        KernelFacts(name, calls[name] / count, ns / count / 1e9, layers[name].most_common(1)[0][0])
        for name, ns in took.most_common()
        if calls[name]
    )


def _by_table(records: LayerRecords) -> dict[Launches, Values]:
    """Returns calls and nanoseconds of all steps, for each table of launches."""
    found: dict[Launches, Values] = {}
    for step in records.kernels:
        sums = found.setdefault(step.launches, np.zeros((2, len(step.launches.names))))
        sums += np.array([step.calls, step.ns]) * step.steps
    return found
