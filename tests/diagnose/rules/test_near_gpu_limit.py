"""Near the GPU's limit: nothing that a setting could win."""

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
from traceml.diagnose.rules import near_gpu_limit
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.settings import Settings


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counted(LARGE_MATMULS), id="large matrix products"),
        pytest.param(counted(ELEMENTWISE), id="elementwise"),
        pytest.param(counted(counters(99, 90, 20, 60.1, 2, 20)), id="tensor cores at the line"),
        pytest.param(counted(counters(99, 90, 20, 20, 2, 75.1)), id="memory at the line"),
    ],
)
def test_must_fire(facts: Facts) -> None:
    finding = near_gpu_limit.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (near_gpu_limit.KIND, Severity.INFO)
    assert finding.lost_s_per_step is None
    assert finding.evidence["gpu_samples"] == facts.gpu_use.samples


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counted(TRANSFORMER_BF16), id="a transformer in bfloat16"),
        pytest.param(counted(TRANSFORMER_FP32), id="float32 arithmetic"),
        pytest.param(counted(TINY_LAYERS), id="launch-bound"),
        pytest.param(counted(FEW_BLOCKS), id="small kernels"),
        pytest.param(counted(counters(99, 90, 20, 59, 2, 74)), id="just below both lines"),
        pytest.param(
            counted(ELEMENTWISE, run=make_run(gpu=True, input_ms=30)), id="data takes the time"
        ),
        pytest.param(gather(make_run(gpu=True)), id="no counters"),
        pytest.param(
            counted(ELEMENTWISE, run=make_run(gpu=True, steps=20)),
            id="too few samples while steps ran",
        ),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert near_gpu_limit.check(facts) is None


def test_it_says_which_limit() -> None:
    tensor, memory = (near_gpu_limit.check(counted(each)) for each in (LARGE_MATMULS, ELEMENTWISE))
    assert tensor is not None and memory is not None
    assert "tensor cores compute 78%" in tensor.claim and "arithmetic" in tensor.action
    assert "83% of its bandwidth" in memory.claim and "fewer bytes" in memory.action
    compiled = counted(ELEMENTWISE, settings=Settings(compile_mode="default"))
    again = near_gpu_limit.check(compiled)
    assert again is not None and "torch.compile" not in again.action
