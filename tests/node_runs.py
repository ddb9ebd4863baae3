"""Makes the folders of a run over several machines from a run that was made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from factories import make_run
from run_folders import write_run
from traceml.model.node import NodeState, NodeWay
from traceml.store.node_folders import NODES, write_node
from traceml.store.node_mirror import copy_folder
from traceml.store.records import RunRecords

RUN_ID = "run-1"


def split_run(run: RunRecords, nodes: int, ahead_s: float = 0.0) -> list[RunRecords]:
    """The same run as each node's agent records it: the same process numbers on every machine, and
    clocks that are ahead of the head's by so much, times the node's number."""
    each = len(run.ranks) // nodes
    parts = []
    for node in range(nodes):
        own = run.ranks[node * each : (node + 1) * each]
        ranks = tuple(
            replace(
                record,
                rank=replace(
                    record.rank,
                    local_rank=place,
                    local_world_size=each,
                    node_rank=node,
                    pid=1000 + place,
                    hostname=f"host-{'abcdef'[node]}",
                    unix_ns=record.rank.unix_ns + int(node * ahead_s * 1e9),
                ),
            )
            for place, record in enumerate(own)
        )
        numbers = {record.rank.rank: 1000 + place for place, record in enumerate(own)}
        samples = tuple(
            replace(
                sample,
                unix_s=sample.unix_s + node * ahead_s,
                processes=tuple(
                    replace(process, pid=numbers[process.rank])
                    for process in sample.processes
                    if process.rank in numbers
                ),
            )
            for sample in run.samples
        )
        manifest = replace(run.manifest, hostname=f"host-{'abcdef'[node]}", nodes=nodes)
        parts.append(replace(run, manifest=manifest, ranks=ranks, samples=samples))
    return parts


def write_nodes(
    place: Path,
    nodes: int = 2,
    ahead_s: float = 0.0,
    run: RunRecords | None = None,
    parts: Sequence[RunRecords] = (),
) -> list[Path]:
    """Write each node's own folder, as it is on that machine; the first one is the head's. `parts`
    are what the nodes recorded, if not equal parts of one run."""
    run = run or make_run(ranks=2 * nodes, slow_rank=2 * nodes - 1)
    written = []
    for number, part in enumerate(parts or split_run(run, nodes, ahead_s)):
        folder = write_run(place / part.manifest.hostname / "run", part, is_over=True)
        state = NodeState(
            run_id=RUN_ID,
            name=part.manifest.hostname,
            hostname=part.manifest.hostname,
            way=NodeWay.HTTP if number else NodeWay.HEAD,
            clock_offset_s=number * ahead_s,
            clock_uncertainty_s=0.0001,
            is_finished=True,
        )
        write_node(folder, state)
        written.append(folder)
    return written


def bring_to_head(head: Path, *others: Path) -> Path:
    """Copy the other nodes' folders into the head's, as their agents do during the run."""
    for other in others:
        copy_folder(other, head / NODES / other.parent.name)
    return head
