"""What the blocks of one run's steps say of each metric of the step time: its mean's error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from traceml.compare.student import Error
from traceml.compare.within import error_of_mean, share_of_mean, within_run
from traceml.model.phase import COMPUTE, COMPUTE_PART, PHASES, Phase
from traceml.summaries.record import StepSeries

Blocks = Sequence[float]

_METRICS = {
    **{phase.value: entry.metric for phase, entry in PHASES.items()},
    "wall": "wall_step_ms",
}
"""The metric of a part where it is not called like the part."""


def errors_of_steps(
    series: StepSeries | None, values: Mapping[str, float | None]
) -> dict[str, Error]:
    """By metric, each in the metric's own unit; what the steps do not show is left out."""
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
                found[metric] = Error(share.size * value, share.freedom)
    return {metric: error for metric, error in found.items() if math.isfinite(error.size)}


def _as_share(error: Error | None, mean: float | None) -> Error | None:
    return Error(error.size / mean, error.freedom) if error and mean else None


def _larger(of_steps: Error | None, of_parts: Error | None) -> Error | None:
    """The step's error: its mean is that of its parts, which may be timed now and then.

    Then every step has a time on the host's clock, but only the timed ones are in the mean.
    """
    known = [error for error in (of_steps, of_parts) if error is not None]
    return max(known, key=lambda error: error.size, default=None)


def _errors_of_parts(parts: Mapping[str, Blocks]) -> dict[str, Error]:
    largest = max((abs(each) for blocks in parts.values() for each in blocks), default=0.0) or 1.0
    # As shares of the largest: sums of extreme numbers are none.
    shares = {name: [each / largest for each in blocks] for name, blocks in parts.items()}
    found = {}
    for metric, blocks in _by_metric(shares).items():
        error = error_of_mean(blocks)
        if error is not None:
            scale = largest if metric.endswith("_ms") else 1.0
            found[metric] = Error(error.size * scale, error.freedom)
    return found


def _by_metric(parts: Mapping[str, Blocks]) -> dict[str, Blocks]:
    """The blocks that the file has, and those that follow from them."""
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
    """What the phases come to; `None` where one of them is missing."""
    compute = parts.get(COMPUTE_PART) or _sum([parts.get(phase.value) for phase in COMPUTE])
    copies = parts.get(Phase.H2D.value)
    rest = parts.get(Phase.RESIDUAL.value)
    wait = rest if copies is None else _sum([rest, copies])
    body = _sum([compute, wait])
    waited = parts.get(Phase.INPUT.value)
    step = body if waited is None else _sum([body, waited])
    return {"compute": compute, "wait": wait, "body": body, "step": step}


def _sum(parts: Sequence[Blocks | None]) -> Blocks | None:
    """Block by block; `None` where one is missing, or has other blocks than the rest."""
    known = [blocks for blocks in parts if blocks]
    if len(known) < len(parts) or len({len(blocks) for blocks in known}) > 1:
        return None
    return [sum(each) for each in zip(*known, strict=True)]


def _share_of(part: Blocks | None, whole: Blocks | None) -> Blocks | None:
    """How far each block moves the ratio of the two sums, in percent points."""
    if not part or not whole or len(part) != len(whole) or sum(whole) <= 0:
        return None
    ratio, mean = sum(part) / sum(whole), sum(whole) / len(whole)
    return [100 * (x - ratio * y) / mean for x, y in zip(part, whole, strict=True)]
