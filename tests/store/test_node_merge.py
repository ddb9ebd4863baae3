"""The records of several nodes come to the head's clock, and the run ends with the last of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from factories import STARTED_UNIX_S, make_rank, make_run, make_steps
from node_runs import bring_to_head, write_nodes
from run_folders import write_rank
from traceml.facts.gather import gather
from traceml.model.failure import AgentSaw, Doing, Stall, Standing, StuckCollective
from traceml.model.run import Ending
from traceml.model.run_time import RunPart
from traceml.store import folder as folders
from traceml.store.failures import write_seen
from traceml.store.load import load_run
from traceml.store.node_folders import read_node, write_node
from traceml.store.node_merge import shift_message
from traceml.store.records import RunRecords

AHEAD_S = 300.0
HEAD_ENDED_S = 12.0
LATER_S = 30.0
"""When the other machine begins to train alone."""
LATER_STEPS = 2000
LATER_END_S = LATER_S + LATER_STEPS * 0.037


def test_every_moment_of_another_nodes_stall_comes_to_the_heads_clock(tmp_path: Path) -> None:
    since = STARTED_UNIX_S + 10
    stuck = StuckCollective("default_pg", 9, "all_reduce", since + 1, waiting=(2,))
    stall = Stall(
        since,
        since + 60,
        1.0,
        (Standing(2, 1000, Doing.COLLECTIVE, 5),),
        stacks=("stacks/rank-2-1000.txt",),
        collectives=(stuck,),
        first_seen_unix_s=since + 30,
    )
    head, other = write_nodes(tmp_path, 2, ahead_s=AHEAD_S)
    write_seen(other, AgentSaw(stalls=(stall,)))
    (found,) = load_run(bring_to_head(head, other)).seen.stalls
    assert found.since_unix_s == since - AHEAD_S
    assert found.seen_unix_s == since + 60 - AHEAD_S
    assert found.first_seen_unix_s == since + 30 - AHEAD_S
    assert found.collectives == (replace(stuck, since_unix_s=since + 1 - AHEAD_S),)
    assert found.stacks == ("nodes/host-b/stacks/rank-2-1000.txt",)


def test_every_moment_of_a_message_comes_to_the_heads_clock() -> None:
    said = {"kind": "failure", "pid": 7, "unix_s": 310.0, "unix_ns": 310_000_000_000, "step": 5}
    ahead_ns = round(AHEAD_S * 1e9)
    assert shift_message(said, 9, ahead_ns) == {
        "kind": "failure",
        "pid": 9,
        "unix_s": 10.0,
        "unix_ns": 10_000_000_000,
        "step": 5,
    }
    assert said["unix_s"] == 310.0  # what was read stays
    assert shift_message({"unix_s": 0.0}, 9, ahead_ns)["unix_s"] == 0.0  # not known


def job_whose_head_is_lost(
    place: Path, head_ended_s: float = HEAD_ENDED_S, status: int | None = 0
) -> tuple[Path, Path]:
    """Folders of two machines of which the second one trains on by itself; `status` is that of its
    own command, `None` where nobody saw it end."""
    run = replace(make_run(ranks=2, noise=0.0), ending=Ending(STARTED_UNIX_S + head_ended_s, 143))
    head, other = write_nodes(place, 2, ahead_s=AHEAD_S, run=run)
    again = make_rank(make_steps({"forward": 37.0}, np.ones(LATER_STEPS), rest_ms=0.0))
    began_ns = int((STARTED_UNIX_S + LATER_S + AHEAD_S) * 1e9)
    where = replace(again.rank, pid=77, hostname="host-b", unix_ns=began_ns)
    write_rank(other, replace(again, rank=where))
    ended_s = STARTED_UNIX_S + AHEAD_S
    if status is None:
        folders.write_ending(other, Ending(ended_s + HEAD_ENDED_S))
    else:
        folders.write_ending(other, Ending(ended_s + LATER_END_S + 1, status, pid=1000))
    return head, other


def whole(head: Path, other: Path) -> RunRecords:
    return load_run(bring_to_head(head, other))


def test_a_job_that_goes_on_without_its_head_ends_with_the_last_machine(tmp_path: Path) -> None:
    records = whole(*job_whose_head_is_lost(tmp_path))
    assert records.ending is not None
    assert records.ending.unix_s == pytest.approx(STARTED_UNIX_S + LATER_END_S + 1)
    assert records.ending.exit_status == 0
    goodput = gather(records).goodput
    assert goodput is not None
    assert goodput.wall_s == pytest.approx(records.ending.unix_s - records.manifest.started_unix_s)
    assert goodput.parts_s[RunPart.STEPS] == pytest.approx((200 + LATER_STEPS) * 0.037, rel=0.01)
    assert records.nodes[0].ending == Ending(STARTED_UNIX_S + HEAD_ENDED_S, 143)


def test_an_end_that_nobody_saw_is_the_last_step_and_has_no_status(tmp_path: Path) -> None:
    records = whole(*job_whose_head_is_lost(tmp_path, status=None))
    assert records.ending == Ending(pytest.approx(STARTED_UNIX_S + LATER_END_S))


def test_the_heads_ending_counts_where_it_came_last(tmp_path: Path) -> None:
    ended_s = LATER_END_S - 5  # ranks of one job are stopped one after the other
    records = whole(*job_whose_head_is_lost(tmp_path, head_ended_s=ended_s))
    assert records.ending == Ending(STARTED_UNIX_S + ended_s, 143)


def test_steps_on_a_clock_that_was_not_measured_say_nothing_about_the_end(tmp_path: Path) -> None:
    head, other = job_whose_head_is_lost(tmp_path)
    state = read_node(other)
    assert state is not None
    write_node(other, replace(state, clock_offset_s=None, clock_uncertainty_s=None))
    assert whole(head, other).ending == Ending(STARTED_UNIX_S + HEAD_ENDED_S, 143)
