"""Four loops as an H200 ran them get the verdict a person would give, with its reason behind it."""

from __future__ import annotations

import pytest

from counted_runs import (
    ELEMENTWISE,
    TINY_LAYERS,
    TRANSFORMER_BF16,
    TRANSFORMER_FP32,
    counted,
)
from factories import flag_steps, make_run
from traceml.diagnose.engine import diagnose
from traceml.model.finding import COMPUTE_CAUSES, Kind, Section
from traceml.model.record_layout import StepFlag


@pytest.mark.parametrize(
    ("shares", "kinds"),
    [
        pytest.param(TRANSFORMER_BF16, [Kind.BANDWIDTH_BOUND], id="bfloat16"),
        pytest.param(TRANSFORMER_FP32, [Kind.TENSOR_CORES_IDLE], id="float32"),
        pytest.param(ELEMENTWISE, [Kind.BANDWIDTH_BOUND, Kind.NEAR_GPU_LIMIT], id="elementwise"),
    ],
)
def test_the_reasons_follow_what_they_explain(
    shares: dict[str, float | None], kinds: list[Kind]
) -> None:
    found = diagnose(counted(shares))
    assert found.primary.kind is Kind.COMPUTE_BOUND
    told = [finding.kind for finding in found.sections[Section.STEP_TIME]]
    assert told[: len(kinds) + 1] == [Kind.COMPUTE_BOUND, *kinds]
    compute, cause, *_ = found.sections[Section.STEP_TIME]
    assert compute.action == found.primary.action == cause.action
    assert Kind.LOW_GPU_UTILIZATION not in [f.kind for f in found.sections[Section.SYSTEM]]


def test_a_launch_bound_loop_has_none_of_them() -> None:
    dry = flag_steps(make_run(gpu=True), StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)
    found = diagnose(counted(TINY_LAYERS, run=dry))
    assert found.primary.kind is Kind.HOST_BOUND
    assert not COMPUTE_CAUSES & {finding.kind for finding in found.sections[Section.STEP_TIME]}
    (system, *_) = found.sections[Section.SYSTEM]
    assert system.kind is Kind.LOW_GPU_UTILIZATION
    assert system.claim.endswith("HOST-BOUND explains it.")
