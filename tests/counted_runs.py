"""Runs whose GPU counters read what a test says; four of the loops as an H200 ran them."""

from __future__ import annotations

from dataclasses import replace

from factories import count_gpus, make_run
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.records import RunRecords

_NAMES = ("busy_share", "sm_share", "occupancy", "tensor_share", "fp32_share", "dram_share")


def counters(*percents: float) -> dict[str, float]:
    """Busy, SM, occupancy, tensor, FP32 and DRAM, in percent, as tables have them."""
    return {name: percent / 100 for name, percent in zip(_NAMES, percents, strict=True)}


TRANSFORMER_BF16 = counters(99.7, 88, 44, 32, 2, 43)
TRANSFORMER_FP32 = counters(100, 96, 18, 3.5, 62, 13)
TINY_LAYERS = counters(12, 1.9, 0.1, 0, 0.1, 0.1)
ELEMENTWISE = counters(95, 94, 80, 0, 1.5, 83)
LARGE_MATMULS = counters(99, 95, 20, 78, 3, 30)
FEW_BLOCKS = counters(97, 30, 4, 5, 6, 8)


def counted(
    shares: dict[str, float | None],
    run: RunRecords | None = None,
    settings: Settings = NOT_RECORDED,
) -> Facts:
    """The facts of a run, all compute unless another is given, whose GPU's counters read this."""
    made = make_run(gpu=True) if run is None else run
    facts = gather(count_gpus(replace(made, samples=()), **shares))
    return replace(facts, settings=settings)
