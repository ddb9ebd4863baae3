"""Large runs that nobody trained: many ranks with a GPU each, about 100 ms a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.model.rank import Rank
from traceml.model.sample import GpuSample, HostSample, ProcessSample, Sample
from traceml.store.records import STEP_DTYPE

PER_NODE = 8
STARTED_S = 1_800_000_000.0
SHARES = {"input": 0.05, "h2d": 0.02, "forward": 0.3, "backward": 0.5, "optimizer": 0.1}


def made_steps(rank: int, count: int, slower: float = 0.0) -> npt.NDArray[Any]:
    """One rank's steps, numbered from 1."""
    random = np.random.default_rng(rank)
    steps = np.zeros(count, STEP_DTYPE)
    factor = 1 + 0.02 * random.standard_normal(count).clip(-3, 3) + slower
    for name, part in SHARES.items():
        steps[f"{name}_ns"] = steps[f"gpu_{name}_ns"] = 100e6 * part * factor
    steps["wall_ns"] = 100e6 * factor
    steps["body_ns"] = steps["gpu_body_ns"] = steps["wall_ns"] - steps["input_ns"]
    steps["start_ns"] = np.cumsum(steps["wall_ns"]) - steps["wall_ns"]
    for name in ("communication_ns", "gpu_communication_ns", "rss_bytes", "compile_ns"):
        steps[name] = record_layout.NOT_MEASURED
    steps["allocated_bytes"], steps["reserved_bytes"] = 60 << 30, 70 << 30
    steps["samples"], steps["micro_batches"], steps["optimizer_steps"] = 32, 1, 1
    steps["flags"] = int(record_layout.StepFlag.GPU_TIMED)
    steps["sequence"] = np.arange(1, count + 1)
    return steps


def made_rank(rank: int, ranks: int) -> Rank:
    """One of so many ranks, eight to a node."""
    node, local = divmod(rank, PER_NODE)
    return Rank(
        rank=rank,
        local_rank=local,
        world_size=ranks,
        local_world_size=PER_NODE,
        node_rank=node,
        pid=1000 + rank,
        hostname=f"node-{node}",
        device=f"cuda:{local}",
        device_name="NVIDIA H200",
        device_total_bytes=140 << 30,
        monotonic_ns=0,
        unix_ns=int(STARTED_S * 1e9),
    )


def made_sample(second: int, node: int = 0) -> Sample:
    """One node in one second."""
    first = node * PER_NODE
    host = HostSample(cpu_share=0.5, ram_used_bytes=1 << 38, ram_total_bytes=1 << 40)
    return Sample(
        STARTED_S + second,
        host,
        tuple(
            ProcessSample(
                n,
                1000 + n,
                cpu_cores=1.0,
                rss_bytes=8 << 30,
                threads=40,
                workers=4,
                workers_cpu_cores=0.5,
                workers_rss_bytes=4 << 30,
            )
            for n in range(first, first + PER_NODE)
        ),
        tuple(
            GpuSample(n, f"GPU-{n}", "NVIDIA H200", 0.9, 70 << 30, 140 << 30, 60.0, 600.0, 700.0)
            for n in range(PER_NODE)
        ),
    )
