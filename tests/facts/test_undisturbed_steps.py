"""Steps whose layers were looked at are in no mean step; what lies between steps is not lost."""

from dataclasses import replace

import pytest

from factories import make_run, map_steps, stall, work_between
from layer_runs import kernel_step, layer_records
from traceml.facts.gather import gather
from traceml.facts.undisturbed_steps import left_out_note, undisturbed_steps
from traceml.store.layer_records import LayerRecords

STEPS = 100
SLOW_S = 0.5


def looked_at(run, *steps, rank=0, kernels=()):
    """The run with steps of a rank whose layers, or whose kernels, were looked at."""
    records = LayerRecords(
        run.ranks[rank].rank.pid,
        looked_at=(*steps, *kernels),
        kernels=tuple(kernel_step(1.0, [], [], step=step) for step in kernels),
    )
    return replace(run, layers=(*run.layers, records))


def mean_step_s(run):
    return gather(run).mean.step_s


@pytest.fixture
def plain():
    return make_run(steps=STEPS, noise=0.0)


def test_steps_that_were_looked_at_are_in_no_mean(plain):
    slow = stall(plain, "rest", SLOW_S, 20, 21, 60)
    assert mean_step_s(slow) > 1.2 * mean_step_s(plain)
    facts = gather(looked_at(slow, 20, 21, 60))
    assert facts.mean.step_s == pytest.approx(mean_step_s(plain))
    assert facts.window.steps_taken == facts.ranks[0].steps_taken == STEPS


def test_recording_kernels_disturbs_the_steps_around_too(plain):
    slow = stall(plain, "rest", SLOW_S, 49, 50, 51)
    assert mean_step_s(looked_at(slow, kernels=[50])) == pytest.approx(mean_step_s(plain))


def test_what_one_rank_looks_at_the_others_wait_for():
    plain = make_run(ranks=2, steps=STEPS, noise=0.0)
    slow = stall(plain, "rest", SLOW_S, 20, 30)  # of both: the other one waits
    seen = looked_at(looked_at(slow, 20, rank=1), 30, rank=0)
    assert mean_step_s(seen) == pytest.approx(mean_step_s(plain))


def test_an_evaluation_before_a_step_that_was_looked_at_counts():
    run = work_between(make_run(steps=STEPS), "evaluation", 400.0, every=50)
    evaluated = gather(looked_at(run, 20, 50, 100)).mean.evaluation_s
    assert evaluated == pytest.approx(2 * 0.4 / (STEPS - 1))


def test_a_checkpoint_that_one_of_the_ranks_makes_counts():
    def saves(steps, rank):
        if rank == 0:
            steps["checkpoint_ns"][49::50] = 400_000_000
            steps["wall_ns"] += steps["checkpoint_ns"]

    run = map_steps(make_run(ranks=2, steps=STEPS), saves)
    saved_s = gather(looked_at(run, 20, 50, 100)).ranks[0].times.checkpoint_s
    assert saved_s == pytest.approx(2 * 0.4 / (STEPS - 1))


def test_ranks_that_took_unequally_many_steps_have_looked_at_none():
    complete = {n: gather(make_run(steps=90 + n)).step_table.rank_steps[0] for n in (0, 10)}
    assert left_out_note(complete, complete) is None


def test_where_most_steps_were_looked_at_all_of_them_count(plain):
    seen = looked_at(plain, *range(10, 80))
    complete = {0: gather(seen).step_table.rank_steps[0]}
    assert undisturbed_steps(complete, seen) is complete
    assert gather(seen).step_table.index.tolist() == list(range(STEPS))


def test_a_process_that_took_no_step_says_nothing(plain):
    stranger = LayerRecords(pid=1, looked_at=(20, 21))
    assert gather(replace(plain, layers=(stranger,))).step_table.index.tolist() == [*range(STEPS)]


def test_the_layers_say_how_many_steps_are_left_out(plain):
    pid = plain.ranks[0].rank.pid
    layers = layer_records(pid=pid, forward_ms={"": 1.0}, looked_at=(5, 6, 7))
    notes = gather(replace(plain, layers=(layers,))).layers.notes
    assert notes[-1].startswith("Left out of the mean step and its phases: 3 of 100 steps")
