"""Uneven utilization names the GPU that waits and the one that works."""

from __future__ import annotations

import pytest

from system_facts import in_use, on_gpus
from traceml.diagnose.rules import uneven_gpu_utilization
from traceml.facts.facts import Facts
from traceml.model.finding import Kind, Severity


def used(*shares: float, ranks: int | None = None) -> Facts:
    return on_gpus(*map(in_use, shares), ranks=ranks)


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        pytest.param(used(0.9, 0.95, 0.7), Severity.INFO, id="a noticeable gap"),
        pytest.param(used(0.9, 0.95, 0.5), Severity.WARNING, id="a wide gap"),
    ],
)
def test_must_fire(facts: Facts, severity: Severity) -> None:
    finding = uneven_gpu_utilization.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.UNEVEN_GPU_UTILIZATION, severity)
    assert "GPU 2" in finding.claim
    assert "GPU 1" in finding.claim


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(used(0.9, 0.75), id="just below the line"),
        pytest.param(used(0.1), id="one GPU"),
        pytest.param(used(0.9, 0.0, ranks=1), id="the other one is not ours"),
        pytest.param(on_gpus({}, {}), id="not measured"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert uneven_gpu_utilization.check(facts) is None
