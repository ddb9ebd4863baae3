"""Loads a whole run: record files first, then what the rings still hold."""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from itertools import count as count_from
from pathlib import Path, PurePath
from typing import Any

import numpy.typing as npt

from traceml.model import record_layout
from traceml.model.environment import MOVED_MARK, TROUBLE_MARK
from traceml.model.errors import TraceMLError, UnreadableRecords
from traceml.model.node import NodeState, NodeWay
from traceml.model.printable import shell_word
from traceml.model.quantities import count
from traceml.model.rank import Rank
from traceml.model.run import DISK_FULL, Manifest
from traceml.model.sample import Sample
from traceml.store import failures, logged, samples
from traceml.store import folder as folders
from traceml.store.artifact_store import safe_relative
from traceml.store.joined_ranks import number_attempts, one_per_rank
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.layer_records import read_layers
from traceml.store.lineage import read_lineage
from traceml.store.node_folders import (
    NODES,
    Remark,
    group_remarks,
    node_folders,
    notes_about_nodes,
    read_node,
    read_refused,
)
from traceml.store.node_merge import FolderRecords, bring_together, ending_of_job, seen_by_all
from traceml.store.record_file import RankFiles, last_number
from traceml.store.records import (
    NodeRecords,
    RankRecords,
    RunRecords,
    TracerHealth,
)
from traceml.store.regular_files import read_regular
from traceml.store.rings import RingHead, RingReader
from traceml.store.stack_samples import read_stack_samples
from traceml.store.step_columns import Steps, columns_of
from traceml.store.step_trace_records import read_step_traces

ARTIFACTS = "artifacts.json"
READERS = 2
"""Threads that read the folders of nodes: reading and copying take most of that time, and need no
interpreter."""
MIN_NODE_SAMPLES = 12
"""Of a node, however many there are: enough to see whether memory grows."""


def ring_paths(folder: Path, manifest: Manifest) -> list[Path]:
    """Returns the rings of a run, on tmpfs or in its folder."""
    on_tmpfs = folders.ring_folder(manifest)
    places = [folder] if on_tmpfs is None else [folder, on_tmpfs]
    return sorted(path for place in places if place.is_dir() for path in place.glob("rank-*.ring"))


def drain_rings(folder: Path, everything: bool) -> list[str]:
    """Writes what the rings hold to disk; returns what could not be read or written, in words."""
    notes = []
    for path in ring_paths(folder, folders.read_manifest(folder)):
        try:
            with RingReader(path) as ring:
                files = RankFiles.of(folder, path.stem)
                try:
                    files.drain(ring, everything)
                except OSError as error:
                    notes.append(not_on_disk(error, ring, files, folder))
        except UnreadableRecords as error:
            notes.append(str(error))
    return notes


