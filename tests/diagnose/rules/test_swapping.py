"""Swapping fires on pages that go to and fro, not on swap that merely lies there."""

from __future__ import annotations

import pytest

from factories import GIB
from system_facts import always, on_host
from traceml.diagnose.rules import swapping
from traceml.facts.facts import Facts
from traceml.facts.sensors import HostFacts
from traceml.model.finding import Kind, Severity

MIB = 1 << 20


def moving(mib_per_s: float) -> Facts:
    return on_host(
        HostFacts(
            swap_bytes=always(2 * GIB),
            swap_bytes_per_s=always(mib_per_s * MIB),
            ram_free_bytes=GIB // 2,
        )
    )


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(moving(1.1), id="just above the line"),
        pytest.param(moving(200), id="thrashing"),
    ],
)
def test_must_fire(facts: Facts) -> None:
    finding = swapping.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.SWAPPING, Severity.WARNING)
    assert "512.0 MiB was left" in finding.action


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(moving(0.9), id="just below the line"),
        pytest.param(moving(0), id="swap in use, at rest"),
        pytest.param(on_host(HostFacts(swap_bytes=always(GIB))), id="rates not measured"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert swapping.check(facts) is None
