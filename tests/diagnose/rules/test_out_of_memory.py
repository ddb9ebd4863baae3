"""Out of memory says what was asked for, what is held, and what to try with numbers."""

from dataclasses import replace

import numpy as np
import pytest

from factories import GIB, map_steps
from failing import failed, report, said_goodbye
from traceml.diagnose.rules import exception, out_of_memory
from traceml.facts.gather import gather
from traceml.model.failure import FailureReport, MemoryAtFailure
from traceml.model.finding import Finding, Kind, Severity
from traceml.store.records import RunRecords

MEMORY = MemoryAtFailure(
    tried_bytes=4 * GIB,
    free_bytes=2 * GIB,
    total_bytes=80 * GIB,
    allocated_bytes=70 * GIB,
    reserved_bytes=76 * GIB,
    parameter_bytes=5 * GIB,
    gradient_bytes=5 * GIB,
    optimizer_bytes=10 * GIB,
)


def full(**more: object) -> FailureReport:
    memory = replace(MEMORY, **more)
    return report(0, "OutOfMemoryError", "CUDA out of memory.", memory=memory)


def found(run: RunRecords) -> Finding:
    finding = out_of_memory.check(gather(run))
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(failed(full(), gpu=True), id="on a GPU"),
        pytest.param(
            failed(report(0, "MemoryError", "", memory=MemoryAtFailure(is_host=True))), id="host"
        ),
        pytest.param(
            failed(report(memory=MemoryAtFailure()), gpu=True), id="nothing known but the fact"
        ),
        pytest.param(
            said_goodbye(failed(replace(full(), is_handled=True), gpu=True), 0),
            id="caught, then sys.exit(1)",
        ),
    ],
)
def test_must_fire(run: RunRecords) -> None:
    finding = found(run)
    assert (finding.kind, finding.severity) == (Kind.OUT_OF_MEMORY, Severity.CRITICAL)
    assert exception.check(gather(run)) is None


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(failed(report()), id="another exception"),
        pytest.param(failed(full(), status=0), id="ended well"),
        pytest.param(
            failed(replace(full(), is_handled=True, unix_s=1.0)), id="caught, and trained on"
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert out_of_memory.check(gather(run)) is None


def test_the_claim_names_the_layer_and_the_largest_consumers() -> None:
    claim = found(failed(full(), gpu=True)).claim
    assert "at step 201 in forward, module block.1" in claim
    assert "asked for 4.00 GiB with 2.00 GiB free of 80.0 GiB" in claim
    assert "50.0 GiB activations and the rest, 10.0 GiB optimizer state" in claim
    assert "did not grow" in claim


def test_the_batch_to_try_fits_by_what_activations_take() -> None:
    """50 + 4 GiB of activations for 32 samples, 53.6 GiB left for them: half is the smaller."""
    half = found(failed(full(), gpu=True))
    assert half.evidence["suggested_batch"] == 16
    assert "batch of 16 (it was 32)" in half.action
    tight = found(failed(full(tried_bytes=100 * GIB), gpu=True))
    assert tight.evidence["suggested_batch"] == 11
    assert "batch is 1 already" in found(failed(full(), gpu=True, samples=1)).action


def test_what_is_reserved_and_unused_is_the_allocators_matter() -> None:
    assert "expandable_segments" not in found(failed(full(), gpu=True)).action
    fragmented = found(failed(full(allocated_bytes=50 * GIB), gpu=True))
    assert "26.0 GiB are reserved and unused" in fragmented.action


def test_a_growing_curve_asks_for_what_is_kept() -> None:
    def grow(steps: np.ndarray, rank: int) -> None:
        steps["allocated_bytes"] = (10 + np.arange(len(steps))) * GIB

    finding = found(map_steps(failed(full(), gpu=True), grow))
    assert "had grown from 178.0 GiB to 209.0 GiB over the 32 steps before" in finding.claim
    assert "detach()" in finding.action
