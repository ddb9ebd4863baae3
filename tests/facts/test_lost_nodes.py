"""A machine that was lost with everything on it is told from one whose end somebody saw."""

from dataclasses import replace

import pytest

from factories import STARTED_UNIX_S, make_run, on_nodes
from failing import (
    ENDED_UNIX_S,
    failed,
    report,
    said_goodbye,
    standing,
    with_deaths,
    with_lost_machine,
    with_stall,
)
from restarted_runs import Start, restarted
from traceml.diagnose.failure_words import attempt_reason
from traceml.facts.gather import gather
from traceml.facts.stability import Failure, stability
from traceml.model.failure import AgentSaw, Doing
from traceml.model.finding import Kind
from traceml.model.node import NodeState, NodeWay
from traceml.model.run import Ending
from traceml.store.records import NodeRecords, RunRecords

LOST_PEER = "Read error [10.0.0.3]:58592: Connection reset by peer"


def on_three(status: int | None = 1, ranks: int = 6) -> RunRecords:
    """A failed run on three machines whose other ranks lost their peer."""
    said = [report(rank, "RuntimeError", LOST_PEER) for rank in range(ranks * 2 // 3)]
    return on_nodes(replace(failed(*said, ranks=ranks), ending=Ending(ENDED_UNIX_S, status)), 3)


def failure_of(run: RunRecords) -> Failure | None:
    return stability(run).failure


def lost(run: RunRecords) -> list[tuple[str, tuple[int, ...]]]:
    found = failure_of(run)
    return [] if found is None else [(node.name, node.ranks) for node in found.lost]


def test_a_machine_that_fell_silent_with_its_ranks_was_lost_and_the_others_followed() -> None:
    found = failure_of(with_lost_machine(on_three()))
    assert found is not None
    assert (found.kind, found.rank, found.step, found.signal) == (Kind.KILLED, 4, None, None)
    (node,) = found.lost
    assert (node.name, node.ranks, node.steps) == ("node-c", (4, 5), 200)
    assert node.last_heard_unix_s == ENDED_UNIX_S - 4.0
    assert found.followers == (0, 1, 2, 3)


def test_the_samples_that_are_told_are_those_of_its_own_machine() -> None:
    run = on_nodes(failed(ranks=2), 2, ram_used_bytes=9, ram_total_bytes=10)
    found = failure_of(with_lost_machine(run))
    assert found is not None
    assert found.last.ram_share == pytest.approx(0.9)


def test_a_machine_whose_lost_peers_aborted_later_came_first() -> None:
    """NCCL ends the other processes by SIGABRT."""
    run = with_deaths(on_nodes(failed(ranks=2), 2), (0, 134))
    assert lost(with_lost_machine(run)) == [("node-b", (1,))]


def test_a_process_that_died_before_the_machine_was_silent_comes_first() -> None:
    died = with_deaths(on_nodes(failed(ranks=2), 2), (0, 137))
    for before_end_s in (0.5, 2.5):  # what it recorded last is seconds old where it ends well
        found = failure_of(with_lost_machine(died, before_end_s))
        assert found is not None
        assert (found.rank, found.signal, found.lost) == (0, 9, ())


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(on_three(), id="its end was seen"),
        pytest.param(
            replace(
                with_lost_machine(on_three()),
                reports=(
                    report(4, "RuntimeError", LOST_PEER),
                    report(0, "RuntimeError", LOST_PEER),
                ),
            ),
            id="its rank spoke",
        ),
        pytest.param(with_deaths(with_lost_machine(on_three()), (4, 137)), id="its rank died"),
        pytest.param(said_goodbye(with_lost_machine(on_three()), 4, 5), id="its ranks had ended"),
        pytest.param(with_lost_machine(on_three(status=0)), id="the run ended well"),
        pytest.param(with_lost_machine(on_three(status=143)), id="all were asked to end"),
        pytest.param(with_lost_machine(on_three(status=None)), id="nobody saw the head end"),
        pytest.param(failed(ranks=2), id="one machine"),
    ],
)
def test_no_machine_was_lost(run: RunRecords) -> None:
    assert lost(run) == []


def test_the_head_and_a_machine_without_a_measured_clock_are_not_called_lost() -> None:
    run = with_lost_machine(on_three())
    *others, last = run.nodes
    for changes in ({"way": NodeWay.HEAD}, {"clock_offset_s": None}):
        other = replace(last, state=replace(last.state, **changes))
        assert lost(replace(run, nodes=(*others, other))) == []


def test_a_machine_that_only_its_link_left_is_not_lost() -> None:
    """The other ranks trained on for long: they cannot without the ranks of that machine."""
    run = with_lost_machine(on_three(), before_end_s=4.0)
    last = run.nodes[-1]
    early = tuple(replace(each, unix_s=STARTED_UNIX_S) for each in last.samples)
    late = tuple(
        each
        if each.rank.rank in last.ranks
        else replace(each, rank=replace(each.rank, unix_ns=each.rank.unix_ns + 30 * 10**9))
        for each in run.ranks
    )
    cut = replace(run, ranks=late, nodes=(*run.nodes[:-1], replace(last, samples=early)))
    assert lost(cut) == []


def test_a_hang_for_a_lost_machine_names_it_while_it_lasts_and_after() -> None:
    waits = [standing(rank, Doing.BACKWARD) for rank in range(2)]
    run = with_stall(on_nodes(replace(make_run(ranks=4), ending=None), 2), *waits)
    last = run.nodes[-1]
    heard = tuple(replace(each, unix_s=STARTED_UNIX_S + 11) for each in last.samples[:1])
    run = replace(run, nodes=(run.nodes[0], replace(last, samples=heard, ending=None)))
    hung = failure_of(run)
    assert hung is not None
    assert (hung.kind, [each.rank for each in hung.culprits]) == (Kind.HANG, [2, 3])
    assert [node.name for node in hung.lost] == ["node-b"]
    over = failure_of(replace(run, ending=Ending(ENDED_UNIX_S, 1)))
    assert over is not None
    assert (over.kind, [node.name for node in over.lost]) == (Kind.KILLED, ["node-b"])
    assert over.followers == (0, 1)


def test_an_attempt_that_lost_a_machine_says_so() -> None:
    run = restarted(
        Start(45, status=None, error=None), Start(20, resumed=40, status=0, ranks=1), status=0
    )
    processes = tuple(
        replace(each, rank=replace(each.rank, hostname=f"node-{'ab'[each.rank.rank]}"))
        for each in run.processes
    )
    names = [NodeState("run", name, hostname=name, clock_offset_s=0.0) for name in ("a", "b")]
    nodes = (
        NodeRecords(
            replace(names[0], way=NodeWay.HEAD), (0,), ending=run.ending, pids=(1000, 1100)
        ),
        NodeRecords(replace(names[1], way=NodeWay.HTTP), (), pids=(1001,)),
    )
    peer = report(0, "RuntimeError", LOST_PEER, pid=1000, unix_s=STARTED_UNIX_S + 9.6)
    deaths = tuple(each for each in run.seen.deaths if each.pid != 1001)
    lost_one = replace(
        run,
        processes=processes,
        starts=(),
        nodes=nodes,
        reports=(peer,),
        seen=AgentSaw(deaths=deaths),
    )
    first = gather(lost_one).attempts[0]
    assert first.failure is not None and [each.name for each in first.failure.lost] == ["b"]
    assert attempt_reason(first) == "b was lost; went on with 1 rank instead of 2"
