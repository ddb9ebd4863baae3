"""Small kernels: always one resident, and half of the GPU without work."""

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
from factories import flag_steps, make_run
from traceml.diagnose.rules import small_kernels
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.layout import StepFlag
from traceml.model.settings import Settings


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counted(FEW_BLOCKS), id="few blocks each"),
        pytest.param(counted(counters(70.1, 35, 10, 5, 5, 5)), id="just above the line"),
    ],
)
def test_must_fire(facts: Facts) -> None:
    finding = small_kernels.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (small_kernels.KIND, Severity.INFO)
    assert finding.lost_s_per_step is None
    assert finding.evidence["gpu_samples"] == facts.gpu_use.samples


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counted(TRANSFORMER_BF16), id="a transformer in bfloat16"),
        pytest.param(counted(TRANSFORMER_FP32), id="low occupancy of busy SMs"),
        pytest.param(counted(ELEMENTWISE), id="elementwise"),
        pytest.param(counted(LARGE_MATMULS), id="large matrix products"),
        pytest.param(counted(TINY_LAYERS), id="launch-bound"),
        pytest.param(counted(counters(69, 10, 10, 5, 5, 5)), id="often without a kernel"),
        pytest.param(counted(counters(80, 41, 10, 5, 5, 5)), id="SMs just busy enough"),
        pytest.param(
            counted(
                counters(71, 20, 4, 5, 6, 8),
                run=flag_steps(make_run(gpu=True), StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0),
            ),
            id="the host launches too slowly",
        ),
        pytest.param(
            counted(FEW_BLOCKS, run=make_run(gpu=True, input_ms=30)), id="data takes the time"
        ),
        pytest.param(gather(make_run(gpu=True)), id="no counters"),
        pytest.param(
            counted(FEW_BLOCKS, run=make_run(gpu=True, steps=20)),
            id="too few samples while steps ran",
        ),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert small_kernels.check(facts) is None


def test_it_recommends_what_is_not_on() -> None:
    for settings, is_advised in ((Settings(), True), (Settings(compile_mode="default"), False)):
        finding = small_kernels.check(counted(FEW_BLOCKS, settings=settings))
        assert finding is not None
        assert ("torch.compile" in finding.action) is is_advised
        assert "larger batch" in finding.action
