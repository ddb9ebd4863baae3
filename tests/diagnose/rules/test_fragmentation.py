"""Fragmentation fires on memory that the allocator holds and no tensor uses."""

from __future__ import annotations

import pytest

from factories import GIB
from system_facts import with_peaks
from traceml.diagnose.rules import fragmentation
from traceml.facts.facts import Facts
from traceml.model.finding import Kind, Severity


def held(*pairs: tuple[float, float]) -> Facts:
    """Reserved and allocated GiB of each rank, of 140."""
    return with_peaks(
        [
            {"peak_reserved_bytes": int(reserved * GIB), "peak_allocated_bytes": int(used * GIB)}
            for reserved, used in pairs
        ]
    )


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        pytest.param(held((130, 100)), Severity.WARNING, id="a fifth of a device that is full"),
        pytest.param(held((10, 6.5)), Severity.INFO, id="a third of what is held, much is free"),
        pytest.param(held((120, 80)), Severity.WARNING, id="a third of what is held, little free"),
    ],
)
def test_must_fire(facts: Facts, severity: Severity) -> None:
    finding = fragmentation.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.FRAGMENTATION, severity)
    assert "expandable_segments:True" in finding.action


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(held((130, 110)), id="an allocator's usual reserve"),
        pytest.param(held((1.2, 0.4)), id="a small model"),
        pytest.param(with_peaks([{}], gpu=False), id="no allocator read"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert fragmentation.check(facts) is None


def test_the_rank_with_the_largest_gap_is_told() -> None:
    finding = fragmentation.check(held((130, 120), (130, 90), (130, 100)))
    assert finding is not None
    assert finding.ranks == (1, 2)
    assert "rank 1 holds 130.0 GiB" in finding.claim
    assert "40.0 GiB" in finding.claim
