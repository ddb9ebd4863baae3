"""A run whose ranks were started again is one run with its attempts, and the reason of each end."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from factories import STARTED_UNIX_S, make_run
from node_runs import bring_to_head, write_nodes
from restarted_runs import LAUNCH_S, START_UP_S, STEP_S, Start, restarted
from traceml.diagnose.failure_words import attempt_reason
from traceml.facts.attempts import (
    Attempt,
    find_attempts,
    lost_s_by_attempt,
    redone_count,
    restart_count,
)
from traceml.facts.gather import gather
from traceml.facts.goodput import goodput_of
from traceml.facts.stability import stability
from traceml.model.failure import AgentSaw, FailureReport
from traceml.model.finding import Kind
from traceml.store.load import load_run
from traceml.store.node_folders import NODES, read_node, write_node
from traceml.store.records import RunRecords


def attempts_of(run: RunRecords) -> tuple[Attempt, ...]:
    return find_attempts(run, stability(run))


def test_a_run_without_a_restart_is_one_attempt():
    (only,) = attempts_of(make_run(ranks=4))
    assert only.steps == 200
    assert only.world_size == 4
    assert not only.is_restart


def test_each_attempt_has_its_steps_and_the_reason_of_its_end():
    first, second = attempts_of(restarted(Start(45), Start(20, resumed=40, status=0)))
    assert (first.steps, second.steps) == (45, 20)
    assert first.failure is not None
    assert first.failure.kind is Kind.EXCEPTION
    assert (first.failure.rank, first.failure.step) == (1, 46)
    assert second.is_restart
    assert second.failure is None


@pytest.mark.parametrize(
    ("starts", "redone"),
    [
        pytest.param([Start(45), Start(20, resumed=40)], [5, 0], id="from the checkpoint"),
        pytest.param([Start(45), Start(60)], [45, 0], id="nothing was loaded: anew"),
        pytest.param(
            [Start(45), Start(20, has_loaded=True)], [None, 0], id="loaded, step not known"
        ),
        pytest.param([Start(45), Start(20, resumed=90)], [None, 0], id="another unit of steps"),
        pytest.param([Start(45), Start(20, resumed=45)], [0, 0], id="saved at the very end"),
        pytest.param(
            [Start(45), Start(1, resumed=40), Start(30, resumed=20)],
            [25, 1, 0],
            id="an older checkpoint undoes steps of both before",
        ),
        pytest.param(
            [Start(45), Start(0), Start(20, resumed=40)], [5, 0, 0], id="one without steps between"
        ),
        pytest.param(
            [Start(45, resumed=100), Start(20, resumed=140)], [5, 0], id="a run that was resumed"
        ),
    ],
)
def test_steps_after_the_checkpoint_are_done_again(
    starts: list[Start], redone: list[int | None]
) -> None:
    last = replace(starts[-1], status=0)
    found = attempts_of(restarted(*starts[:-1], last))
    assert [each.redone_steps for each in found] == redone
    assert redone_count(found) == (None if None in redone else sum(filter(None, redone)))


def test_time_is_lost_from_the_last_step_to_the_first_of_the_next_attempt():
    found = attempts_of(restarted(Start(45), Start(20, resumed=40, status=0)))
    assert lost_s_by_attempt(found) == {1: pytest.approx(LAUNCH_S + START_UP_S, abs=1e-3)}


def test_an_attempt_that_dies_before_its_first_step_counts_once():
    found = attempts_of(restarted(Start(45), Start(0), Start(20, resumed=40, status=0)))
    assert [each.steps for each in found] == [45, 0, 20]
    assert found[1].failure is not None
    assert found[1].failure.kind is Kind.EXCEPTION
    lost = lost_s_by_attempt(found)
    assert sum(lost.values()) == pytest.approx(2 * (LAUNCH_S + START_UP_S), abs=1e-3)


def test_a_last_attempt_that_fails_because_of_the_first_has_a_reason_of_its_own():
    run = restarted(Start(45), Start(0, error="DistNetworkError"), status=1)
    facts = gather(run)
    first, last = facts.attempts
    assert facts.stability.failure is not None
    assert facts.stability.failure.report == (first.failure and first.failure.report)
    assert "ValueError" in (attempt_reason(first) or "")
    assert "DistNetworkError" in (attempt_reason(last) or "")


def test_a_rank_that_was_killed_is_the_reason_and_not_those_that_the_launcher_ended():
    found = attempts_of(restarted(Start(45, status=137, error=None), Start(20, status=0)))
    assert found[0].failure is not None
    assert (found[0].failure.kind, found[0].failure.rank) == (Kind.KILLED, 1)
    assert found[0].failure.signal == 9


def test_a_rank_that_left_without_an_exception_is_the_reason_and_not_who_lost_it():
    run = restarted(Start(45, error=None), Start(20, status=0))
    bye = tuple(replace(p, health=replace(p.health, ended=True)) for p in run.processes)
    run, first = replace(run, processes=bye), bye[0].rank  # as `sys.exit(1)` lets them end
    lost = FailureReport(0, "RuntimeError", "Connection closed by peer", pid=first.pid, step=46)
    run = replace(run, reports=(*run.reports, replace(lost, unix_s=STARTED_UNIX_S)))
    found = attempts_of(run)
    assert found[0].failure is None
    assert attempt_reason(found[0]) == "rank 1: ended with exit status 1"
    assert found[1].is_restart


def test_twenty_restarts_are_twenty_one_attempts():
    starts = [Start(5, resumed=5 * number) for number in range(20)]
    found = attempts_of(restarted(*starts, Start(5, resumed=100, status=0)))
    assert len(found) == 21
    assert restart_count(found) == 20
    assert redone_count(found) == 0


def test_attempts_that_overlap_by_a_second_are_two_and_no_further_ranks():
    run = restarted(Start(45), Start(20, resumed=40, overlap_s=LAUNCH_S + 1.0, status=0))
    found = attempts_of(run)
    assert [each.steps for each in found] == [45, 20]
    assert [rank.rank.rank for rank in run.ranks] == [0, 1]


def test_a_changed_number_of_ranks_is_another_attempt_of_the_same_run():
    found = attempts_of(restarted(Start(45, ranks=4), Start(20, resumed=40, ranks=2, status=0)))
    assert [each.world_size for each in found] == [4, 2]
    grown = attempts_of(restarted(Start(45, ranks=1), Start(20, resumed=40, ranks=3, status=0)))
    assert [each.world_size for each in grown] == [1, 3]


def test_ranks_that_the_launcher_stops_for_a_machine_that_came_have_not_failed():
    alone = Start(20, status=143, error=None, ranks=1, says_restart=False)
    run = restarted(alone, Start(20, status=0, says_restart=False))
    stopped, after = gather(run).attempts
    assert stopped.is_regrouped
    assert after.is_restart
    assert attempt_reason(stopped) == "its launcher stopped it, to go on with 2 ranks instead of 1"


@pytest.mark.parametrize("error", [None, "ValueError"], ids=["killed", "with an exception"])
def test_a_run_that_goes_on_without_a_lost_machine_ends_well(error: str | None):
    """`traceml.init` knows no exit status of the command."""
    run = restarted(Start(20, status=137, error=error), Start(20, status=0, ranks=1))
    run = replace(run, ending=replace(run.ending, exit_status=None))
    facts = gather(run)
    assert facts.stability.failure is None
    lost, last = facts.attempts
    assert "; went on with 1 rank instead of 2" in attempt_reason(lost)
    assert (last.world_size, last.failure) == (1, None)


def test_a_script_that_runs_again_after_it_ended_well_is_no_restart():
    run = restarted(
        Start(45, status=0, ranks=1, says_restart=False),
        Start(20, status=0, ranks=1, says_restart=False),
    )
    found = attempts_of(run)
    assert len(found) == 2
    assert restart_count(found) == 0
    assert redone_count(found) == 0
    assert lost_s_by_attempt(found) == {}


def test_a_launcher_that_runs_another_script_first_is_no_restart():
    """`torchrun prepare.py && torchrun train.py`: both give ranks, and only one trains."""
    run = restarted(Start(0, status=0, says_restart=False), Start(20, status=0, says_restart=False))
    found = attempts_of(run)
    assert [each.steps for each in found] == [0, 20]
    assert restart_count(found) == 0


def test_a_launcher_that_counts_its_restarts_is_believed_where_nobody_saw_an_end():
    run = restarted(Start(0, error=None), Start(20, status=0))
    found = attempts_of(replace(run, seen=AgentSaw()))
    assert restart_count(found) == 1


def test_a_run_in_progress_lasts_until_its_last_record():
    run = replace(restarted(Start(45), Start(20, resumed=40)), ending=None)
    last = attempts_of(run)[-1]
    assert last.until_unix_s == pytest.approx(
        STARTED_UNIX_S + 2 * START_UP_S + LAUNCH_S + 65 * STEP_S, abs=1e-3
    )


def test_a_clock_that_was_set_back_keeps_the_attempts_in_order():
    run = restarted(Start(45), Start(20, resumed=40, overlap_s=3.0, status=0))
    facts = gather(run)
    begins = [each.began_unix_s for each in facts.attempts]
    assert begins == sorted(begins)
    assert all(each.until_unix_s >= each.began_unix_s for each in facts.attempts)


def on_two_machines(run: RunRecords) -> RunRecords:
    """The same run with rank 1 on a machine of its own, whose launcher counts by itself."""
    hosts = ("host-a", "host-b")
    return replace(
        run,
        processes=tuple(
            replace(each, rank=replace(each.rank, hostname=hosts[each.rank.rank]))
            for each in run.processes
        ),
        starts=tuple(replace(each, hostname=hosts[each.rank or 0]) for each in run.starts),
        seen=replace(
            run.seen,
            deaths=tuple(replace(each, hostname=hosts[each.rank]) for each in run.seen.deaths),
        ),
    )


def with_equal_pids(run: RunRecords) -> RunRecords:
    """The same run in containers, in which rank 1 has the pids that rank 0 has."""

    def pid(rank: int | None, pid: int) -> int:
        return pid - (rank or 0)

    return replace(
        run,
        processes=tuple(
            replace(each, rank=replace(each.rank, pid=pid(each.rank.rank, each.rank.pid)))
            for each in run.processes
        ),
        starts=tuple(replace(each, pid=pid(each.rank, each.pid)) for each in run.starts),
        reports=tuple(replace(each, pid=pid(each.rank, each.pid)) for each in run.reports),
        seen=replace(
            run.seen,
            deaths=tuple(replace(each, pid=pid(each.rank, each.pid)) for each in run.seen.deaths),
        ),
    )


@pytest.mark.parametrize("own_pids", [True, False], ids=["own pids", "containers: equal pids"])
def test_a_rank_that_waits_while_another_machine_fails_to_begin_is_of_the_attempt_that_trains(
    own_pids: bool,
):
    """The launchers of two machines start their ranks by themselves: rank 0 only once."""
    run = on_two_machines(restarted(Start(45), Start(0), Start(20, resumed=40, status=0)))
    starts = [each for each in run.starts if not (each.rank == 0 and each.restart == 2)]
    waits = next(each for each in starts if each.rank == 0 and each.restart == 1)
    last = next(each for each in run.processes if each.rank.rank == 0 and each.rank.pid != 1000)
    began_ns = round((waits.unix_s or 0.0) * 1e9)
    trained = replace(last, rank=replace(last.rank, pid=waits.pid, process_unix_ns=began_ns))
    run = replace(
        run,
        starts=tuple(starts),
        processes=tuple(trained if each is last else each for each in run.processes),
        seen=replace(run.seen, deaths=tuple(d for d in run.seen.deaths if d.pid != waits.pid)),
    )
    if not own_pids:
        run = with_equal_pids(run)
    found = attempts_of(run)
    assert [each.steps for each in found] == [45, 0, 20]
    assert [each.world_size for each in found] == [2, 2, 2]
    assert [len(each.processes) for each in found] == [2, 0, 2]
    assert redone_count(found) == 5
    assert found[1].failure is not None and found[1].failure.rank == 1
    lost = lost_s_by_attempt(found)
    assert sum(lost.values()) == pytest.approx(2 * (LAUNCH_S + START_UP_S), abs=1e-3)


def test_processes_of_two_machines_with_equal_pids_are_told_apart():
    run = on_two_machines(restarted(Start(45, status=137, error=None), Start(20, status=0)))
    found, alike = attempts_of(run), attempts_of(with_equal_pids(run))
    assert [(each.steps, each.world_size) for each in alike] == [(45, 2), (20, 2)]
    assert [each.began_unix_s for each in alike] == [each.began_unix_s for each in found]
    for each in (found, alike):
        assert each[0].failure is not None
        assert (each[0].failure.kind, each[0].failure.rank) == (Kind.KILLED, 1)


@pytest.mark.parametrize("ahead_s", [-300.0, 300.0])
def test_a_machine_whose_clock_was_not_measured_makes_no_attempt_of_its_own(
    ahead_s: float, tmp_path: Path
):
    """It never reached the head; its folder was brought there after the run."""
    head, other = write_nodes(tmp_path, ahead_s=ahead_s)
    alone = load_run(head)
    bring_to_head(head, other)
    copy = head / NODES / other.parent.name
    state = read_node(copy)
    assert state is not None
    write_node(copy, replace(state, clock_offset_s=None, clock_uncertainty_s=None))
    run = load_run(head)
    (only,) = attempts_of(run)
    assert len(only.processes) == 4
    goodput, of_head = (goodput_of(each, attempts_of(each)) for each in (run, alone))
    assert goodput is not None and of_head is not None
    assert goodput.parts_s == of_head.parts_s


def test_a_last_attempt_that_ended_before_its_first_step_has_its_own_reason() -> None:
    """Its ranks could not meet, say, after one of the attempt before was killed."""
    run = restarted(Start(45, status=137, error=None), Start(0, error=None), status=1)
    run = replace(run, ending=replace(run.ending, exit_status=None))  # as traceml.init sees it
    first, last = attempts_of(run)
    assert first.failure is not None and first.failure.signal == signal.SIGKILL
    assert last.failure is None
    assert last.first_to_leave is not None and last.first_to_leave.status == 1
