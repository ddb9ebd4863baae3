"""Makes small readable runs: `make_run(ranks=4, slow_rank=2)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from traceml.diagnose.engine import diagnose
from traceml.diagnose.finding_order import STRAGGLERS
from traceml.facts.gather import gather
from traceml.model import record_layout
from traceml.model.finding import Finding, Kind, Section
from traceml.model.node import NodeState, NodeWay
from traceml.model.parallel_place import MeshDimension, ParallelPlace
from traceml.model.phase import COMPUTE, IN_BODY, MEASURED
from traceml.model.rank import Rank, Region
from traceml.model.run import Ending, Manifest
from traceml.model.sample import GpuInterval, GpuSample, HostSample, ProcessSample, Sample
from traceml.model.settings import Settings
from traceml.store.records import (
    BLOCK_DTYPE,
    STEP_DTYPE,
    NodeRecords,
    RankRecords,
    RunRecords,
)

STARTED_UNIX_S = 1_800_000_000.0
GIB = 1 << 30


def make_run(
    ranks: int = 1,
    steps: int = 200,
    *,
    input_ms: float | None = 1.0,
    forward_ms: float | None = 10.0,
    backward_ms: float | None = 20.0,
    optimizer_ms: float | None = 5.0,
    h2d_ms: float | None = None,
    communication_ms: float | None = None,
    rest_ms: float = 1.0,
    between_ms: float = 0.0,
    noise: float = 0.02,
    slow_rank: int | None = None,
    slow_ms: float = 20.0,
    first_step_ms: float | None = None,
    slowdown_at: int | None = None,
    slowdown: float = 1.5,
    gpu: bool = False,
    samples: int = 32,
    sampled_s: int = 3,
    workers: int | None = 2,
    seed: int = 0,
) -> RunRecords:
    """A run whose steps take what the arguments say, with a little seeded noise.

    `slow_rank` spends `slow_ms` more in its forward; `None` for a phase is "not measured".
    The first step of `first_step_ms` spends its excess in forward.
    """
    parts = {
        "input": input_ms,
        "h2d": h2d_ms,
        "forward": forward_ms,
        "backward": backward_ms,
        "optimizer": optimizer_ms,
        "communication": communication_ms,
    }
    made = []
    for rank in range(ranks):
        random = np.random.default_rng((seed, rank))
        factor = 1 + noise * random.standard_normal(steps).clip(-3, 3)
        if slowdown_at is not None:
            factor[slowdown_at:] *= slowdown
        own = dict(parts)
        if rank == slow_rank and forward_ms is not None:
            own["forward"] = forward_ms + slow_ms
        records = make_steps(own, factor, rest_ms, between_ms, gpu)
        if first_step_ms is not None:
            _stretch_first(records, first_step_ms, gpu)
        records["samples"] = samples
        made.append(replace(make_rank(records, rank, ranks, gpu), loader_workers=workers))
    return RunRecords(
        manifest=Manifest(run_name="made", started_unix_s=STARTED_UNIX_S - 2, nodes=1),
        ranks=tuple(made),
        samples=make_samples(ranks, sampled_s, gpu, workers),
        ending=Ending(unix_s=STARTED_UNIX_S + 60, exit_status=0),
    )


def make_steps(
    parts: dict[str, float | None],
    factor: npt.NDArray[np.float64],
    rest_ms: float = 1.0,
    between_ms: float = 0.0,
    gpu: bool = False,
) -> npt.NDArray[Any]:
    """Step records in which every part takes so many milliseconds, times the step's factor."""
    steps = len(factor)
    records = np.zeros(steps, STEP_DTYPE)
    for name, kind in record_layout.STEP:
        if kind == "q":
            records[name] = record_layout.NOT_MEASURED
    records["samples"] = record_layout.NOT_MEASURED
    records["evaluation_ns"] = records["checkpoint_ns"] = records["gc_ns"] = 0
    body = (rest_ms * 1e6 * factor).astype(np.int64)
    for name, part_ms in parts.items():
        if part_ms is None:
            continue
        part_ns = (part_ms * 1e6 * factor).astype(np.int64)
        records[f"{name}_ns"] = part_ns
        if name != "input":
            body += part_ns
    records["body_ns"] = body
    waited = np.maximum(records["input_ns"], 0)
    records["wall_ns"] = waited + body + round(between_ms * 1e6)
    records["start_ns"] = np.cumsum(records["wall_ns"]) - records["wall_ns"]
    if gpu:
        for name in ("body", *(phase.value for phase in MEASURED)):
            records[f"gpu_{name}_ns"] = records[f"{name}_ns"]
        records["allocated_bytes"] = 10 * GIB
        records["reserved_bytes"] = 12 * GIB
    number_steps(records)
    return records


