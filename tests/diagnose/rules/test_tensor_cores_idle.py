"""Tensor cores idle: float32 arithmetic on the FP32 units, and only that."""

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
from traceml.diagnose.rules import tensor_cores_idle
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.settings import Settings


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counted(TRANSFORMER_FP32), id="a transformer in float32"),
        pytest.param(counted(counters(90, 50.1, 20, 9.9, 25.1, 10)), id="just above every line"),
    ],
)
def test_must_fire(facts: Facts) -> None:
    finding = tensor_cores_idle.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (tensor_cores_idle.KIND, Severity.INFO)
    assert finding.lost_s_per_step is None
    assert finding.evidence["gpu_samples"] == facts.gpu_use.samples


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(counted(TRANSFORMER_BF16), id="in bfloat16"),
        pytest.param(counted(ELEMENTWISE), id="elementwise"),
        pytest.param(counted(TINY_LAYERS), id="launch-bound"),
        pytest.param(counted(LARGE_MATMULS), id="tensor cores at work"),
        pytest.param(counted(FEW_BLOCKS), id="small kernels"),
        pytest.param(counted(counters(90, 51, 20, 8, 24, 10)), id="just too little FP32"),
        pytest.param(counted(counters(90, 51, 20, 10.1, 26, 10)), id="just too much tensor"),
        pytest.param(counted(counters(90, 49, 20, 8, 26, 10)), id="the SMs wait"),
        pytest.param(
            counted({**TRANSFORMER_FP32, "tensor_share": None}), id="tensor cores not counted"
        ),
        pytest.param(
            counted(TRANSFORMER_FP32, run=make_run(gpu=True, input_ms=30)), id="data takes the time"
        ),
        pytest.param(gather(make_run(gpu=True)), id="no counters"),
        pytest.param(
            counted(TRANSFORMER_FP32, run=make_run(gpu=True, steps=20)),
            id="too few samples while steps ran",
        ),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert tensor_cores_idle.check(facts) is None


def advice(settings: Settings) -> str:
    finding = tensor_cores_idle.check(counted(TRANSFORMER_FP32, settings=settings))
    assert finding is not None
    return finding.action


def test_it_recommends_what_is_not_on() -> None:
    assert "bfloat16" in advice(Settings()) and "'high'" in advice(Settings())
    plain = Settings(parameter_dtype="float32", autocast_dtype="", matmul_precision="highest")
    assert "bfloat16" in advice(plain) and "'high'" in advice(plain)
    with_tf32 = plain._replace(matmul_precision="high")
    assert "bfloat16" in advice(with_tf32) and "'high'" not in advice(with_tf32)
    under_autocast = plain._replace(autocast_dtype="bfloat16")
    assert "torch.autocast(" not in advice(under_autocast)
    assert "cast to float32" in advice(under_autocast)
