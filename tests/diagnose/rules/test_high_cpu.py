"""High CPU is told as context: how busy the machine was, and by whom."""

from __future__ import annotations

import pytest

from system_facts import always, on_host
from traceml.diagnose.rules import high_cpu
from traceml.facts.facts import Facts
from traceml.facts.sensors import HostFacts, ProcessFacts
from traceml.model.finding import Kind, Section, Severity


def busy(share: float, ours: float | None = 3.0, workers: float | None = None) -> Facts:
    process = ProcessFacts(
        0,
        10,
        **({} if ours is None else {"cpu_cores": always(ours)}),
        **({} if workers is None else {"workers_cpu_cores": always(workers)}),
    )
    return on_host(HostFacts(cpu_share=always(share), cores=4), process)


@pytest.mark.parametrize(
    ("facts", "action"),
    [
        pytest.param(busy(0.81), "Nothing by itself", id="by the run, just above the line"),
        pytest.param(busy(1.0, 1.0), "about 3.0 cores", id="by neighbours"),
        pytest.param(busy(1.0, 1.0, 2.5), "Nothing by itself", id="by the run's workers"),
        pytest.param(busy(1.0, None), "Nothing by itself", id="by nobody knows whom"),
    ],
)
def test_must_fire(facts: Facts, action: str) -> None:
    finding = high_cpu.check(facts)
    assert finding is not None
    assert (finding.kind, finding.section) == (Kind.HIGH_CPU, Section.SYSTEM)
    assert finding.severity is Severity.INFO
    assert action in finding.action


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(busy(0.79), id="just below the line"),
        pytest.param(on_host(HostFacts()), id="not measured"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert high_cpu.check(facts) is None