def on_nodes(
    run: RunRecords, nodes: int = 2, uncertainty_s: float | None = 0.0001, **host: Any
) -> RunRecords:
    """The run on several machines, node-a the head; the sensors of each are the run's own, and
    those of the last one have these values in every sample."""
    each = len(run.ranks) // nodes
    ranks, parts = [], []
    for place in range(nodes):
        name = f"node-{chr(ord('a') + place)}" if nodes <= 26 else f"node-{place:04}"
        theirs = range(place * each, (place + 1) * each)
        ranks += [
            replace(
                run.ranks[number],
                rank=replace(
                    run.ranks[number].rank,
                    local_rank=number - theirs[0],
                    local_world_size=each,
                    node_rank=place,
                    hostname=name,
                ),
            )
            for number in theirs
        ]
        changes = host if place == nodes - 1 else {}
        samples = tuple(
            replace(
                sample,
                host=replace(sample.host, **changes),
                processes=tuple(p for p in sample.processes if p.rank in theirs),
                gpus=tuple(gpu for gpu in sample.gpus if gpu.index in theirs),
            )
            for sample in run.samples
        )
        state = NodeState(
            run_id="run",
            name=name,
            hostname=name,
            way=NodeWay.HTTP if place else NodeWay.HEAD,
            clock_offset_s=0.0,
            clock_uncertainty_s=uncertainty_s if place else 0.0,
            is_finished=True,
        )
        pids = tuple(run.ranks[number].rank.pid for number in theirs)
        parts.append(NodeRecords(state, tuple(theirs), samples, run.ending, pids=pids))
    return replace(
        run,
        manifest=replace(run.manifest, nodes=nodes, hostname=parts[0].state.name),
        ranks=tuple(ranks),
        samples=parts[0].samples,
        nodes=tuple(parts),
    )


def delay_node(run: RunRecords, place: int, by_ms: float) -> RunRecords:
    """The run in which everything on one machine happens so much later."""
    theirs = run.nodes[place].ranks
    return replace(
        run,
        ranks=tuple(
            replace(each, rank=replace(each.rank, unix_ns=each.rank.unix_ns + round(by_ms * 1e6)))
            if each.rank.rank in theirs
            else each
            for each in run.ranks
        ),
    )


def number_steps(records: npt.NDArray[Any], first: int = 0) -> None:
    """Number records as the tracer does: the sequence number plus one."""
    records["sequence"] = np.arange(first + 1, first + len(records) + 1)


def make_rank(
    steps: npt.NDArray[Any],
    rank: int = 0,
    world_size: int = 1,
    gpu: bool = False,
    blocks: npt.NDArray[Any] | None = None,
    regions: Sequence[Region] = (),
) -> RankRecords:
    """One rank of a single-node job."""
    return RankRecords(
        rank=Rank(
            rank=rank,
            local_rank=rank,
            world_size=world_size,
            local_world_size=world_size,
            node_rank=0,
            pid=1000 + rank,
            hostname="host-a",
            device=f"cuda:{rank}" if gpu else "cpu",
            device_name="NVIDIA H200" if gpu else "",
            device_total_bytes=140 * GIB if gpu else None,
            monotonic_ns=0,
            unix_ns=int(STARTED_UNIX_S * 1e9),
        ),
        steps=steps,
        blocks=np.zeros(0, BLOCK_DTYPE) if blocks is None else blocks,
        regions=tuple(regions),
    )


