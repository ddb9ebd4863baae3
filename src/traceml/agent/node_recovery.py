"""Puts the folders of a run's nodes together after the run, as the head would have during it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceml.model.errors import TraceMLError, UnreadableRecords, UsageError
from traceml.model.node import NodeState, NodeWay
from traceml.model.rank import Rank
from traceml.store import folder as folders
from traceml.store.node_folders import (
    NODES,
    free_name,
    node_folders,
    node_name,
    read_node,
    write_node,
)
from traceml.store.node_mirror import copy_folder
from traceml.store.record_file import RankFiles

CLOCKS_APART_S = 900.0
"""How far the clocks of two machines may differ where the difference was not measured."""


def choose_head(given: Sequence[Path]) -> Path:
    """Returns which of some nodes' folders is the head's: the one that says so, that has folders of
    other nodes, or that has rank 0; else the first. Raises UsageError for folders of two runs."""
    heads = [path for path in given if (state := read_node(path)) and state.way is NodeWay.HEAD]
    heads = heads or [path for path in given if node_folders(path)]
    if len(heads) > 1:
        raise UsageError(
            f"{heads[0]} and {heads[1]} are both heads, so they are two runs; expected the folders "
            "of the nodes of one run: recover each run by itself"
        )
    with_first = [path for path in given if any(rank.rank == 0 for rank in _ranks(path))]
    return [*heads, *with_first, *given][0]


def add_node(head: Path, folder: Path, is_finished: bool) -> None:
    """Copies a node's folder into the head's; raises UsageError where it is of another run."""
    ours, state = read_node(head), _proven_state(folder)
    _require_same_run(head, ours, folder, state)
    if state is None:
        hostname = folders.read_manifest(folder).hostname
        state = NodeState(ours.run_id if ours else "", node_name(hostname), hostname=hostname)
    name = _name_at_head(head, folder, state)
    target = head / NODES / name
    copy_folder(folder, target)
    finished = state.is_finished or is_finished
    write_node(target, replace(state, name=name, is_finished=finished))


def _proven_state(folder: Path) -> NodeState | None:
    """Returns what a folder says about its node; `None` where no head has ever accepted the node:
    then nothing confirms which run the folder belongs to, and its token may have been wrong."""
    state = read_node(folder)
    return state if state is not None and state.has_known_head else None


def mark_finished(folder: Path, is_finished: bool) -> None:
    """Notes that everything that a node recorded is in its folder."""
    state = read_node(folder)
    if state is not None and is_finished and not state.is_finished:
        write_node(folder, replace(state, is_finished=True))


def _name_at_head(head: Path, folder: Path, state: NodeState) -> str:
    """Returns the name for a node: that of its copy at the head, also one that an earlier recovery
    made; or a free one, where another node has its hostname and came first."""
    manifest = folders.read_manifest(folder)
    for known in node_folders(head):
        there = read_node(known)
        if there is not None and there.node_id and there.node_id == state.node_id:
            return known.name
        try:
            if folders.read_manifest(known) == manifest:
                return known.name
        except TraceMLError:
            continue  # a damaged copy: reading it says so
    return free_name(head / NODES, state.name)


def _require_same_run(
    head: Path, ours: NodeState | None, folder: Path, theirs: NodeState | None
) -> None:
    if ours is not None and theirs is not None and ours.run_id and theirs.run_id:
        is_same = ours.run_id == theirs.run_id
    else:
        is_same = _looks_alike(head, folder)
    if not is_same:
        raise UsageError(
            f"{folder} is not of the same run as {head}; expected the folders of the nodes of one "
            "run: recover each run by itself"
        )


def _looks_alike(head: Path, folder: Path) -> bool:
    """Returns whether a node that never joined may belong to the head's run.

    Both must have run at the same time, with the same number of ranks (unless the job was restarted
    with another one), and must have different ranks (unless a restart renumbered them).
    """
    ours, theirs = _ranks(head), _ranks(folder)
    if not ours or not theirs:
        return True
    sizes, other_sizes = ({each.world_size for each in ranks} for ranks in (ours, theirs))
    if not sizes & other_sizes or not _overlap(head, folder):
        return False
    was_restarted = any(len(ranks) > len({r.rank for r in ranks}) for ranks in (ours, theirs))
    is_resized = len(sizes | other_sizes) > 1
    others = {each.rank for each in ours}.isdisjoint(each.rank for each in theirs)
    return others or was_restarted or is_resized


def _overlap(head: Path, folder: Path) -> bool:
    """Returns whether two runs were in progress at the same time, allowing for clocks that differ
    between machines."""
    (began_s, ended_s), (other_began_s, other_ended_s) = map(_span_unix_s, (head, folder))
    return began_s <= other_ended_s + CLOCKS_APART_S and other_began_s <= ended_s + CLOCKS_APART_S


def _span_unix_s(folder: Path) -> tuple[float, float]:
    ending = folders.read_ending(folder)
    began_s = folders.read_manifest(folder).started_unix_s
    return began_s, math.inf if ending is None else ending.unix_s


def _ranks(folder: Path) -> list[Rank]:
    found = []
    for files in RankFiles.all_in(folder):
        try:
            head = files.head()
        except UnreadableRecords:
            continue
        if head is not None:
            found.append(head.rank)
    return found
