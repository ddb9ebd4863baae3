"""Puts the folders of a run's nodes together after the run, as the head would have during it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceml.model.errors import UnreadableRecords, UsageError
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
    ours, state = read_node(head), read_node(folder)
    _require_same_run(head, ours, folder, state)
    if state is None:
        hostname = folders.read_manifest(folder).hostname
        state = NodeState(ours.run_id if ours else "", node_name(hostname), hostname=hostname)
        state = replace(state, name=_name_of_unknown(head, folder, state.name))
    target = head / NODES / state.name
    copy_folder(folder, target)
    write_node(target, replace(state, is_finished=state.is_finished or is_finished))


def mark_finished(folder: Path, is_finished: bool) -> None:
    """Notes that everything that a node recorded is in its folder."""
    state = read_node(folder)
    if state is not None and is_finished and not state.is_finished:
        write_node(folder, replace(state, is_finished=True))


def _name_of_unknown(head: Path, folder: Path, name: str) -> str:
    """Returns the name for a node that never reached the head: that of the copy that an earlier
    recovery made, or a free one."""
    manifest = folders.read_manifest(folder)
    for known in node_folders(head):
        if folders.read_manifest(known) == manifest:
            return known.name
    return free_name(head / NODES, name)


def _require_same_run(
    head: Path, ours: NodeState | None, folder: Path, theirs: NodeState | None
) -> None:
    if ours is not None and theirs is not None and ours.run_id and theirs.run_id:
        is_same = ours.run_id == theirs.run_id
    else:  # never joined: a run's ranks agree about its size, unless it was restarted with another
        sizes, other_sizes = _world_sizes(head), _world_sizes(folder)
        is_same = not sizes or not other_sizes or bool(sizes & other_sizes)
    if not is_same:
        raise UsageError(
            f"{folder} is not of the same run as {head}; expected the folders of the nodes of one "
            "run: recover each run by itself"
        )


def _world_sizes(folder: Path) -> set[int]:
    return {rank.world_size for rank in _ranks(folder)}


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
