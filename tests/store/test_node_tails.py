"""The head's agent follows the ranks of other nodes in the files that it has of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_run
from node_runs import RUN_ID, split_run
from run_folders import write_rank
from traceml.facts.step_table import complete_steps
from traceml.model.node import NodeState, NodeWay
from traceml.store import folder as folders
from traceml.store import node_tails
from traceml.store.node_folders import NODES, write_node
from traceml.store.node_tails import NodeTails
from traceml.store.recent_steps import MAX_STEPS, RecentSteps
from traceml.store.records import STEP_DTYPE, RankRecords, RunRecords
from traceml.store.samples import SampleFile

AHEAD_S = 300.0


@pytest.fixture
def parts(tmp_path: Path) -> list[RunRecords]:
    """Two nodes of two ranks each; the second one's clock is five minutes ahead. The head's folder
    has that node's, with no steps yet."""
    made = split_run(make_run(ranks=4, steps=60), nodes=2, ahead_s=AHEAD_S)
    node = tmp_path / NODES / "host-b"
    node.mkdir(parents=True)
    folders.write_manifest(node, made[1].manifest)
    state = NodeState(RUN_ID, "host-b", way=NodeWay.HTTP, clock_offset_s=AHEAD_S)
    write_node(node, state)
    return made


def append(folder: Path, rank: RankRecords, first: int, end: int) -> None:
    write_rank(folder / NODES / "host-b", rank, first, end)


def last_steps(window: RunRecords | None) -> dict[int, tuple[int, int]]:
    """The first and the last step of each rank, counted from 1."""
    assert window is not None
    found = {rank.rank.rank: complete_steps(rank).index + 1 for rank in window.ranks}
    return {rank: (int(index[0]), int(index[-1])) for rank, index in found.items()}


def test_a_look_finds_what_is_new_and_nothing_twice(
    tmp_path: Path, parts: list[RunRecords], monkeypatch: pytest.MonkeyPatch
) -> None:
    recent, tails = RecentSteps(parts[0].manifest), NodeTails(tmp_path)
    assert not tails.follow(recent, ())
    for rank in parts[1].ranks:
        append(tmp_path, rank, 0, 20)
    assert tails.follow(recent, ())
    assert last_steps(recent.window()) == {2: (1, 20), 3: (1, 20)}
    with monkeypatch.context() as context:
        context.setattr(node_tails, "open_records", lambda _: pytest.fail("a file was read again"))
        tails.follow(recent, ())
    assert recent.window() is None
    for rank in parts[1].ranks:
        append(tmp_path, rank, 20, 32)
    tails.follow(recent, ())
    assert last_steps(recent.window()) == {2: (1, 32), 3: (1, 32)}


def test_ranks_are_on_the_heads_clock_and_share_no_process_number(
    tmp_path: Path, parts: list[RunRecords]
) -> None:
    recent = RecentSteps(parts[0].manifest)
    own = [rank.rank.pid for rank in parts[0].ranks]
    assert own == [rank.rank.pid for rank in parts[1].ranks]
    for rank in parts[1].ranks:
        append(tmp_path, rank, 0, 20)
    NodeTails(tmp_path).follow(recent, own)
    window = recent.window()
    assert window is not None
    assert not {rank.rank.pid for rank in window.ranks} & set(own)
    assert [rank.rank.unix_ns for rank in window.ranks] == [
        rank.rank.unix_ns for rank in parts[0].ranks
    ]


def test_of_a_long_file_only_the_end_is_read(
    tmp_path: Path, parts: list[RunRecords], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = make_run(ranks=1, steps=3 * MAX_STEPS).ranks[0]
    append(tmp_path, long, 0, len(long.steps))
    sizes, pread = [], os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        content = pread(descriptor, size, offset)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(os, "pread", counted)
    recent = RecentSteps(parts[0].manifest)
    NodeTails(tmp_path).follow(recent, ())
    assert last_steps(recent.window())[0][1] == len(long.steps)
    assert sum(sizes) < 2 * MAX_STEPS * STEP_DTYPE.itemsize


def test_a_restarted_rank_goes_on_where_it_was(tmp_path: Path, parts: list[RunRecords]) -> None:
    recent, tails = RecentSteps(parts[0].manifest), NodeTails(tmp_path)
    first = parts[1].ranks[0]
    append(tmp_path, first, 0, 30)
    tails.follow(recent, ())
    later = replace(first.rank, pid=7000, unix_ns=first.rank.unix_ns + 10**12)
    append(tmp_path, replace(first, rank=later), 0, 12)
    tails.follow(recent, ())
    assert last_steps(recent.window()) == {2: (31, 42)}


def test_a_file_that_is_half_made_is_read_later(tmp_path: Path, parts: list[RunRecords]) -> None:
    recent, tails = RecentSteps(parts[0].manifest), NodeTails(tmp_path)
    rank = parts[1].ranks[0]
    half = tmp_path / NODES / "host-b" / f"rank-{rank.rank.rank}-{rank.rank.pid}.0000.steps"
    half.write_bytes(b"TRACEML")
    tails.follow(recent, ())
    assert recent.window() is None
    half.unlink()
    append(tmp_path, rank, 0, 20)
    tails.follow(recent, ())
    assert last_steps(recent.window()) == {2: (1, 20)}


def test_the_machines_of_the_last_steps_are_told(tmp_path: Path, parts: list[RunRecords]) -> None:
    recent, tails = RecentSteps(parts[0].manifest), NodeTails(tmp_path)
    assert tails.nodes(parts[0]) == ()
    write_node(tmp_path, NodeState(RUN_ID, "host-a", way=NodeWay.HEAD))
    for rank in parts[1].ranks:
        append(tmp_path, rank, 0, 20)
    own_pids = [rank.rank.pid for rank in parts[0].ranks]
    tails.follow(recent, own_pids)
    window = recent.window()
    assert window is not None
    head, other = tails.nodes(replace(window, ranks=(*parts[0].ranks, *window.ranks)))
    assert (head.state.name, head.state.way, head.ranks) == ("host-a", NodeWay.HEAD, (0, 1))
    assert (other.state.name, other.state.way, other.ranks) == ("host-b", NodeWay.HTTP, (2, 3))
    assert head.state.clock_uncertainty_s == 0.0
    assert other.state.clock_offset_s == AHEAD_S


def test_what_other_nodes_sample_is_known_too(tmp_path: Path, parts: list[RunRecords]) -> None:
    recent, tails = RecentSteps(parts[0].manifest), NodeTails(tmp_path)
    write_node(tmp_path, NodeState(RUN_ID, "host-a", way=NodeWay.HEAD))
    for rank in parts[1].ranks:
        append(tmp_path, rank, 0, 20)
    file = SampleFile(tmp_path / NODES / "host-b")
    first, *later = parts[1].samples
    file.append(first)
    tails.follow(recent, [rank.rank.pid for rank in parts[0].ranks])
    for sample in later:
        file.append(sample)
    tails.follow(recent, ())
    window = recent.window()
    assert window is not None
    _, other = tails.nodes(window)
    assert [each.unix_s for each in other.samples] == [
        each.unix_s - AHEAD_S for each in parts[1].samples
    ]
    pids = {rank.rank.rank: rank.rank.pid for rank in window.ranks}
    assert {each.rank: each.pid for each in other.samples[-1].processes} == pids
    assert not set(pids.values()) & {rank.rank.pid for rank in parts[0].ranks}
