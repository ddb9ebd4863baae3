"""A run in progress as records that are short however long it has lasted: of each process its last
step, and one block of all steps before it. What the wall time went to can be computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceml.model.node import NodeState
from traceml.store import failures, logged
from traceml.store import folder as folders
from traceml.store.joined_ranks import one_per_rank
from traceml.store.load import rank_records
from traceml.store.node_followers import NodeFollower
from traceml.store.node_merge import FolderRecords, bring_together, seen_by_all
from traceml.store.process_follower import ProcessFollower
from traceml.store.records import RankRecords, RunRecords
from traceml.store.step_columns import columns_of


def run_so_far(nodes: Sequence[NodeFollower]) -> RunRecords:
    """Returns the run as its nodes' folders were last followed, the head's first.

    It has processes, starts and what went wrong; no samples, metrics or ending. Raises
    TraceMLError and OSError where a folder has gone, and SegmentGone.
    """
    own, *others = [_folder_records(node) for node in nodes]
    states = [
        NodeState("", node.place.name, clock_offset_s=node.place.ahead_s) for node in nodes[1:]
    ]
    bring_together(own, list(zip(states, others, strict=True)))
    parts = [own, *others]
    ranks, processes = one_per_rank([each for part in parts for each in part.processes])
    numbers = {record.rank.pid: record.rank.rank for record in processes or ranks}
    return RunRecords(
        manifest=own.manifest,
        ranks=ranks,
        processes=processes,
        starts=tuple(each for part in parts for each in part.starts),
        reports=failures.in_order((each for part in parts for each in part.reports), numbers),
        seen=failures.with_final_ranks(seen_by_all([part.seen for part in parts]), numbers),
    )


def _folder_records(node: NodeFollower) -> FolderRecords:
    folder = node.place.folder
    told = {stem: logged.decode(b"\n".join(log.told)) for stem, log in node.logs.items()}
    processes = [
        _process(process, told.get(stem, []))
        for stem, process in node.processes.items()
        if process.has_steps
    ]
    messages = [message for each in told.values() for message in each]
    manifest = folders.read_manifest(folder)
    return FolderRecords(
        manifest=manifest,
        processes=processes,
        starts=failures.script_starts(folder),
        messages=[],
        samples=(),
        ending=None,
        reports=failures.reports(messages, failures.read_left_reports(folder)),
        seen=failures.read_seen(folder, manifest.hostname),
        artifact_hashes={},
        lineage=None,
        stack_bursts=(),
        layers=(),
        step_traces=(),
        notes=[],
    )


def _process(process: ProcessFollower, messages: list[dict[str, Any]]) -> RankRecords:
    before, last = process.totals()
    return rank_records(process.head(), columns_of(last), before, messages)