def make_samples(
    ranks: int, seconds: int, gpu: bool = False, workers: int | None = 2
) -> tuple[Sample, ...]:
    """One sample a second, the host half busy and each rank using one core and one GiB."""
    return tuple(
        Sample(
            unix_s=STARTED_UNIX_S + second,
            host=HostSample(cpu_share=0.5, ram_used_bytes=8 * GIB, ram_total_bytes=32 * GIB),
            processes=tuple(
                ProcessSample(
                    rank,
                    1000 + rank,
                    cpu_cores=1.0,
                    rss_bytes=GIB,
                    threads=8,
                    workers=workers,
                    train_thread_cpu_s=5.0 + 0.9 * second,
                    train_thread_wait_s=0.5 + 0.01 * second,
                )
                for rank in range(ranks)
            ),
            gpus=tuple(
                GpuSample(
                    rank,
                    f"GPU-{rank}",
                    "NVIDIA H200",
                    utilisation=0.9,
                    memory_used_bytes=14 * GIB,
                    memory_total_bytes=140 * GIB,
                    temperature_c=60.0,
                    power_w=500.0,
                )
                for rank in range(ranks if gpu else 0)
            ),
        )
        for second in range(seconds)
    )


def count_gpus(
    run: RunRecords,
    *,
    from_s: float = 0.0,
    until_s: float | None = None,
    every_s: float = 0.25,
    **shares: float | None,
) -> RunRecords:
    """The run with the counters of its GPUs read every so often, by default while steps ran.

    The times are seconds since the first step began; a sample each second holds the intervals.
    """
    last = run.ranks[0].steps[-1]
    until_s = float(last["start_ns"] + last["wall_ns"]) / 1e9 if until_s is None else until_s
    edges = np.arange(from_s, until_s + 1e-9, every_s) + STARTED_UNIX_S
    intervals = [
        GpuInterval(round(float(begin), 6), round(float(end), 6), **shares)
        for begin, end in pairwise(edges)
    ]
    return _with_intervals(run, intervals)


def _with_intervals(run: RunRecords, intervals: Sequence[GpuInterval]) -> RunRecords:
    """The run with these intervals beside those it has, in the samples of their seconds."""
    samples = {sample.unix_s: sample for sample in run.samples}
    uuids = {rank.rank.rank: rank.rank.device_uuid for rank in run.ranks}
    for interval in intervals:
        unix_s = float(np.ceil(interval.end_unix_s))
        (blank,) = make_samples(len(run.ranks), 1, gpu=True)
        found = samples.get(unix_s, replace(blank, unix_s=unix_s))
        gpus = tuple(
            replace(
                gpu,
                uuid=uuids.get(gpu.index) or gpu.uuid,
                intervals=(*gpu.intervals, interval),
            )
            for gpu in found.gpus or blank.gpus
        )
        samples[unix_s] = replace(found, gpus=gpus)
    return replace(run, samples=tuple(samples[at] for at in sorted(samples)))


def with_settings(run: RunRecords, **settings: Any) -> RunRecords:
    """The run whose ranks all said that they train with these settings."""
    known = Settings(**settings)
    return replace(run, ranks=tuple(replace(rank, settings=known) for rank in run.ranks))


def place_ranks(run: RunRecords, **dimensions: int) -> RunRecords:
    """The run whose ranks fill a device mesh with these sizes in order, the last one fastest."""
    sizes = tuple(dimensions.values())
    return replace(
        run,
        ranks=tuple(
            replace(
                rank,
                place=ParallelPlace(
                    tuple(
                        MeshDimension(name, int(at), size)
                        for (name, size), at in zip(
                            dimensions.items(), np.unravel_index(row, sizes), strict=True
                        )
                    )
                ),
            )
            for row, rank in enumerate(run.ranks)
        ),
    )


def replace_work(
    run: RunRecords,
    elements: npt.NDArray[Any],
    us_per_element: float,
    field: str = "batch_elements",
) -> RunRecords:
    """The run whose ranks had so many elements in each step, each of which took so long in
    forward."""

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        steps[field] = elements[rank]
        _lengthen(steps, "forward", (elements[rank] * us_per_element * 1e3).astype(np.int64))

    return map_steps(run, change)


