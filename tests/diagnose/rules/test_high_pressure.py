"""High pressure fires on memory that is nearly full, of a rank's GPU or of the host it fills."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import GIB
from system_facts import DEVICE_BYTES, always, on_host, with_peaks
from traceml.diagnose.rules import high_pressure
from traceml.facts.facts import Facts
from traceml.facts.sensors import HostFacts, ProcessFacts
from traceml.model.finding import Kind, Section, Severity


def on_gpu(*reserved: float, allocated: float | None = None) -> Facts:
    return with_peaks(
        [
            {
                "peak_reserved_bytes": int(share * DEVICE_BYTES),
                "peak_allocated_bytes": int((allocated or share) * DEVICE_BYTES),
            }
            for share in reserved
        ]
    )


def host_at(share: float, ours: float = 0.8, workers: float = 0.0) -> Facts:
    used = share * 32 * GIB
    host = HostFacts(ram_share=always(share), ram_bytes=always(used), ram_total_bytes=32 * GIB)
    process = ProcessFacts(
        0, 10, rss_bytes=always(ours * used), workers_rss_bytes=always(workers * used)
    )
    return on_host(host, process)


@pytest.mark.parametrize(
    ("facts", "severity", "place"),
    [
        pytest.param(on_gpu(0.925), Severity.WARNING, "gpu", id="just above the line"),
        pytest.param(on_gpu(0.975), Severity.CRITICAL, "gpu", id="full of tensors"),
        pytest.param(
            on_gpu(0.975, allocated=0.6), Severity.WARNING, "gpu", id="full of the allocator's own"
        ),
        pytest.param(host_at(0.93), Severity.WARNING, "host", id="host, filled by the run"),
        pytest.param(host_at(0.98), Severity.CRITICAL, "host", id="host, about to kill"),
        pytest.param(
            host_at(0.93, ours=0.2, workers=0.5), Severity.WARNING, "host", id="filled by workers"
        ),
    ],
)
def test_must_fire(facts: Facts, severity: Severity, place: str) -> None:
    finding = high_pressure.check(facts)
    assert finding is not None
    assert (finding.kind, finding.section) == (Kind.HIGH_PRESSURE, Section.STEP_MEMORY)
    assert (finding.severity, finding.evidence["place"]) == (severity, place)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(on_gpu(0.915), id="just below the line"),
        pytest.param(on_gpu(0.1), id="mostly free"),
        pytest.param(with_peaks([{}], gpu=False), id="no capacity known"),
        pytest.param(host_at(0.91), id="host just below the line"),
        pytest.param(host_at(0.98, ours=0.2), id="host filled by somebody else"),
        pytest.param(replace(host_at(0.98), processes=()), id="no process sampled"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert high_pressure.check(facts) is None


def test_the_worst_rank_is_named_beside_the_median() -> None:
    finding = high_pressure.check(on_gpu(0.5, 0.6, 0.95, 0.93))
    assert finding is not None
    assert "Rank 2" in finding.claim
    assert finding.ranks == (2, 3)
    assert finding.evidence["median_pressure"] == pytest.approx(0.6)
