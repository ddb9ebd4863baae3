"""Low and moderate utilization of the run's own GPUs, as far as they can be told."""

from __future__ import annotations

import pytest

from factories import count_gpus, make_run
from system_facts import in_use, on_gpus, on_host
from traceml.diagnose.rules import gpu_utilization
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.facts.sensors import HostFacts
from traceml.model.finding import Kind, Section, Severity


def used(*shares: float, ranks: int | None = None) -> Facts:
    return on_gpus(*map(in_use, shares), ranks=ranks)


@pytest.mark.parametrize(
    ("facts", "kind", "severity"),
    [
        pytest.param(used(0.29), Kind.LOW_GPU_UTILIZATION, Severity.WARNING, id="low"),
        pytest.param(used(0.31), Kind.MODERATE_GPU_UTILIZATION, Severity.INFO, id="moderate"),
        pytest.param(used(0.69), Kind.MODERATE_GPU_UTILIZATION, Severity.INFO, id="just moderate"),
        pytest.param(
            used(0.1, 0.2, 0.1, 0.2), Kind.LOW_GPU_UTILIZATION, Severity.WARNING, id="all of four"
        ),
        pytest.param(
            used(0.0, 0.2, 0.0, ranks=1),
            Kind.LOW_GPU_UTILIZATION,
            Severity.WARNING,
            id="even the busiest of those that may be ours",
        ),
    ],
)
def test_must_fire(facts: Facts, kind: Kind, severity: Severity) -> None:
    finding = gpu_utilization.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (kind, severity)
    assert finding.section is Section.SYSTEM


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(used(0.71), id="just above the line"),
        pytest.param(used(0.0, 0.9, 0.0, ranks=1), id="idle GPUs that are not ours"),
        pytest.param(on_gpus({}), id="not measured"),
        pytest.param(
            gather(count_gpus(make_run(steps=20, gpu=True), busy_share=0.1)),
            id="too few samples while steps ran",
        ),
        pytest.param(on_host(HostFacts(gpus=1)), id="a run on the CPU"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert gpu_utilization.check(facts) is None


def test_what_may_be_somebody_elses_is_only_a_bound() -> None:
    of_one, of_some = (gpu_utilization.check(used(0.0, 0.2, ranks=ranks)) for ranks in (2, 1))
    assert of_one is not None and of_some is not None
    assert of_one.claim == "The 2 GPUs were in use 10% of the time in which steps ran."
    assert of_some.claim == "The GPU was in use at most 20% of the time in which steps ran."
