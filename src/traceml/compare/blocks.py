"""The standard error of each step-time metric, from the blocks of one run's steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from traceml.compare.students_t import MeanError
from traceml.compare.within_run_error import error_of_mean, share_of_mean, within_run
from traceml.model.phase import COMPUTE, COMPUTE_PART, PHASES, Phase
from traceml.summaries.record import StepSeries

Blocks = Sequence[float]

_METRICS = {
    **{phase.value: entry.metric for phase, entry in PHASES.items()},
    "wall": "wall_step_ms",
}
"""The metric of each part whose name is not simply the part's with its unit."""


def errors_of_steps(
    series: StepSeries | None, values: Mapping[str, float | None]
) -> dict[str, MeanError]:
    """Returns the errors by metric, each in the metric's unit; metrics without blocks are left
    out."""
    if series is None:
        return {}
    found = _errors_of_parts(series.part_block_means_ms)
    step = _larger(
        within_run(series, values.get("step_time_ms") or 0.0),
        share_of_mean(_sums(series.part_block_means_ms)["step"] or ()),
    )
    wall = _as_share(found.get("wall_step_ms"), values.get("wall_step_ms"))
    for metrics, share in (
        (("step_time_ms", "sample_time_ms"), step),
        (("steps_per_s", "samples_per_s"), wall),
    ):
        for metric in metrics:
            value = values.get(metric)
            if share is not None and value is not None:
                found[metric] = MeanError(share.size * value, share.freedom)
    return {metric: error for metric, error in found.items() if math.isfinite(error.size)}


def _as_share(error: MeanError | None, mean: float | None) -> MeanError | None:
    return MeanError(error.size / mean, error.freedom) if error and mean else None


def _larger(of_steps: MeanError | None, of_parts: MeanError | None) -> MeanError | None:
    """Returns the larger of the two errors of the step.

    The mean of the step is the sum of its parts. If those are timed only now and then, the host's
    clock has every step, but only the timed ones are in the mean.
    """
    known = [error for error in (of_steps, of_parts) if error is not None]
    return max(known, key=lambda error: error.size, default=None)


def _errors_of_parts(parts: Mapping[str, Blocks]) -> dict[str, MeanError]:
    largest = max((abs(each) for blocks in parts.values() for each in blocks), default=0.0) or 1.0
    # As shares of the largest: sums of extreme numbers are none.
    shares = {name: [each / largest for each in blocks] for name, blocks in parts.items()}
    found = {}
    for metric, blocks in _by_metric(shares).items():
        error = error_of_mean(blocks)
        if error is not None:
            scale = largest if metric.endswith("_ms") else 1.0
            found[metric] = MeanError(error.size * scale, error.freedom)
    return found


def _by_metric(parts: Mapping[str, Blocks]) -> dict[str, Blocks]:
    """Returns the blocks in the file, and those that follow from them."""
    found = {_METRICS.get(part, f"{part}_ms"): blocks for part, blocks in parts.items()}
    sums = _sums(parts)
    derived = {
        "compute_ms": sums["compute"],
        "wait_ms": sums["wait"],
        "traced_step_time_ms": sums["body"],
        "wait_share_percent": _share_of(sums["wait"], sums["step"]),
    }
    return found | {metric: blocks for metric, blocks in derived.items() if blocks}


def _sums(parts: Mapping[str, Blocks]) -> dict[str, Blocks | None]:
    """Returns the block-wise sums of the phases; `None` where a phase is missing."""
    compute = parts.get(COMPUTE_PART) or _sum([parts.get(phase.value) for phase in COMPUTE])
    copies = parts.get(Phase.H2D.value)
    rest = parts.get(Phase.RESIDUAL.value)
    wait = rest if copies is None else _sum([rest, copies])
    body = _sum([compute, wait])
    waited = parts.get(Phase.INPUT.value)
    step = body if waited is None else _sum([body, waited])
    return {"compute": compute, "wait": wait, "body": body, "step": step}


def _sum(parts: Sequence[Blocks | None]) -> Blocks | None:
    """Returns the block-wise sum; `None` where one is missing or has different blocks."""
    known = [blocks for blocks in parts if blocks]
    if len(known) < len(parts) or len({len(blocks) for blocks in known}) > 1:
        return None
    return [sum(each) for each in zip(*known, strict=True)]


def _share_of(part: Blocks | None, whole: Blocks | None) -> Blocks | None:
    """Returns by how much each block changes the ratio of the two sums, in percentage points."""
    if not part or not whole or len(part) != len(whole) or sum(whole) <= 0:
        return None
    ratio, mean = sum(part) / sum(whole), sum(whole) / len(whole)
    return [100 * (x - ratio * y) / mean for x, y in zip(part, whole, strict=True)]
