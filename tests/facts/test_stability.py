"""What ended a run is found among everything that went wrong in it."""

import time
from dataclasses import replace

import numpy as np
import pytest

from factories import STARTED_UNIX_S, make_run, map_steps, number_steps
from failing import (
    ENDED_UNIX_S,
    failed,
    report,
    said_goodbye,
    standing,
    with_deaths,
    with_loss,
    with_stall,
)
from traceml.facts.gather import gather
from traceml.facts.losses import loss_facts
from traceml.facts.stability import stability
from traceml.model.failure import Doing
from traceml.model.finding import Kind
from traceml.model.record_layout import StepFlag
from traceml.model.run import Ending
from traceml.store.records import LoggedMetric, RunRecords


def test_a_run_that_ended_well_has_no_failure() -> None:
    found = stability(make_run(ranks=2))
    assert (found.is_over, found.exit_status, found.failure, found.loss) == (True, 0, None, None)


def test_only_the_last_start_of_a_restarted_job_counts() -> None:
    """The launcher started the ranks again under other pids; only those are in the records."""
    first = report(0, "ValueError", "of the first start", unix_s=1.0, pid=77)
    last = report(1, "KeyError", "of the last start")
    failure = stability(failed(first, last, ranks=2)).failure
    assert failure is not None
    assert failure.report == last


def test_a_rank_that_failed_before_its_first_step_is_known_by_its_report_alone() -> None:
    failure = stability(failed(report(3, pid=77, step=1))).failure
    assert failure is not None
    assert (failure.kind, failure.rank) == (Kind.EXCEPTION, 3)


def test_the_others_that_failed_are_followers() -> None:
    lost = "Connection closed by peer [127.0.0.1]:1"
    run = failed(report(2), report(0, "RuntimeError", lost), report(1, "E", lost), ranks=3)
    failure = stability(run).failure
    assert failure is not None
    assert (failure.rank, failure.followers) == (2, (0, 1))


def test_ranks_that_raise_the_same_by_themselves_are_told_together() -> None:
    lost = report(2, "RuntimeError", "Connection closed by peer [127.0.0.1]:1")
    run = failed(
        report(1, message="no file 7", where=None),
        report(0, message="no file 12", where=None),
        lost,
        ranks=3,
    )
    failure = stability(run).failure
    assert failure is not None
    assert (failure.rank, failure.alike, failure.followers) == (1, (0,), (2,))


def test_another_error_of_another_rank_is_neither_alike_nor_a_consequence() -> None:
    other = report(0, "KeyError", "'x'", where="train.py:30 in main", unix_s=ENDED_UNIX_S + 1)
    failure = stability(failed(report(1), other, ranks=2)).failure
    assert failure is not None
    assert (failure.alike, failure.followers, failure.others) == ((), (), (other,))


def test_an_unknown_error_at_a_later_collective_is_a_consequence() -> None:
    at_collective = report(0, "RuntimeError", "op failed", phase="communication", unix_s=9e9)
    failure = stability(failed(report(1), at_collective, ranks=2)).failure
    assert failure is not None
    assert (failure.rank, failure.followers) == (1, (0,))


def test_a_rank_that_was_started_again_counts_on() -> None:
    run = failed(report(step=48))
    again = replace(run, ranks=(replace(run.ranks[0], former_steps=4),))
    failure = stability(again).failure
    assert failure is not None
    assert (failure.step, failure.steps_since_start) == (52, 48)


def test_steps_are_numbered_alike_whatever_ended_the_run() -> None:
    """Neither aborted steps, which a ring counts, nor lost ones, which it does not, shift them."""
    stood = replace(standing(0, Doing.CODE), steps=777)
    run = make_run(steps=50)
    steps = run.ranks[0].steps.copy()
    steps["flags"][[5, 15, 25]] |= int(StepFlag.ABORTED)
    run = replace(run, ranks=(replace(run.ranks[0], steps=np.delete(steps, [30, 31])),))
    expected = gather(run).window.last_step
    assert expected == 47
    hung = stability(with_stall(replace(run, ending=None), stood, after_s=1e6)).failure
    assert hung is not None
    assert hung.step == expected + 1
    killed = stability(replace(run, ending=Ending(ENDED_UNIX_S, 137))).failure
    assert killed is not None
    assert killed.step == expected + 1


def test_a_kill_before_the_first_step_is_no_kill_after_training() -> None:
    for run in (failed(status=137, steps=0), replace(failed(status=137), ranks=())):
        failure = stability(run).failure
        assert failure is not None
        assert (failure.signal, failure.said_goodbye, failure.is_before_training) == (
            9,
            False,
            True,
        )


