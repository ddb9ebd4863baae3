"""Pipeline imbalance and bubbles fire on stages that wait, and no stage is called a straggler."""

from dataclasses import replace

import pytest

from factories import (
    check_rule,
    make_late,
    make_pipeline,
    make_run,
    make_waiting,
    map_steps,
    place_ranks,
    rule_cases,
    told_without_straggler,
)
from traceml.diagnose.engine import diagnose
from traceml.diagnose.finding_order import STRAGGLERS
from traceml.diagnose.rules import comm_bound, pipeline_bubbles, pipeline_imbalance
from traceml.facts.gather import gather
from traceml.model.finding import Section, Severity
from traceml.model.parallel_place import NO_PLACE, ParallelPlace

CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING


def by_turns():
    """Each of two stages is the longest in every second step."""
    run = make_run(ranks=2, steps=60, noise=0.01)
    for rank in range(2):
        run = make_late(run, rank, every=2, since=rank, by_ms=40 + rank)
    return make_waiting(place_ranks(run, pp=2))


NO_PIPELINE = make_waiting(make_late(make_run(ranks=4, steps=60), 1))

FIRES = {
    "pipeline_imbalance": {
        "far longer": (make_pipeline(30), CRITICAL),
        "just above the line": (make_pipeline(9.5), WARNING),
        "two replicas": (make_pipeline(30, replicas=2), CRITICAL),
    },
    "pipeline_bubbles": {
        "few micro-batches": (make_pipeline(0, micro_batches=4), CRITICAL),
        "more of them": (make_pipeline(0, micro_batches=16), WARNING),
    },
}
SILENT = {
    "pipeline_imbalance": {
        "balanced": make_pipeline(0),
        "just below the line": make_pipeline(9),
        "another stage in every step": by_turns(),
        "no pipeline": NO_PIPELINE,
        "waits not measured": place_ranks(make_run(ranks=4, steps=60), pp=4),
    },
    "pipeline_bubbles": {
        "just below the line": make_pipeline(0, micro_batches=32),
        "no stage was seen to wait": make_pipeline(0, micro_batches=4, has_bubbles=False),
        "micro-batches not counted": make_pipeline(0, micro_batches=0),
        "no pipeline": NO_PIPELINE,
    },
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


@pytest.mark.parametrize(("replicas", "ranks"), [(1, (1,)), (2, (2, 3))])
def test_the_longer_stage_is_named_with_its_ranks(replicas, ranks):
    finding = check_rule("pipeline_imbalance", make_pipeline(30, replicas=replicas))
    assert finding.ranks == ranks
    assert finding.evidence.get("stage") == 1
    assert finding.claim.startswith("Stage 1 of the pipeline works")
    assert "Move layers from stage 1" in finding.action


def by_models(run, *sizes):
    """The run whose ranks say nothing of themselves but how large their models are, in turns."""
    ranks = tuple(
        replace(rank, place=ParallelPlace(model=sizes[row % len(sizes)]))
        for row, rank in enumerate(run.ranks)
    )
    return replace(run, ranks=ranks)


def test_ranks_with_another_model_are_no_stragglers_where_no_stage_has_a_name():
    run = make_waiting(make_late(make_run(ranks=4, steps=60, noise=0.01), 1, 3, by_ms=30))
    assert STRAGGLERS & {each.kind for each in found_in(by_models(run, (3, 4)))}
    unlike = by_models(run, (3, 4), (9, 12))
    assert not STRAGGLERS & {each.kind for each in found_in(unlike)}
    finding = check_rule("pipeline_imbalance", unlike)
    assert finding.ranks == (1, 3)
    assert finding.claim.startswith("The model on ranks 1 and 3 works ")
    assert "to the model on ranks 0 and 2, which works" in finding.action
    assert finding.evidence.get("stage") is None
    assert check_rule("pipeline_bubbles", unlike) is None


def found_in(run):
    return diagnose(gather(run)).sections[Section.STEP_TIME]


def test_the_advice_says_how_many_micro_batches():
    finding = check_rule("pipeline_bubbles", make_pipeline(0, micro_batches=4))
    assert "4 stages share 4 micro-batches" in finding.claim
    assert "into 8 micro-batches" in finding.action


def test_balancing_saves_what_the_schedule_would():
    """Stages of 1, 1, 1 and 3 units and 4 micro-batches: (3·3 + 6)/4 units, balanced 10.5/4."""
    run = make_run(ranks=4, steps=60, noise=0, input_ms=None, forward_ms=10, rest_ms=0.0)
    run = map_steps(place_ranks(run, pp=4), lambda steps, _: steps["micro_batches"].fill(4))
    run = make_waiting(make_late(run, 3, by_ms=70))
    found = gather(run).pipeline
    assert found is not None
    assert found.imbalance_s == pytest.approx((15 - 10.5) / 4 * 0.035, rel=0.01)
    assert found.filling_s == pytest.approx(3 / 4 * 1.5 * 0.035, rel=0.01)


def test_a_late_replica_of_a_stage_is_a_straggler_beside_the_longer_stage():
    run = make_late(make_pipeline(30, replicas=3), 0, phase="optimizer", by_ms=60)
    found = diagnose(gather(run)).sections[Section.STEP_TIME]
    (late,) = [each for each in found if each.kind in STRAGGLERS]
    assert late.ranks == (0,)
    assert "Rank 0 (pp 0, dp 0)" in late.claim
    assert "a typical rank of the same work" in late.claim
    assert gather(run).pipeline.longest.stages == (1,)


def test_ranks_that_interleave_two_stages_fill_the_pipeline_in_half_the_time():
    run = make_pipeline(30, micro_batches=8)
    pairs = [
        replace(rank, place=ParallelPlace((), (row, row + 4))) for row, rank in enumerate(run.ranks)
    ]
    interleaved = replace(run, ranks=tuple(pairs))
    one, two = gather(run).pipeline, gather(interleaved).pipeline
    assert (one.micro_batches, two.micro_batches) == (8, 4)  # of as many backward passes
    assert two.filling_s == pytest.approx(one.filling_s)
    finding = check_rule("pipeline_imbalance", interleaved)
    assert finding.claim.startswith("Stages 1 and 5 of the pipeline work ")


def test_filling_a_pipeline_is_no_transfer():
    run = make_pipeline(0, micro_batches=4)
    assert comm_bound.check(gather(run)) is None
    unplaced = replace(run, ranks=tuple(replace(rank, place=NO_PLACE) for rank in run.ranks))
    assert comm_bound.check(gather(unplaced)) is not None


def test_time_is_claimed_once():
    facts = gather(make_pipeline(30, micro_batches=4))
    found = [each for each in diagnose(facts).sections[Section.STEP_TIME] if each.part_of is None]
    assert {pipeline_imbalance.KIND, pipeline_bubbles.KIND} <= {each.kind for each in found}
    assert sum(each.lost_s_per_step or 0.0 for each in found) <= facts.mean.step_s
