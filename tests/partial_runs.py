"""Makes runs in which phases are measured in some of the steps, or on some of the ranks, alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from factories import make_run, map_steps
from traceml.model import record_layout
from traceml.model.phase import MEASURED, Phase
from traceml.store.records import RunRecords

PART_MS = {
    **{phase.value: 10.0 for phase in MEASURED},
    Phase.INPUT.value: 4.0,
    Phase.BACKWARD.value: 20.0,
    "graph": 25.0,
}
"""Every measured phase, and replays of CUDA graphs."""
REST_MS = 3.0
GPU_TIMES = 1.3
"""How much longer everything takes on the GPU's clock: no number may come from the other."""
IN_GRAPH = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures: by rank, the share of steps that have each part; `None` is never."""

    steps: int
    shares: Sequence[Mapping[str, float | None]]
    gpu_every: int | None
    """Every so many steps are timed on the GPU; `None` is a run without one."""
    seed: int


def copies_in(share: float, steps: int = 200) -> RunRecords:
    """A run with copies of 10 ms in this share of its steps, 37 ms each without them."""

    def change(records: npt.NDArray[Any], rank: int) -> None:
        missing = np.arange(steps) % 10 >= round(10 * share)
        for name in ("body_ns", "wall_ns"):
            records[name][missing] -= records["h2d_ns"][missing]
        records["h2d_ns"][missing] = record_layout.NOT_MEASURED

    return map_steps(make_run(steps=steps, h2d_ms=10.0, noise=0.0), change)


def partial_run(plan: Plan) -> RunRecords:
    """The run of a plan; its first step is the shortest, so that nothing is warm-up."""
    run = make_run(ranks=len(plan.shares), steps=plan.steps, noise=0.0, sampled_s=0)
    random = np.random.default_rng(plan.seed)

    def change(records: npt.NDArray[Any], rank: int) -> None:
        parts = _parts(plan.shares[rank], plan.steps, random)
        body = np.full(plan.steps, round(REST_MS * 1e6))
        for name, part in parts.items():
            records[f"{name}_ns"] = part
            if name != "input":
                body += np.maximum(part, 0)
        records["body_ns"] = body
        records["wall_ns"] = body + np.maximum(parts["input"], 0)
        records["start_ns"] = np.cumsum(records["wall_ns"]) - records["wall_ns"]
        if plan.gpu_every is not None:
            _time_on_gpu(records, {**parts, "body": body}, plan.gpu_every)

    made = map_steps(run, change)
    if plan.gpu_every is None:
        return made
    on_gpu = (replace(each, rank=replace(each.rank, device="cuda:0")) for each in made.ranks)
    return replace(made, ranks=tuple(on_gpu))


def _parts(
    shares: Mapping[str, float | None], steps: int, random: np.random.Generator
) -> dict[str, npt.NDArray[np.int64]]:
    found = {}
    for name, part_ms in PART_MS.items():
        share = shares.get(name)
        factor = 1 + 0.1 * random.random(steps)
        part = np.full(steps, record_layout.NOT_MEASURED, np.int64)
        if share is not None:
            has_it = random.random(steps) < share
            has_it[0] = share == 1.0
            has_it[-1] = True
            part[has_it] = (part_ms * 1e6 * factor[has_it]).astype(np.int64)
        found[name] = part
    for name in IN_GRAPH:
        found[name][found["graph"] >= 0] = record_layout.NOT_MEASURED
    return found


def _time_on_gpu(
    records: npt.NDArray[Any], parts: Mapping[str, npt.NDArray[np.int64]], every: int
) -> None:
    timed = np.arange(len(records)) % every == every - 1
    for name, part in parts.items():
        on_gpu = np.where(
            part >= 0, (part * GPU_TIMES).astype(np.int64), record_layout.NOT_MEASURED
        )
        records[f"gpu_{name}_ns"] = np.where(timed, on_gpu, record_layout.NOT_MEASURED)


_SHARES = st.fixed_dictionaries(
    {name: st.sampled_from([None, 0.2, 0.6, 1.0]) for name in PART_MS if name != "graph"}
    | {"graph": st.sampled_from([None, None, 0.2, 0.6, 1.0])}
)
PLANS = st.builds(
    Plan,
    steps=st.integers(12, 48),
    shares=st.lists(_SHARES, min_size=1, max_size=3),
    gpu_every=st.sampled_from([None, None, 1, 2, 5]),
    seed=st.integers(0, 1000),
)
