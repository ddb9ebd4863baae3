"""What steadies a live finding is what its rule judges by."""

from __future__ import annotations

import numpy as np
import pytest

from factories import (
    flag_steps,
    make_late,
    make_pipeline,
    make_run,
    make_waiting,
    replace_work,
    spend,
)
from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.engine import diagnose
from traceml.diagnose.live_findings import share_now
from traceml.diagnose.rules import (
    expert_imbalance,
    pipeline_bubbles,
    pipeline_imbalance,
    uneven_batches,
)
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section
from traceml.model.record_layout import StepFlag
from traceml.store.records import RunRecords

HEALTHY = make_run(4, communication_ms=1.0)

DRY = flag_steps(make_run(gpu=True), StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)


def late(phase: str) -> RunRecords:
    return make_waiting(make_late(make_run(4, h2d_ms=1.0), 2, phase=phase))


def uneven(field: str) -> RunRecords:
    """Rank 2 has more to work on."""
    elements = np.random.default_rng(3).integers(900, 1100, (4, 200))
    elements[2] *= 2
    return make_waiting(replace_work(make_run(4), elements, 20.0, field))


FOUND = {
    Kind.INPUT_BOUND: make_run(input_ms=20),
    Kind.H2D_BOUND: make_run(h2d_ms=20),
    Kind.WAIT_HEAVY: make_run(4, rest_ms=20, communication_ms=5),
    Kind.COMM_BOUND: make_waiting(make_late(make_run(4, communication_ms=20), 1)),
    Kind.COMPUTE_BOUND: make_run(),
    Kind.GC_PAUSES: spend(make_run(), "gc", 20),
    Kind.LOGGING_HEAVY: spend(make_run(), "logging", 20),
    Kind.RECOMPILING: spend(make_run(), "compile", 100, every=10),
    Kind.HOST_SYNC: spend(DRY, "sync", 20),
    Kind.INPUT_STRAGGLER: late("input"),
    Kind.H2D_STRAGGLER: late("h2d"),
    Kind.COMPUTE_STRAGGLER: late("backward"),
    Kind.WAIT_STRAGGLER: late("rest"),
    Kind.STRAGGLER: make_waiting(make_late(late("input"), 2, phase="forward")),
    uneven_batches.KIND: uneven("batch_elements"),
    expert_imbalance.KIND: uneven("received_elements"),
    pipeline_imbalance.KIND: make_pipeline(30),
    pipeline_bubbles.KIND: make_pipeline(0, micro_batches=4),
}
"""By kind, a run that has such a finding."""


def test_every_measure_is_held_against_its_rule() -> None:
    assert set(FOUND) == {rule.kind for rule in all_rules().rules if rule.measure is not None}


@pytest.mark.parametrize("kind", FOUND)
def test_the_measure_of_what_a_rule_found_is_the_rules_own(kind: Kind) -> None:
    facts = gather(FOUND[kind])
    found = diagnose(facts).sections[Section.STEP_TIME]
    finding = next(each for each in found if each.kind is kind)
    assert finding.share is not None
    assert share_now(finding, facts) == pytest.approx(finding.share)


@pytest.mark.parametrize("kind", [kind for kind in FOUND if kind is not Kind.COMPUTE_BOUND])
def test_what_is_cured_measures_next_to_nothing(kind: Kind) -> None:
    found = diagnose(gather(FOUND[kind])).sections[Section.STEP_TIME]
    finding = next(each for each in found if each.kind is kind)
    measure = share_now(finding, gather(HEALTHY))
    assert measure is None if kind is Kind.H2D_BOUND else abs(measure or 0.0) < 0.05


def test_a_finding_that_is_about_no_part_of_the_step_has_no_measure() -> None:
    facts = gather(make_run(slowdown_at=100))
    slowdown = next(
        each for each in diagnose(facts).sections[Section.STEP_TIME] if each.kind is Kind.SLOWDOWN
    )
    assert share_now(slowdown, facts) is None
