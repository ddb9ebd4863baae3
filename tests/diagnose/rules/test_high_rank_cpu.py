"""The worst rank's CPU is told beside the cores that there are for it."""

from __future__ import annotations

import pytest

from system_facts import always, on_host
from traceml.diagnose.rules import high_rank_cpu
from traceml.facts.facts import Facts
from traceml.facts.sensors import HostFacts, ProcessFacts
from traceml.model.finding import Kind, Section, Severity


def ranks(*cores: tuple[float, float], of: float | None = 8.0) -> Facts:
    """Cores of each rank and of its workers."""
    processes = [
        ProcessFacts(rank, 10, cpu_cores=always(own), workers_cpu_cores=always(below))
        for rank, (own, below) in enumerate(cores)
    ]
    return on_host(HostFacts(cores=of), *processes, ranks=len(cores))


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        pytest.param(ranks((6.5, 0)), (0,), id="most of the cores"),
        pytest.param(ranks((1, 0), (1, 2.5)), (1,), id="with its workers, most of its half"),
        pytest.param(ranks((3.9, 0), (3.5, 0)), (0, 1), id="both of two"),
    ],
)
def test_must_fire(facts: Facts, named: tuple[int, ...]) -> None:
    finding = high_rank_cpu.check(facts)
    assert finding is not None
    assert (finding.kind, finding.section) == (Kind.HIGH_CPU, Section.PROCESS)
    assert (finding.severity, finding.ranks) == (Severity.INFO, named)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(ranks((6.3, 0)), id="just below the line"),
        pytest.param(ranks((7, 0), of=None), id="cores not known"),
        pytest.param(on_host(HostFacts(cores=8)), id="no process sampled"),
        pytest.param(on_host(HostFacts(cores=8), ProcessFacts(0, 1)), id="CPU not measured"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert high_rank_cpu.check(facts) is None