def make_pipeline(
    longer_ms: float,
    micro_batches: int = 8,
    stages: int = 4,
    replicas: int = 1,
    has_bubbles: bool = True,
) -> RunRecords:
    """A pipeline in which stage 1 works so much longer, with the waits that its schedule makes."""
    ranks = range(stages * replicas)
    run = place_ranks(make_run(ranks=len(ranks), steps=60, noise=0.01), pp=stages, dp=replicas)
    run = make_late(run, *range(replicas, 2 * replicas), by_ms=longer_ms)
    run = map_steps(run, lambda steps, _: steps["micro_batches"].fill(micro_batches))
    filling_ms = 0.001
    if has_bubbles and micro_batches:
        filling_ms = (stages - 1) / micro_batches * 37.0  # of what a stage works
    return make_waiting(make_late(run, *ranks, phase="communication", by_ms=filling_ms))


def schedule(
    run: RunRecords, cpu_ms: Sequence[float | None], wait_ms: Sequence[float | None]
) -> RunRecords:
    """The run in which each rank's training thread computed, and waited for a core, so long a step.

    `None` is a system that does not tell.
    """
    walls_s = [float(rank.steps["wall_ns"].mean()) * 1e-9 for rank in run.ranks]

    def counters(process: ProcessSample, seconds: float) -> ProcessSample:
        place = process.rank
        steps = seconds / walls_s[place]
        cpu, wait = cpu_ms[place], wait_ms[place]
        return replace(
            process,
            train_thread_cpu_s=None if cpu is None else 5.0 + steps * cpu * 1e-3,
            train_thread_wait_s=None if wait is None else 0.5 + steps * wait * 1e-3,
        )

    samples = tuple(
        replace(
            sample,
            processes=tuple(
                counters(process, sample.unix_s - STARTED_UNIX_S) for process in sample.processes
            ),
        )
        for sample in run.samples
    )
    return replace(run, samples=samples)


def map_steps(run: RunRecords, change: Any) -> RunRecords:
    """The run with `change(steps, rank)` applied to a copy of every rank's records."""

    def changed(rank: RankRecords) -> RankRecords:
        steps = rank.steps.copy()
        change(steps, rank.rank.rank)
        return replace(rank, steps=steps)

    return replace(run, ranks=tuple(changed(rank) for rank in run.ranks))


def make_late(
    run: RunRecords,
    *ranks: int,
    phase: str = "forward",
    by_ms: float = 20.0,
    every: int = 1,
    since: int = 0,
) -> RunRecords:
    """The run with ranks that spend more on a phase, or on the `rest`, in every so many steps."""

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        if rank in ranks:
            extra_ns = np.zeros(len(steps), np.int64)
            extra_ns[since::every] = round(by_ms * 1e6)
            _lengthen(steps, phase, extra_ns)

    return map_steps(run, change)


def make_waiting(run: RunRecords, where: str = "communication") -> RunRecords:
    """The run with ranks that wait for the slowest in every step; there the wait is charged."""
    walls_ns = np.stack([rank.steps["wall_ns"] for rank in run.ranks])
    behind_ns = walls_ns.max(axis=0) - walls_ns

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        _lengthen(steps, where, behind_ns[rank])

    return map_steps(run, change)


def _lengthen(steps: npt.NDArray[Any], phase: str, extra_ns: npt.NDArray[np.int64]) -> None:
    outer = () if phase == "input" else ("body",)
    inner = () if phase == "rest" else (phase,)
    on_gpu = bool((steps["gpu_body_ns"] >= 0).any())
    for name in (*outer, *inner):
        for clock in ("", "gpu_") if on_gpu else ("",):
            field = f"{clock}{name}_ns"
            steps[field] = np.maximum(steps[field], 0) + extra_ns
    steps["wall_ns"] += extra_ns
    steps["start_ns"] = np.cumsum(steps["wall_ns"]) - steps["wall_ns"]


def _stretch_first(records: npt.NDArray[Any], first_step_ms: float, gpu: bool) -> None:
    extra = round(first_step_ms * 1e6) - int(records["wall_ns"][0])
    for name in ("wall_ns", "body_ns", "forward_ns"):
        records[name][0] += extra
        if gpu and name != "wall_ns":
            records[f"gpu_{name}"][0] += extra
    records["start_ns"] = np.cumsum(records["wall_ns"]) - records["wall_ns"]


