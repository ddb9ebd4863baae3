"""Steps of one attempt are compared with each other alone, and of ranks that all trained in it."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories import number_steps
from restarted_runs import Start, restarted
from traceml.diagnose.engine import diagnose
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Kind
from traceml.store.blocks import fold
from traceml.store.joined_ranks import number_attempts, one_per_rank
from traceml.store.records import RankRecords, RunRecords
from traceml.summaries.build import build
from traceml.text.summary import summary_text

STRAGGLERS = {kind for kind in Kind if "STRAGGLER" in kind.value}
PATTERN = (1.0, 1.3, 0.8, 1.7, 0.9, 2.5, 1.1)
"""Of the steps' lengths: a shift by one step would be seen in every column."""


def named(facts: Facts) -> dict[Kind, Finding]:
    sections = diagnose(facts).sections.values()
    return {finding.kind: finding for section in sections for finding in section}


def stragglers(facts: Facts) -> list[Finding]:
    return [finding for kind, finding in named(facts).items() if kind in STRAGGLERS]


def folded(run: RunRecords, last: int = 20) -> RunRecords:
    """The run with all but the last steps of each process merged into blocks."""

    def fold_one(process: RankRecords) -> RankRecords:
        steps = np.array(process.steps)
        return replace(process, steps=steps[-last:], blocks=fold(steps[:-last]))

    ranks, processes = one_per_rank([fold_one(each) for each in run.processes])
    return number_attempts(replace(run, ranks=ranks, processes=processes))


@pytest.mark.parametrize("lacks", [(0, 1), (1, 0), (0, 3, 1)], ids=str)
def test_each_attempt_begins_with_the_same_number_on_every_rank(lacks: tuple[int, ...]):
    ranks = len(lacks)
    run = restarted(
        Start(41, ranks=ranks, lacks=lacks, factors=PATTERN),
        Start(60, ranks=ranks, status=0, factors=PATTERN[::-1]),
    )
    table = gather(run).step_table
    assert table is not None
    step_s = table.step()
    assert np.allclose(step_s, step_s[0])
    assert table.index.tolist() == [*range(41 - max(lacks)), *range(41, 101)]
    assert run.attempt_firsts == (0, 41)


def test_steps_that_a_rank_aborted_or_lost_shift_no_other():
    run = restarted(
        Start(41, lacks=(0, 1), factors=PATTERN), Start(60, status=0, factors=PATTERN[::-1])
    )
    first, second, *rest = run.processes
    aborted = np.concatenate([np.array(first.steps), np.array(first.steps)[-1:]])
    number_steps(aborted)
    aborted["flags"][10] = 1
    ranks, processes = one_per_rank(
        [
            replace(first, steps=aborted),
            replace(second, steps=np.delete(np.array(second.steps), 5)),
            *rest,
        ]
    )
    table = gather(number_attempts(replace(run, ranks=ranks, processes=processes))).step_table
    assert table is not None
    of_second_attempt = table.index[table.warmup :] >= 41
    step_s = table.step()[:, of_second_attempt]
    assert step_s.shape[1] == 60
    assert np.allclose(step_s, step_s[0])


def test_a_rank_that_was_started_again_counts_on_from_its_blocks():
    run = folded(restarted(Start(100, factors=PATTERN), Start(80, status=0, factors=PATTERN)))
    facts = gather(run)
    assert facts.window.steps_analyzed == 180
    assert facts.window.last_step == 180


def test_a_job_that_grows_names_no_rank_that_trained_alone():
    """Rank 0 takes 300 steps alone, and half as long a step once another one shares its batch."""
    alone = Start(300, ranks=1, status=143, error=None, says_restart=False, factors=(2.0,))
    facts = gather(restarted(alone, Start(300, status=0, says_restart=False)))
    assert not stragglers(facts)
    assert Kind.INCOMPLETE_DATA not in named(facts)
    window = facts.window
    assert (window.steps_analyzed + window.warmup_steps, window.steps_taken) == (300, 600)
    assert (window.first_step, window.last_step) == (301 + window.warmup_steps, 600)
    assert window.attempts is not None
    assert (window.attempts.numbers, window.attempts.steps_left_out) == ((2,), 300)
    assert [each.rank.rank for each in facts.ranks_used] == [0, 1]


@pytest.mark.parametrize("is_folded", [False, True], ids=["single steps", "merged into blocks"])
def test_a_job_that_loses_a_machine_is_judged_by_the_ranks_that_trained_on(is_folded: bool):
    run = restarted(
        Start(47, status=137, error=None, factors=(2.0,)), Start(700, ranks=1, status=0)
    )
    facts = gather(folded(run) if is_folded else run)
    assert facts.window.steps_analyzed + facts.window.warmup_steps == 700
    assert facts.window.steps_taken == 747
    assert facts.mean.step_s == pytest.approx(0.1, rel=1e-3)
    assert [each.rank.rank for each in facts.ranks_used] == [0]
    assert Kind.INCOMPLETE_DATA not in named(facts)
    assert not stragglers(facts)


def test_the_summary_says_which_attempt_was_analysed_and_why():
    run = restarted(Start(47, status=137, error=None), Start(700, ranks=1, status=0))
    summary = build(run, 0.0, "1.0")
    assert summary.step_time is not None
    window = summary.step_time.global_.window
    assert (window.attempts, window.steps_left_out) == ((2,), 47)
    said = " ".join(summary_text(summary).split())
    assert "Only steps of attempt 2 are analysed (1 rank): the 47 steps of other attempts" in said


def test_attempts_of_the_same_ranks_are_all_analysed():
    facts = gather(restarted(Start(45), Start(0), Start(20, resumed=40, status=0)))
    assert facts.window.attempts is None
    assert facts.window.steps_analyzed + facts.window.warmup_steps == 65


counts = st.integers(min_value=0, max_value=60)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), counts, st.sampled_from([1.0, 2.0, 5.0])),
        min_size=1,
        max_size=4,
    )
)
def test_attempts_of_any_world_sizes_name_no_straggler_and_leave_out_no_larger_one(
    attempts: list[tuple[int, int, float]],
):
    starts = [
        Start(steps, ranks=ranks, factors=(factor,), status=1) for ranks, steps, factor in attempts
    ]
    run = restarted(*starts, Start(5, ranks=2, status=0))
    facts = gather(run)
    assert not stragglers(facts)
    window = facts.window
    largest = max([5, *(steps for _, steps, _ in attempts)])
    assert window.steps_analyzed + window.warmup_steps >= largest
    assert window.steps_taken == 5 + sum(steps for _, steps, _ in attempts)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_permuting_ranks_permutes_the_straggler_of_a_restarted_job(order: tuple[int, ...]):
    def made(slow: int, lacks: tuple[int, ...]) -> RunRecords:
        first = Start(40, ranks=3, lacks=lacks, slow_rank=slow)
        return restarted(first, Start(60, ranks=3, status=0, slow_rank=slow))

    lacks = [0, 0, 0]
    lacks[order[1]] = 2
    (usual,) = stragglers(gather(made(0, (0, 2, 0))))
    (permuted,) = stragglers(gather(made(order[0], tuple(lacks))))
    assert permuted.kind is usual.kind
    assert usual.ranks == (0,)
    assert permuted.ranks == (order[0],)
