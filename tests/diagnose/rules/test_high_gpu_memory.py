"""High GPU memory says how full a GPU was and how much of that is somebody else's."""

from __future__ import annotations

import pytest

from factories import GIB
from system_facts import DEVICE_BYTES, always, on_gpus
from traceml.diagnose.rules import high_gpu_memory
from traceml.facts.facts import Facts
from traceml.model.finding import Kind, Severity


def full(*shares: float, ranks: int | None = None) -> Facts:
    """Each rank's allocator holds 12 GiB."""
    return on_gpus(
        *(
            {"memory_share": always(share), "memory_bytes": always(share * DEVICE_BYTES)}
            for share in shares
        ),
        ranks=ranks,
    )


def test_must_fire_and_name_what_is_somebody_elses() -> None:
    finding = high_gpu_memory.check(full(0.5, 0.93))
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.HIGH_GPU_MEMORY, Severity.WARNING)
    assert "GPU 1" in finding.claim
    assert finding.evidence["reserved_bytes"] == 12 * GIB
    assert "other processes" in finding.action


def test_must_fire_without_blaming_others_for_what_the_run_holds() -> None:
    small = {"memory_share": always(0.95), "memory_bytes": always(12.4 * GIB)}
    finding = high_gpu_memory.check(on_gpus(small))
    assert finding is not None
    assert "The run itself" in finding.action


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(full(0.91), id="just below the line"),
        pytest.param(full(0.1, 0.99, ranks=1), id="a GPU that may not be ours"),
        pytest.param(on_gpus({}), id="not measured"),
    ],
)
def test_must_stay_silent(facts: Facts) -> None:
    assert high_gpu_memory.check(facts) is None
