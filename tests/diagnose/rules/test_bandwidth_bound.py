"""Bandwidth bound: the memory does more of its utmost than the tensor cores do."""

from __future__ import annotations

import pytest

from counted_runs import (
    ELEMENTWISE,
    FEW_BLOCKS,
    LARGE_MATMULS,
    TINY_LAYERS,
    TRANSFORMER_BF16,
    TRANSFORMER_FP32,
    counted,
    counters,
)
from factories import make_run
from traceml.diagnose.rules import bandwidth_bound
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.settings import Settings


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counted(TRANSFORMER_BF16), id="the half of a transformer that moves data"),
        pytest.param(counted(ELEMENTWISE), id="elementwise"),
        pytest.param(counted(counters(90, 80, 40, 35, 2, 35.1)), id="just above the line"),
    ],
)
def test_must_fire(facts: Facts) -> None:
    finding = bandwidth_bound.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (bandwidth_bound.KIND, Severity.INFO)
    assert finding.lost_s_per_step is None
    assert finding.evidence["gpu_samples"] == facts.gpu_use.samples


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counted(TRANSFORMER_FP32), id="float32 arithmetic"),
        pytest.param(counted(TINY_LAYERS), id="launch-bound"),
        pytest.param(counted(LARGE_MATMULS), id="large matrix products"),
        pytest.param(counted(FEW_BLOCKS), id="small kernels"),
        pytest.param(counted(counters(90, 80, 40, 10, 2, 34)), id="just below the line"),
        pytest.param(counted(counters(90, 80, 40, 45, 2, 44)), id="the tensor cores do more"),
        pytest.param(counted(counters(90, 80, 40, 51, 2, 60)), id="and very much"),
        pytest.param(counted({**ELEMENTWISE, "dram_share": None}), id="memory not counted"),
        pytest.param(
            counted(TRANSFORMER_BF16, run=make_run(gpu=True, input_ms=30)), id="data takes the time"
        ),
        pytest.param(gather(make_run(gpu=True)), id="no counters"),
        pytest.param(
            counted(TRANSFORMER_BF16, run=make_run(gpu=True, steps=20)),
            id="too few samples while steps ran",
        ),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert bandwidth_bound.check(facts) is None


def advice(settings: Settings) -> str:
    finding = bandwidth_bound.check(counted(TRANSFORMER_BF16, settings=settings))
    assert finding is not None
    return finding.action


def test_it_recommends_what_is_not_on() -> None:
    assert "torch.compile" in advice(Settings()) and "bfloat16" in advice(Settings())
    tuned = Settings(compile_mode="default", autocast_dtype="bfloat16", optimizer_can_fuse=False)
    assert advice(tuned).count(";") == 0
    assert "attention" in advice(tuned)
    unfused = tuned._replace(optimizer="AdamW", optimizer_can_fuse=True, optimizer_is_fused=False)
    assert "AdamW fused" in advice(unfused)
