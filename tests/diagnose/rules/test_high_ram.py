"""High RAM warns when little is left and is critical when the kernel is about to act."""

from __future__ import annotations

import pytest

from factories import GIB
from system_facts import always, on_host
from traceml.diagnose.rules import high_ram
from traceml.facts.facts import Facts
from traceml.facts.sensors import HostFacts, Level, ProcessFacts
from traceml.model.finding import Kind, Section, Severity


def full(share: float, ours: float = 0.9) -> Facts:
    used = share * 32 * GIB
    host = HostFacts(
        ram_share=Level(share / 2, share), ram_bytes=always(used), ram_total_bytes=32 * GIB
    )
    return on_host(host, ProcessFacts(0, 10, rss_bytes=always(ours * used)))


@pytest.mark.parametrize(
    ("facts", "severity", "action"),
    [
        pytest.param(full(0.81), Severity.WARNING, "kernel", id="just above the line"),
        pytest.param(full(0.975), Severity.CRITICAL, "kernel", id="about to end a process"),
        pytest.param(full(0.9, 0.1), Severity.WARNING, "not this run's", id="somebody else's"),
    ],
)
def test_must_fire(facts: Facts, severity: Severity, action: str) -> None:
    finding = high_ram.check(facts)
    assert finding is not None
    assert (finding.kind, finding.section) == (Kind.HIGH_RAM, Section.SYSTEM)
    assert finding.severity is severity
    assert action in finding.action


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(full(0.79), id="just below the line"),
        pytest.param(on_host(HostFacts()), id="not measured"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert high_ram.check(facts) is None
