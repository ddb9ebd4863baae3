"""What ranks have more to work on is told from what makes them slow."""

import numpy as np
import pytest

from factories import make_late, make_pipeline, make_run, make_waiting, map_steps, replace_work
from traceml.facts.gather import gather
from traceml.facts.uneven_work import BATCHES, EXCHANGES

STEPS = 60


def lengths(ranks=4, long_rank=None, takes_turns=False, varied=True):
    """Elements of each rank's batches, those of the long rank three times as many."""
    random = np.random.default_rng(1)
    found = random.integers(800, 1200, (ranks, STEPS)) if varied else np.full((ranks, STEPS), 1000)
    for step in range(STEPS):
        rank = step % ranks if takes_turns else long_rank
        if rank is not None:
            found[rank, step] *= 3
    return found


def worked(elements, us_per_element=20.0, **options):
    run = make_run(ranks=len(elements), steps=STEPS, noise=0.01, forward_ms=5.0)
    return make_waiting(replace_work(run, elements, us_per_element, **options))


def test_a_rank_with_longer_sequences_is_no_straggler():
    facts = gather(worked(lengths(long_rank=2)))
    assert facts.uneven_work.source == BATCHES
    assert facts.uneven_work.correlation > 0.9
    assert facts.uneven_work.rows_with_most(facts.job) == (2,)
    assert facts.stragglers == ()


def test_ranks_that_take_turns_are_named_by_nobody():
    facts = gather(worked(lengths(takes_turns=True)))
    assert facts.uneven_work.rows_with_most(facts.job) == ()
    assert facts.uneven_work.largest == pytest.approx(2.0, abs=0.2)
    assert facts.stragglers == ()


def test_what_even_work_would_save_is_the_longest_ranks_excess_over_the_mean():
    elements = lengths(long_rank=2)
    facts = gather(worked(elements))
    excess = (elements.max(axis=0) - elements.mean(axis=0)) * 20e-6
    assert facts.job.saved_s(facts.uneven_work.extra_s) == pytest.approx(excess.mean(), rel=0.1)


def test_work_that_never_changes_is_compared_between_ranks():
    facts = gather(worked(lengths(long_rank=2, varied=False)))
    assert facts.uneven_work.rows_with_most(facts.job) == (2,)
    assert facts.stragglers == ()


@pytest.mark.parametrize("varied", [True, False], ids=["varied", "always the same"])
def test_a_slow_rank_is_not_excused_by_having_more(varied):
    """Rank 2 has a fifth more to do, and takes three times as long as that explains."""
    elements = lengths(varied=varied)
    elements[2] = elements[2] * 6 // 5
    run = make_late(worked(elements), 2, by_ms=30)
    assert [late.rank for late in gather(run).stragglers] == [2]


def test_a_slow_rank_beside_one_with_longer_sequences_is_found():
    run = make_waiting(make_late(worked(lengths(long_rank=2)), 1, phase="optimizer", by_ms=30))
    (late,) = gather(run).stragglers
    assert late.rank == 1
    assert late.own.excess_s == pytest.approx(0.030, rel=0.2)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(ranks=4, steps=STEPS), id="not counted"),
        pytest.param(worked(np.full((4, STEPS), 1000)), id="even"),
        pytest.param(worked(lengths(long_rank=2), us_per_element=0.0), id="no matter for time"),
        pytest.param(worked(lengths(1)), id="one rank"),
        pytest.param(make_pipeline(30), id="a pipeline of which each stage has one rank"),
    ],
)
def test_nothing_is_said_without_uneven_work_that_takes_time(run):
    assert gather(run).uneven_work is None


def test_batches_that_are_fetched_a_step_ahead_are_recognised():
    elements = lengths(takes_turns=True)
    run = worked(elements)
    ahead = map_steps(
        run, lambda steps, rank: np.copyto(steps["batch_elements"], np.roll(elements[rank], -1))
    )
    assert gather(ahead).uneven_work.correlation > 0.9


def test_what_experts_receive_is_work_too():
    facts = gather(worked(lengths(long_rank=3), field="received_elements"))
    assert facts.uneven_work.source == EXCHANGES
    assert facts.stragglers == ()
