"""Runs over many machines that nobody trained: folders as the head of such a run has them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.large_summary import rank_files, write_rank
from benchmarks.made_runs import PER_NODE, STARTED_S, made_rank, made_sample, made_steps
from traceml.agent.node_recovery import mark_finished
from traceml.model.node import HeadAddress, NodeState, NodeWay
from traceml.model.run import Ending, Manifest
from traceml.steps import events
from traceml.store import folder as folders
from traceml.store.node_folders import NODES, write_node
from traceml.store.record_file import RankFiles
from traceml.store.samples import SampleFile
from traceml.trace import ring as rings
from traceml.trace.recorder import Recorder

SAMPLES = 100
_TIMES = tuple(
    name
    for phase in ("input", "h2d", "forward", "backward", "optimizer", "body")
    for name in (f"{phase}_ns", f"gpu_{phase}_ns")
)


def begin_node(folder: Path, node: int, nodes: int, run_id: str = "run") -> None:
    """Writes what a node's folder begins with."""
    folder.mkdir(parents=True, exist_ok=True)
    world = nodes * PER_NODE
    folders.write_manifest(
        folder,
        Manifest("large", STARTED_S - 5, expected_world_size=world, nodes=nodes),
    )
    way = NodeWay.HTTP if node else NodeWay.HEAD
    state = NodeState(run_id, f"node-{node}", str(node), f"node-{node}", way, clock_offset_s=0.0)
    write_node(folder, state)


def write_nodes(folder: Path, nodes: int, steps: int, samples: int = SAMPLES) -> None:
    """Writes a whole run that has ended: eight ranks and so many samples on each node."""
    for node in range(nodes):
        place = folder / NODES / f"node-{node}" if node else folder
        begin_node(place, node, nodes)
        for rank in range(node * PER_NODE, (node + 1) * PER_NODE):
            write_rank(place, rank, nodes * PER_NODE, steps)
        file = SampleFile(place)
        for second in range(samples):
            file.append(made_sample(second, node))
        folders.write_ending(place, Ending(STARTED_S + samples, 0))
        mark_finished(place, is_finished=True)


class StragglingJob:
    """Steps that many ranks take together; from some step on, the ranks of one node take longer
    for the forward pass, and all others wait for them when gradients are exchanged."""

    def __init__(self, step_s: float, slow_node: int, longer: float = 0.4) -> None:
        self._step_ns = round(step_s * 1e9)
        self._slow_node = slow_node
        self._extra_ns = 0
        self._longer_ns = round(longer * self._step_ns)
        self._next_ns = time.perf_counter_ns()
        self._taken = 0

    def begin_straggling(self) -> float:
        """The next step is the first slow one; returns when it begins, in seconds since 1970."""
        self._extra_ns = self._longer_ns
        return time.time() + (self._next_ns - time.perf_counter_ns()) / 1e9

    def steps_until(self, now_ns: int) -> tuple[int, int, int, int]:
        """Returns the steps that have ended since the last call: the number of the first, how many,
        when it began, and how much longer the slow node takes."""
        wall_ns = self._step_ns + self._extra_ns
        count = max(0, (now_ns - self._next_ns) // wall_ns)
        due = self._taken + 1, count, self._next_ns, self._extra_ns
        self._taken += count
        self._next_ns += count * wall_ns
        return due

    def steps_of(
        self, rank: int, first: int, count: int, begin_ns: int, extra_ns: int
    ) -> npt.NDArray[Any]:
        """Returns one rank's records of those steps."""
        steps = made_steps(rank + 65_537 * first, count)
        scale = self._step_ns / 100e6
        for name in _TIMES:
            is_measured = steps[name] >= 0
            steps[name][is_measured] = steps[name][is_measured] * scale
        is_slow = rank // PER_NODE == self._slow_node
        exchange_ns = self._step_ns // 20 + (0 if is_slow else extra_ns)
        for prefix in ("", "gpu_"):
            steps[f"{prefix}forward_ns"] += extra_ns if is_slow else 0
            steps[f"{prefix}backward_ns"] -= self._step_ns // 20
            steps[f"{prefix}communication_ns"] = exchange_ns
            steps[f"{prefix}body_ns"] += extra_ns
        steps["wall_ns"] = self._step_ns + extra_ns
        steps["start_ns"] = begin_ns + np.arange(count) * (self._step_ns + extra_ns)
        steps["sequence"] = np.arange(first, first + count)
        return steps


class MadeNode:
    """A node's folder, as its agent would write it while eight ranks train."""

    def __init__(self, folder: Path, node: int, nodes: int, address: HeadAddress) -> None:
        self.folder = folder
        self._node = node
        begin_node(folder, node, nodes, address.run_id)
        self._samples = SampleFile(folder)
        self._sampled_s = 0.0
        self._ranks: dict[int, tuple[RankFiles, bytes]] = {}
        for rank in range(node * PER_NODE, (node + 1) * PER_NODE):
            made = replace(
                made_rank(rank, nodes * PER_NODE),
                monotonic_ns=time.perf_counter_ns(),
                unix_ns=time.time_ns(),
            )
            self._ranks[rank] = rank_files(folder, made)

    def append(self, job: StragglingJob, *due: int) -> None:
        """Appends the steps that are due, and a sample once a second."""
        for rank, (files, head) in self._ranks.items():
            if due[1]:
                files._append(head, job.steps_of(rank, *due))
        if time.time() - self._sampled_s >= 1.0:
            self._sampled_s = time.time()
            self._samples.append(replace(made_sample(0, self._node), unix_s=self._sampled_s))


class MadeTraining:
    """The rings of eight ranks in this process, with the events of a plain training loop."""

    def __init__(self, folder: Path, step_s: float) -> None:
        self._step_s = step_s
        self._ranks: list[Recorder] = []
        for rank in range(PER_NODE):
            made = replace(
                made_rank(rank, 2 * PER_NODE),
                pid=os.getpid(),
                monotonic_ns=time.perf_counter_ns(),
                unix_ns=time.time_ns(),
            )
            ring = rings.create([folder], f"rank-{rank}-{os.getpid()}.ring")
            ring.identify(made)
            recorder = Recorder()
            place = ring.mapping, ring.event_base, ring.event_capacity
            ring.begin_events(recorder.move_to(*place), 0)
            self._ranks.append(recorder)

    def train(self, seconds: float) -> None:
        """Takes steps for so long."""
        until_s = next_s = time.monotonic()
        until_s += seconds
        while next_s < until_s:
            for note in (_fetch, _forward, _backward, _optimize):
                for recorder in self._ranks:
                    note(recorder)
                next_s += self._step_s / 4
                time.sleep(max(0.0, next_s - time.monotonic()))


def _fetch(recorder: Recorder) -> None:
    recorder.note(events.BEGIN_FETCH, 1)
    recorder.note(events.END_FETCH, 32)


def _forward(recorder: Recorder) -> None:
    recorder.note(events.BEGIN_FORWARD, 3)
    recorder.note(events.END_FORWARD, 3)


def _backward(recorder: Recorder) -> None:
    recorder.note(events.BEGIN_BACKWARD)
    recorder.note(events.END_BACKWARD, recorder.ends)


def _optimize(recorder: Recorder) -> None:
    recorder.note(events.BEGIN_OPTIMIZER, 1)
    recorder.ends += 1
    recorder.note(events.END_OPTIMIZER, events.optimizer_ended(recorder.ends, 1))
