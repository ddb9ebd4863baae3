"""Imbalance fires on a rank that needs more memory than the others and has little left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import GIB
from system_facts import with_peaks
from traceml.diagnose.rules import imbalance
from traceml.facts.facts import Facts
from traceml.facts.sensors import HostFacts
from traceml.model.finding import Kind, Severity
from traceml.model.parallel_place import ParallelPlace


def on_gpu(*gib: float) -> Facts:
    return with_peaks([{"peak_reserved_bytes": int(size * GIB)} for size in gib])


def on_cpu(*gib: float) -> Facts:
    peaks = [{"peak_rss_bytes": int(size * GIB)} for size in gib]
    return replace(with_peaks(peaks, gpu=False), host=HostFacts(ram_total_bytes=32 * GIB))


@pytest.mark.parametrize(
    ("facts", "worst"),
    [
        pytest.param(on_gpu(40, 40, 50, 40), 2, id="a quarter more on a third of the device"),
        pytest.param(on_gpu(60, 100), 1, id="the larger of two"),
        pytest.param(on_cpu(2, 2, 2, 6), 3, id="on the host, most of the rank's part of it"),
    ],
)
def test_must_fire(facts: Facts, worst: int) -> None:
    finding = imbalance.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.IMBALANCE, Severity.WARNING)
    assert finding.ranks == (worst,)
    assert finding.skew is not None
    assert f"Rank {worst}" in finding.claim


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(on_gpu(50, 50, 59, 50), id="just below a fifth more"),
        pytest.param(on_gpu(10, 10, 30, 10), id="most of the device is free"),
        pytest.param(on_gpu(100), id="one rank"),
        pytest.param(on_gpu(100, 100), id="equal ranks"),
        pytest.param(on_cpu(1, 1, 1, 2), id="most of the host is free"),
        pytest.param(with_peaks([{}, {}], gpu=False), id="no capacity known"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert imbalance.check(facts) is None


def test_stages_of_a_pipeline_are_told_to_move_layers() -> None:
    facts = on_gpu(50, 80)
    stages = [replace(rank, place=ParallelPlace((), (at,))) for at, rank in enumerate(facts.ranks)]
    finding = imbalance.check(replace(facts, ranks=tuple(stages)))
    assert finding is not None
    assert finding.action.startswith("Rank 1 (stage 1) holds other layers")
