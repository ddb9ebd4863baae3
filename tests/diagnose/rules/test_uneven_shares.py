"""Uneven batches and experts fire where the waiting follows from uneven work."""

import numpy as np
import pytest

from factories import (
    check_rule,
    make_late,
    make_run,
    make_waiting,
    place_ranks,
    replace_work,
    rule_cases,
    told_without_straggler,
)
from traceml.diagnose.engine import diagnose
from traceml.diagnose.finding_order import STRAGGLERS
from traceml.facts.gather import gather
from traceml.model.finding import Section, Severity

STEPS = 60
FIELDS = {"uneven_batches": "batch_elements", "expert_imbalance": "received_elements"}


def uneven(rule, ratio, takes_turns=False, waits=True, ranks=4):
    """Rank 1, or one after the other, has so many times the elements of the others."""
    elements = np.random.default_rng(2).integers(900, 1100, (ranks, STEPS)).astype(float)
    for step in range(STEPS):
        elements[step % ranks if takes_turns else 1, step] *= ratio
    run = make_run(ranks=ranks, steps=STEPS, noise=0.01, backward_ms=5.0)
    run = replace_work(run, elements.astype(int), 20.0, field=FIELDS[rule])
    return make_waiting(run) if waits else run


def table(rule):
    return {
        "far more": (uneven(rule, 3), Severity.CRITICAL),
        "just above the line": (uneven(rule, 1.37), Severity.WARNING),
        "in turns": (uneven(rule, 3, takes_turns=True), Severity.CRITICAL),
    }


def quiet(rule):
    other = next(name for name in FIELDS if name != rule)
    return {
        "even": uneven(rule, 1),
        "just below the line": uneven(rule, 1.27),
        "ranks that do not wait": uneven(rule, 3, waits=False),
        "of the other kind": uneven(other, 3),
        "not counted": make_waiting(make_late(make_run(ranks=4, steps=STEPS), 1)),
    }


FIRES = {
    "uneven_batches": {**table("uneven_batches")},
    "expert_imbalance": {**table("expert_imbalance")},
}
SILENT = {
    "uneven_batches": {**quiet("uneven_batches")},
    "expert_imbalance": {**quiet("expert_imbalance")},
}


@pytest.mark.parametrize(("rule", "case"), rule_cases(FIRES))
def test_must_fire(rule, case):
    run, severity = case
    finding = check_rule(rule, run)
    assert finding is not None and finding.severity is severity
    assert finding.kind in told_without_straggler(run)


@pytest.mark.parametrize(("rule", "run"), rule_cases(SILENT))
def test_must_stay_silent(rule, run):
    assert check_rule(rule, run) is None


def test_the_rank_that_always_has_more_is_named_with_its_place():
    finding = check_rule("uneven_batches", place_ranks(uneven("uneven_batches", 3), dp=2, cp=2))
    assert finding.ranks == (1,)
    assert finding.claim.startswith("Rank 1 (dp 0, cp 1) gets 3.0 times as many elements")


def test_ranks_that_take_turns_are_not_named():
    finding = check_rule("uneven_batches", uneven("uneven_batches", 3, takes_turns=True))
    assert finding.ranks == ()
    assert finding.claim.startswith("In each step another rank gets 2.0 times the mean")


def test_time_is_claimed_once_beside_a_slow_rank():
    run = make_late(uneven("uneven_batches", 3), 2, phase="optimizer", by_ms=60)
    facts = gather(run)
    found = diagnose(facts).sections[Section.STEP_TIME]
    assert any(each.kind in STRAGGLERS and each.ranks == (2,) for each in found)
    claimed = sum(each.lost_s_per_step or 0.0 for each in found if each.part_of is None)
    assert claimed <= facts.mean.step_s