def behind_a_wrapper(status: int, seen: int | None, *command: str) -> RunRecords:
    """A run of one rank whose status is that of a program around it."""
    run = with_deaths(failed(status=status), (0, seen))
    return replace(
        run,
        ending=Ending(ENDED_UNIX_S, status, pid=1),
        manifest=replace(run.manifest, command=command),
    )


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        pytest.param(behind_a_wrapper(3, 143), (15, None, False), id="the kernel told"),
        pytest.param(
            behind_a_wrapper(124, 143, "timeout", "5", "python", "train.py"),
            (15, None, True),
            id="timeout, and the kernel told",
        ),
        pytest.param(
            behind_a_wrapper(124, None, "bash", "-c", "cd x && timeout 5 python train.py"),
            (None, None, True),
            id="timeout, and the kernel did not tell",
        ),
        pytest.param(behind_a_wrapper(137, None), (9, None, False), id="a shell reports a signal"),
        pytest.param(behind_a_wrapper(3, None), (None, None, False), id="nobody can tell"),
    ],
)
def test_a_program_around_the_script_hides_no_signal(
    run: RunRecords, expected: tuple[int | None, int | None, bool]
) -> None:
    failure = stability(run).failure
    assert failure is not None
    assert failure.kind is Kind.KILLED
    assert (failure.signal, failure.status, failure.timed_out) == expected


def test_a_rank_that_chose_its_status_behind_a_wrapper_was_not_killed() -> None:
    assert stability(behind_a_wrapper(1, 7)).failure is None


def test_a_helpers_failure_counts_where_the_script_says_that_a_command_failed() -> None:
    below = report(0, "KeyError", "5", pid=77, started_by=50, is_rank=False, step=None, unix_s=1.0)
    script = {"pid": 50, "is_rank": False, "step": None}
    said = failed(below, report(0, "CalledProcessError", "died", **script))
    own = failed(below, report(0, "ValueError", "no", **script))
    silent = failed(below)
    found = [stability(replace(run, ranks=())).failure for run in (said, own, silent)]
    errors = [each and each.report and each.report.error for each in found]
    assert errors == ["KeyError", "ValueError", None]


def test_a_script_that_failed_before_the_training_script_was_started_ended_nothing() -> None:
    prepared = report(0, pid=50, is_rank=False, step=None, unix_s=STARTED_UNIX_S - 60)
    assert stability(said_goodbye(failed(prepared, status=3), 0)).failure is None


def test_a_launchers_own_word_is_only_a_consequence() -> None:
    launcher = report(0, "ChildFailedError", "train.py FAILED", pid=50, is_rank=False, step=None)
    assert stability(said_goodbye(failed(launcher), 0)).failure is None


def test_while_the_run_goes_on_a_silent_rank_is_no_dead_one() -> None:
    run = replace(with_deaths(failed(ranks=2), (1, 137)), ending=None)
    assert stability(run).failure is None


def test_permuting_ranks_permutes_the_culprit() -> None:
    for order in ((0, 1), (1, 0)):
        run = with_deaths(
            failed(ranks=2), *((rank, 137 if rank == order[0] else 143) for rank in order)
        )
        failure = stability(run).failure
        assert failure is not None
        assert (failure.rank, failure.signal) == (order[0], 9)


def test_a_process_that_crashes_after_its_goodbye_had_ended_its_training() -> None:
    failure = stability(said_goodbye(failed(status=139), 0)).failure
    assert failure is not None
    assert failure.said_goodbye


def test_the_loss_of_a_long_run_is_looked_at_in_no_time() -> None:
    values = 1 + np.exp(-np.arange(160_000) / 1000)
    run = with_loss(values)
    began_s = time.process_time()
    found = loss_facts(run.ranks, ())
    assert (
        time.process_time() - began_s < 5
    )  # of the CPU's own time: a busy machine changes nothing
    assert found is not None
    assert (found.values, found.jumps) == (160_000, ())


def test_steps_are_counted_from_where_the_run_began() -> None:
    """As in a window of the last steps: the records before it are gone, the numbers are not."""
    run = map_steps(
        with_loss([1.0, 2.0, float("nan")]), lambda steps, rank: number_steps(steps, first=100)
    )
    later = replace(run, ranks=(replace(run.ranks[0], earlier_steps=100),))
    found = gather(later).stability.loss
    assert found is not None
    assert found.not_finite is not None
    assert found.not_finite.first_step == 103


def test_a_loss_after_lost_steps_has_the_number_that_its_step_has() -> None:
    run = with_loss([*np.linspace(2.0, 1.0, 30), *[float("nan")] * 10])
    (rank,) = run.ranks
    holey = replace(rank, steps=np.delete(rank.steps, np.arange(5, 15)))
    facts = gather(replace(run, ranks=(holey,)))
    assert facts.window.last_step == 40
    assert facts.stability.loss is not None and facts.stability.loss.not_finite is not None
    assert facts.stability.loss.not_finite.first_step == 31


def test_the_shortest_name_is_the_loss_where_several_are_logged() -> None:
    def metric(name: str) -> LoggedMetric:
        return LoggedMetric(name, 2, 1.0, 0.0, 1.0, 0.5, 1, 2, history=((1, 3.0), (2, 1.0)))

    found = loss_facts((), (metric("train/aux_loss"), metric("loss"), metric("val_loss")))
    assert found is not None
    assert (found.name, found.first, found.last) == ("loss", 3.0, 1.0)
    assert loss_facts((), (metric("val_loss"),)) is None