def not_on_disk(error: OSError, ring: RingReader, files: RankFiles, folder: Path) -> str:
    """Returns a sentence about a ring that could not be written to disk completely."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = DISK_FULL if full else f"The records could not be written ({error.strerror})"
    steps = f"{count(files.last_step_on_disk())} of the {count(ring.written(), 'step')}"
    return (
        f"{why}: only {steps} of rank {ring.head().rank.rank} are on disk, so the summary is "
        "incomplete; the last steps are still in memory: make room, then "
        f"`traceml recover {shell_word(folder)}` adds them"
    )


def load_run(folder: Path) -> RunRecords:
    """Returns everything that a run has on disk, from all its nodes; call `drain_rings` first where
    rings may hold more."""
    own = _read_folder(folder)
    others = _read_others(folder, own.notes)
    if others:
        bring_together(own, others)
    parts = [own, *(part for _, part in others)]
    messages = sorted((each for part in parts for each in part.messages), key=logged.unix_ns)
    notes = own.notes + group_remarks(
        (state.name, Remark(f": {note}", f": {note}"))
        for state, part in others
        for note in part.notes
    )
    metrics = logged.reduce_metrics(messages)
    if logged.is_full(metrics):
        notes.append(
            f"metrics of {count(len(metrics))} names are kept; those of further names are left "
            "out: a step's number belongs into `step=`, not into the name"
        )
    hashes = {name: entry for part in parts for name, entry in part.artifact_hashes.items()}
    artifacts = logged.artifacts(messages, hashes)
    names = len({artifact.name for artifact in artifacts})
    if names > logged.MAX_ARTIFACT_NAMES:
        notes.append(
            f"artifacts of {count(names)} names were logged, and the last "
            f"{count(logged.MAX_ARTIFACT_NAMES)} are listed: log one name again and again, and "
            "each content becomes a version of it"
        )
    every = [each for part in parts for each in part.processes]
    one_each, processes = one_per_rank(every)
    numbers = {record.rank.pid: record.rank.rank for record in one_each}
    params = logged.merge_params(messages)
    nodes = _nodes(folder, own, others, numbers)
    is_over = own.ending is not None
    expected = max(own.manifest.nodes, _expected_machines(nodes, every))
    state = read_node(folder)
    notes += notes_about_nodes(nodes, read_refused(folder), expected, is_over, state)
    found = RunRecords(
        manifest=own.manifest,
        ranks=one_each,
        processes=processes,
        starts=tuple(each for part in parts for each in part.starts),
        samples=by_final_rank(own.samples, numbers),
        ending=ending_of_job(own, others),
        params=params.values,
        param_sources=params.sources,
        metrics=metrics,
        artifacts=artifacts,
        reports=failures.in_order((each for part in parts for each in part.reports), numbers),
        seen=failures.with_final_ranks(seen_by_all([part.seen for part in parts]), numbers),
        lineage=own.lineage,
        stack_bursts=tuple(each for part in parts for each in part.stack_bursts),
        layers=tuple(each for part in parts for each in part.layers),
        step_traces=tuple(each for part in parts for each in part.step_traces),
        notes=tuple(notes),
        nodes=nodes,
    )
    return number_attempts(found)


def _read_folder(folder: Path, nodes: int = 1) -> FolderRecords:
    """Returns what the folder of one of so many nodes holds; of samples, each node's part of what
    the folder of one machine may hold."""
    manifest = folders.read_manifest(folder)
    notes: list[str] = []
    ranks, messages = [], []
    for files in RankFiles.all_in(folder):
        said = files.read_messages()
        messages.extend(said)
        try:
            head, steps = files.read_head_and_steps()
            if head is not None:
                ranks.append(rank_records(head, columns_of(steps), files.read_blocks(), said))
                notes += _damage(files)
        except UnreadableRecords as error:
            notes.append(str(error))
    marks = [folders.read_mark(folder, mark) for mark in (MOVED_MARK, TROUBLE_MARK)]
    return FolderRecords(
        manifest=manifest,
        processes=ranks,
        starts=failures.script_starts(folder),
        messages=messages,
        samples=samples.read(folder, max(MIN_NODE_SAMPLES, samples.MAX_SAMPLES // nodes)),
        ending=folders.read_ending(folder),
        reports=failures.reports(messages, failures.read_left_reports(folder)),
        seen=replace(
            failures.read_seen(folder, manifest.hostname),
            scripts=tuple(failures.script_pids(folder, manifest.hostname)),
        ),
        artifact_hashes=read_artifact_hashes(folder),
        lineage=read_lineage(folder),
        stack_bursts=read_stack_samples(folder),
        layers=read_layers(folder),
        step_traces=read_step_traces(folder),
        notes=[*notes, *(line for mark in marks if mark for line in mark.splitlines())],
    )


# Several nodes


def _read_others(folder: Path, notes: list[str]) -> list[tuple[NodeState, FolderRecords]]:
    """Returns what the folders of other nodes hold; one that cannot be read is left out, with a
    note."""
    paths = node_folders(folder)

    def read(path: Path) -> tuple[NodeState, FolderRecords] | str:
        try:
            state, part = _node_state(path), _read_folder(path, len(paths))
        except TraceMLError as error:
            return f"node {path.name} is left out: {error}"
        _find_logged_files(part, path, state)
        return state, part

    with ThreadPoolExecutor(READERS) as readers:
        found = list(readers.map(read, paths))
    notes += [each for each in found if isinstance(each, str)]
    return [each for each in found if not isinstance(each, str)]


def _find_logged_files(part: FolderRecords, folder: Path, state: NodeState) -> None:
    """Gives the files that another node logged keys that no other node's have, and says where each
    one's content is."""
    for message in part.messages:
        if message.get("kind") == "artifact":
            message["id"] = f"{folder.name}/{message.get('id', message.get('path'))}"
    part.artifact_hashes = {
        f"{folder.name}/{key}": _where_kept(entry, folder, state)
        for key, entry in part.artifact_hashes.items()
    }


def _where_kept(entry: dict[str, Any], folder: Path, state: NodeState) -> dict[str, Any]:
    """Returns what is known of a file that another node logged: its place in the run's folder where
    the nodes share that, else on which machine its content is."""
    inside = safe_relative(str(entry.get("stored") or ""))
    if inside is None:
        return entry
    if (folder / inside).exists():
        return {**entry, "stored": str(PurePath(NODES, folder.name, inside))}
    own = f"in {PurePath(state.folder, inside)}" if state.folder else "in its own run folder"
    return {**entry, "stored": None, "note": f"its content is on node {state.name}, {own}"}


def _node_state(folder: Path) -> NodeState:
    """Returns what the folder of another node says about it, under the name that it has here."""
    found = read_node(folder)
    if found is None:
        return NodeState(run_id="", name=folder.name, hostname=folder.name)
    return replace(found, name=folder.name)