def spend(
    run: RunRecords,
    name: str,
    each_ms: float,
    every: int = 1,
    hidden: bool = False,
    is_in_turn: bool = False,
) -> RunRecords:
    """The run with time spent on `gc`, `logging`, `compile` or `sync` in every so many steps.

    It lengthens the body on both clocks; what is `hidden` behind a busy GPU only the host's. With
    `is_in_turn` the ranks spend it in different steps, else all of them in the same ones.
    """

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        first = (every - 1 + (rank if is_in_turn else 0)) % every
        steps[f"{name}_ns"] = 0
        steps[f"{name}_ns"][first::every] = round(each_ms * 1e6)
        for field in ("body_ns", "wall_ns"):
            steps[field] += steps[f"{name}_ns"]
        if not hidden:
            steps["gpu_body_ns"] += np.where(steps["gpu_body_ns"] < 0, 0, steps[f"{name}_ns"])

    return map_steps(run, change)


def count_syncs(run: RunRecords, each: int) -> RunRecords:
    """The run with so many waits for the device counted in every step."""

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        steps["syncs"] = each

    return map_steps(run, change)


def idle_gpu(run: RunRecords, rest: float = 1.0, launching: float = 0.0) -> RunRecords:
    """The run with an account of the GPU's idle time: these shares of its rest and its compute.

    In the rest, what the host spent on pauses and waits comes first, and its own code has the
    remainder.
    """

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        def at_least_zero(name: str) -> npt.NDArray[Any]:
            return np.maximum(steps[name], 0)

        compute = sum(at_least_zero(f"gpu_{name.value}_ns") for name in COMPUTE)
        others = sum(at_least_zero(f"gpu_{name.value}_ns") for name in IN_BODY) - compute
        left = (rest * np.maximum(steps["gpu_body_ns"] - compute - others, 0)).astype(np.int64)
        steps["gpu_idle_between_ns"] = left
        for cause in ("compile", "gc", "logging", "sync"):
            steps[f"gpu_idle_{cause}_ns"] = np.minimum(at_least_zero(f"{cause}_ns"), left)
            left = left - steps[f"gpu_idle_{cause}_ns"]
        steps["gpu_idle_python_ns"] = left
        steps["gpu_idle_launching_ns"] = (launching * compute).astype(np.int64)

    return map_steps(run, change)


def stall(run: RunRecords, phase: str, by_s: float, *steps_late: int) -> RunRecords:
    """The run with single steps (counted from 1) that stand still in a phase or in the `rest`."""

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        extra_ns = np.zeros(len(steps), np.int64)
        extra_ns[[number - 1 for number in steps_late]] = round(by_s * 1e9)
        _lengthen(steps, phase, extra_ns)

    return map_steps(run, change)


def work_between(run: RunRecords, name: str, each_ms: float, every: int = 1) -> RunRecords:
    """The run with an `evaluation` or a `checkpoint` after every so many steps."""

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        steps[f"{name}_ns"][every - 1 :: every] = round(each_ms * 1e6)
        steps["wall_ns"] += steps[f"{name}_ns"]

    return map_steps(run, change)


def flag_steps(run: RunRecords, watched: int, seen: int, seen_share: float) -> RunRecords:
    """The run with every step watched, and something seen in this share of them."""

    def change(steps: npt.NDArray[Any], rank: int) -> None:
        steps["flags"] |= np.uint32(watched)
        steps["flags"][: round(len(steps) * seen_share)] |= np.uint32(seen)

    return map_steps(run, change)


# Tables of rules: by the rule's file, then by words


def rule_cases(table: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """Returns the cases of a table as parameters of a test: the rule, and what it is tried on."""
    return [
        pytest.param(rule, case, id=f"{rule}, {name}")
        for rule, by_name in table.items()
        for name, case in by_name.items()
    ]


def check_rule(rule: str, run: RunRecords) -> Finding | None:
    """Returns what one rule says of a run."""
    found: Finding | None = import_module(f"traceml.diagnose.rules.{rule}").check(gather(run))
    return found


def told_without_straggler(run: RunRecords) -> set[Kind]:
    """Returns what is told of a run's steps; empty where a rank is called a straggler."""
    kinds = {each.kind for each in diagnose(gather(run)).sections[Section.STEP_TIME]}
    return set() if kinds & STRAGGLERS else kinds
