"""Ranks whose tensors differ are told as context, whatever room there is."""

from __future__ import annotations

import pytest

from factories import GIB
from system_facts import with_peaks
from traceml.diagnose.rules import gpu_memory_imbalance
from traceml.facts.facts import Facts
from traceml.model.finding import Kind, Section, Severity


def holding(*gib: float) -> Facts:
    return with_peaks([{"peak_allocated_bytes": int(size * GIB)} for size in gib])


def test_must_fire_on_the_rank_that_stands_out() -> None:
    finding = gpu_memory_imbalance.check(holding(8, 8, 8, 12))
    assert finding is not None
    assert (finding.kind, finding.section) == (Kind.GPU_MEMORY_IMBALANCE, Section.PROCESS)
    assert (finding.severity, finding.ranks) == (Severity.INFO, (3,))
    assert finding.skew == pytest.approx(0.5)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(holding(10, 10, 11.9), id="just below the line"),
        pytest.param(holding(1, 1, 1.9), id="a difference not worth a look"),
        pytest.param(holding(12), id="one rank"),
        pytest.param(with_peaks([{}, {}], gpu=False), id="no allocator read"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert gpu_memory_imbalance.check(facts) is None