def _expected_machines(nodes: Sequence[NodeRecords], processes: Sequence[RankRecords]) -> int:
    """Returns on how many machines the job ran: those whose ranks are here, and as few more as can
    hold the missing ranks; machines need not have equally many. Of a job that was restarted with
    other numbers of ranks, the largest result."""
    expected = 0
    for world in {process.rank.world_size for process in processes}:
        ranks = [each.rank for each in processes if each.rank.world_size == world]
        pids = {rank.pid for rank in ranks}
        here = sum(1 for node in nodes if not pids.isdisjoint(node.pids))
        missing = max(0, world - len({rank.rank for rank in ranks}))
        needed = here + -(-missing // max(max(1, rank.local_world_size) for rank in ranks))
        # A rank that took no step is missing, and its machine is not.
        expected = max(expected, min(needed, max(map(_machines_alike, ranks))))
    return expected


def _machines_alike(rank: Rank) -> int:
    """Returns on how many machines a rank's job runs, if all have as many ranks as its own."""
    return -(-rank.world_size // max(1, rank.local_world_size))


def _nodes(
    folder: Path,
    own: FolderRecords,
    others: list[tuple[NodeState, FolderRecords]],
    numbers: Mapping[int, int],
) -> tuple[NodeRecords, ...]:
    """Returns the nodes of a run over several machines, the head first; none for one machine.

    `numbers` are the final numbers of the ranks, by process.
    """
    head = read_node(folder)
    if not others and (head is None or head.way is not NodeWay.HEAD):
        return ()
    head = head or NodeState("", own.manifest.hostname or "head", hostname=own.manifest.hostname)
    head = replace(
        head,
        name=_name_beside(head.name, {state.name for state, _ in others}),
        way=NodeWay.HEAD,
        clock_offset_s=0.0,
        clock_uncertainty_s=0.0,
    )
    return tuple(
        NodeRecords(
            state=state,
            ranks=tuple(
                sorted({numbers[p.rank.pid] for p in part.processes if p.rank.pid in numbers})
            ),
            samples=by_final_rank(part.samples, numbers),
            ending=part.ending,
            lineage=part.lineage,
            pids=tuple(sorted({p.rank.pid for p in part.processes})),
        )
        for state, part in [(head, own), *others]
    )


def _name_beside(name: str, others: Collection[str]) -> str:
    """Returns the head's name, told from those of the other nodes: all may have one hostname."""
    return next(
        each for each in chain([name], (f"{name}-{n}" for n in count_from(1))) if each not in others
    )


def _damage(files: RankFiles) -> list[str]:
    """Returns what could not be read of a process's records, in words."""
    if not files.damaged_records:
        return []
    return [
        f"{count(files.damaged_records, 'step record')} of {files.stem} cannot be right and were "
        "left out: the disk lost or changed them; the numbers of the run lack these steps"
    ]


def by_final_rank(samples: tuple[Sample, ...], final: Mapping[int, int]) -> tuple[Sample, ...]:
    """Returns the samples with the ranks' final numbers, which are given by process."""
    if all(
        final.get(process.pid, process.rank) == process.rank
        for sample in samples
        for process in sample.processes
    ):
        return samples
    return tuple(
        replace(
            sample,
            processes=tuple(
                replace(process, rank=final.get(process.pid, process.rank))
                for process in sample.processes
            ),
        )
        for sample in samples
    )


def read_artifact_hashes(folder: Path) -> dict[str, Any]:
    """Returns what the agent found out about the logged files, by path."""
    try:
        found = load_json(read_regular(folder / ARTIFACTS))
    except (OSError, *UNDECODABLE):
        return {}
    if not isinstance(found, dict):
        return {}
    return {path: known for path, known in found.items() if isinstance(known, dict)}


def rank_records(
    head: RingHead,
    steps: Steps,
    blocks: npt.NDArray[Any],
    messages: Sequence[dict[str, Any]] = (),
) -> RankRecords:
    """Returns one process's records, with what its messages and the head of its ring or record
    file say."""
    folded = int(blocks["steps"].sum()) if len(blocks) else 0
    counters = head.counters
    return RankRecords(
        rank=head.rank,
        steps=steps,
        blocks=blocks,
        regions=head.regions,
        loader_workers=counters["loader_workers"] - 1 if counters["loader_workers"] else None,
        loader_pinned=counters["loader_pinned"] == 2 if counters["loader_pinned"] else None,
        ddp=logged.ddp_statistics(messages),
        losses=logged.loss_milestones(messages),
        settings=logged.settings(messages),
        resumption=logged.resumption(messages),
        place=logged.parallel_place(messages),
        health=TracerHealth(
            steps_lost=max(0, last_number(steps, blocks) - len(steps) - folded),
            failures=counters["failures"],
            last_failure=counters["last_failure"].rstrip(b"\0").decode(errors="replace"),
            messages_lost=logged.lost_pieces(messages),
            values_refused=counters["messages_dropped"],
            regions_dropped=counters["regions_dropped"],
            ended=bool(counters["ended"]),
            recording_ended=bool(counters["recording_ended"]),
            limit_reached=counters["recording_ended"] == record_layout.LIMIT_REACHED,
        ),
    )
