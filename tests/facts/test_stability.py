"""What ended a run is found among everything that went wrong in it."""

import time
from dataclasses import replace

import numpy as np

from factories import make_run
from failing import failed, report, said_goodbye, with_deaths, with_loss
from traceml.facts.gather import gather
from traceml.facts.losses import loss_facts
from traceml.facts.stability import stability
from traceml.model.finding import Kind
from traceml.store.records import Metric


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
    run = with_loss([1.0, 2.0, float("nan")])
    later = replace(run, ranks=(replace(run.ranks[0], earlier_steps=100),))
    found = gather(later).stability.loss
    assert found is not None
    assert found.not_finite is not None
    assert found.not_finite.first_step == 103


def test_the_shortest_name_is_the_loss_where_several_are_logged() -> None:
    def metric(name: str) -> Metric:
        return Metric(name, 2, 1.0, 0.0, 1.0, 0.5, 1, 2, history=((1, 3.0), (2, 1.0)))

    found = loss_facts((), (metric("train/aux_loss"), metric("loss"), metric("val_loss")))
    assert found is not None
    assert (found.name, found.first, found.last) == ("loss", 3.0, 1.0)
    assert loss_facts((), (metric("val_loss"),)) is None
