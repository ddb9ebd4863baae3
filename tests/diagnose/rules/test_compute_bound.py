"""Compute bound is a remark about a healthy step, and names its largest phase."""

from typing import Any

import pytest

from factories import make_run, map_steps
from traceml.diagnose.rules import compute_bound
from traceml.facts.gather import gather
from traceml.model.finding import Severity
from traceml.model.layout import NOT_MEASURED
from traceml.model.phase import Phase
from traceml.store.records import RunRecords


@pytest.mark.parametrize(
    ("run", "largest"),
    [
        pytest.param(make_run(), Phase.BACKWARD, id="a plain step"),
        pytest.param(make_run(forward_ms=30), Phase.FORWARD, id="forward is the largest"),
        pytest.param(make_run(optimizer_ms=60), Phase.OPTIMIZER, id="the optimizer is"),
        pytest.param(make_run(optimizer_ms=None), Phase.BACKWARD, id="measured parts suffice"),
        pytest.param(make_run(rest_ms=7.5), Phase.BACKWARD, id="just above the line"),
        pytest.param(make_run(gpu=True), Phase.BACKWARD, id="on the GPU's clock"),
    ],
)
def test_must_fire(run: RunRecords, largest: Phase) -> None:
    finding = compute_bound.check(gather(run))
    assert finding is not None
    assert finding.phase is largest
    assert finding.severity is Severity.INFO
    assert largest.value in finding.claim


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(rest_ms=8), id="just below the line"),
        pytest.param(make_run(input_ms=50), id="input dominates"),
        pytest.param(make_run(backward_ms=None, rest_ms=21), id="the large part is not measured"),
        pytest.param(
            make_run(forward_ms=None, backward_ms=None, optimizer_ms=None), id="nothing measured"
        ),
        pytest.param(make_run(steps=0), id="no steps"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert compute_bound.check(gather(run)) is None


def test_the_advice_follows_from_device_and_phase() -> None:
    def advice(run: RunRecords) -> str:
        finding = compute_bound.check(gather(run))
        assert finding is not None
        return finding.action

    assert "a larger batch fits" in advice(make_run(gpu=True))
    assert "8.6%" in advice(make_run(gpu=True))
    assert "CPU" in advice(make_run())
    assert "fused" in advice(make_run(optimizer_ms=60))


def test_replays_of_cuda_graphs_are_compute_as_a_whole() -> None:
    def capture(steps: Any, rank: int) -> None:
        phases = ("forward_ns", "backward_ns", "optimizer_ns")
        steps["graph_ns"] = sum(steps[name] for name in phases)
        for name in phases:
            steps[name] = NOT_MEASURED

    finding = compute_bound.check(gather(map_steps(make_run(), capture)))
    assert finding is not None
    assert finding.phase is None
    assert "the replay of CUDA graphs" in finding.claim
    assert finding.evidence["largest_phase"] == "cuda_graph"
