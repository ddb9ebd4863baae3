"""What a result took: the cost until a metric had a value, and which runs no other beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from traceml.compare.many_record import Cost, Pareto, RunEntry
from traceml.model.finding import Section
from traceml.summaries.record import Summary

JOULES_PER_KWH = 3.6e6


def gpus_of(run: Summary) -> int | None:
    """Returns how many GPUs a run used; `None` where it used none, or nobody knows."""
    seen = run.meta.gpus_observed
    if not seen:
        return None
    return min(seen, run.meta.world_size or seen)


def cost_of(run: Summary, time_s: float | None) -> Cost:
    """Returns what so much time of a run took: GPU hours, and energy where power was sampled."""
    gpus = gpus_of(run)
    if time_s is None or gpus is None:
        return Cost(time_s)
    system = getattr(run, Section.SYSTEM.value)
    power_w = system.global_.average.get("gpu_power_w") if system else None
    energy = None if power_w is None else power_w * gpus * time_s / JOULES_PER_KWH
    return Cost(time_s, gpus * time_s / 3600, energy)


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Returns the mean of several costs; of each part only where all have it."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    return Cost(
        mean([cost.time_s for cost in costs]),
        mean([cost.gpu_hours for cost in costs]),
        mean([cost.energy_kwh for cost in costs]),
    )


def first_reached_s(
    curve: Sequence[tuple[float, float]], target: float, higher_is_better: bool
) -> float | None:
    """Returns when a metric was first at least as good as the target; `None` where it never was."""
    for at_s, value in curve:
        if value >= target if higher_is_better else value <= target:
            return at_s
    return None


def pareto_front(
    metric: str,
    quality: Mapping[str, float | None],
    higher_is_better: bool,
    entries: Sequence[RunEntry],
) -> Pareto | None:
    """Returns the entries that no other beats in quality and cost together.

    The cost is GPU hours where all entries have them, else the duration; `None` with fewer than two
    entries that have both.
    """
    by_gpu = all(entry.gpu_hours is not None for entry in entries)
    points: dict[str, tuple[float, float]] = {}
    for entry in entries:
        cost = entry.gpu_hours if by_gpu else entry.duration_s
        value = quality.get(entry.label)
        if cost is not None and value is not None:
            points[entry.label] = (-value if higher_is_better else value, cost)
    if len(points) < 2:
        return None
    dominated = {
        label: other
        for label, point in points.items()
        if (other := _better_one(label, point, points)) is not None
    }
    return Pareto(
        metric=metric,
        cost="gpu_hours" if by_gpu else "duration_s",
        front=tuple(label for label in points if label not in dominated),
        dominated_by=dominated,
    )


def front_places(
    costs: Sequence[float | None], qualities: Sequence[float | None], higher_is_better: bool
) -> list[int]:
    """Returns the places of the runs that no other beats in cost and quality together, from the
    cheapest on; of equal runs all. Runs that lack either are in no front."""
    sign = -1.0 if higher_is_better else 1.0
    points = sorted(
        (cost, sign * quality, place)
        for place, (cost, quality) in enumerate(zip(costs, qualities, strict=True))
        if cost is not None and quality is not None
    )
    front: list[tuple[float, float, int]] = []
    for point in points:
        if not front or point[1] < front[-1][1] or point[:2] == front[-1][:2]:
            front.append(point)
    return [place for _, _, place in front]


def _better_one(
    label: str, point: tuple[float, float], points: Mapping[str, tuple[float, float]]
) -> str | None:
    """Returns the best of the entries that are at least as good in both and better in one."""
    found = [
        (other_point, other)
        for other, other_point in points.items()
        if other != label
        and other_point != point
        and all(mine >= theirs for mine, theirs in zip(point, other_point, strict=True))
    ]
    return min(found)[1] if found else None
