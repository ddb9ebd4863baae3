"""What each metric was on a side, run by run, and how well its change is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec import structs

from traceml.compare import statistics
from traceml.compare.record import SIGNIFICANT, Delta
from traceml.compare.sides import Sides
from traceml.compare.statistics import Change
from traceml.compare.student import reach, together, two_sided_p
from traceml.compare.terms import Endpoint
from traceml.compare.within import within_run
from traceml.model.finding import Section
from traceml.summaries.record import SectionSummary, Summary

Values = Mapping[str, "float | None"]


@dataclass(frozen=True, slots=True)
class Observed:
    """How an endpoint moved, and what the runs show of it."""

    endpoint: Endpoint
    metric: str
    delta: Delta
    change: Change | None = None
    """`None` where nothing shows how far chance alone would have moved it."""
    rank_test: tuple[str, float] | None = None

    @property
    def got_worse(self) -> bool:
        """Whether the change is one for the worse."""
        grew = (self.delta.delta or 0.0) > 0 if self.change is None else self.change.ratio > 1
        return grew != self.endpoint.more_is_better

    @property
    def factor(self) -> float | None:
        """How many times the smaller side the larger is, so that a change counts as its reverse."""
        lhs, rhs = self.delta.lhs, self.delta.rhs
        if self.change is not None and self.change.p is not None:  # of several runs
            lhs, rhs = 1.0, self.change.ratio
        return factor_between(lhs, rhs)


def factor_between(lhs: float | None, rhs: float | None) -> float | None:
    """The larger over the smaller; `None` where either is not measured or nothing."""
    if lhs is None or rhs is None or min(lhs, rhs) <= 0:
        return None
    return max(lhs, rhs) / min(lhs, rhs)


@dataclass(frozen=True, slots=True)
class Known:
    """One number of the runs that have it; paired, they stand side by side."""

    a: list[float]
    b: list[float]
    paired: bool = False


def section_of(summary: Summary, section: Section) -> SectionSummary | None:
    """A summary's section."""
    found: SectionSummary | None = getattr(summary, section.value)
    return found


def values(section: Section, summary: Summary) -> Values:
    """The number each metric is compared by: the average, for memory that of the worst rank."""
    found = section_of(summary, section)
    if found is None:
        return {}
    average = found.global_.average
    if section is Section.STEP_TIME:
        return {**average, **_derived(average)}
    if section is not Section.STEP_MEMORY:
        return average
    worst = {
        name: place.value for name, place in found.global_.worst.items() if place.value is not None
    }
    return {**average, **worst}


def _derived(average: Values) -> dict[str, float]:
    """What follows from a step's numbers and makes runs comparable or readable."""
    found = {}
    step, body, compute = (
        average.get(name) for name in ("step_time_ms", "traced_step_time_ms", "compute_ms")
    )
    if step and body is not None and compute is not None:
        found["wait_share_percent"] = 100 * (body - compute) / step
    samples_per_s, steps_per_s = average.get("samples_per_s"), average.get("steps_per_s")
    if samples_per_s and steps_per_s:
        found["samples_per_step"] = samples_per_s / steps_per_s
        if step:
            found["sample_time_ms"] = step / found["samples_per_step"]
    return {name: value for name, value in found.items() if math.isfinite(value)}


def deltas(section: Section, sides: Sides) -> dict[str, Delta]:
    """Every metric's change, with its interval and p where several runs give one."""
    left, right = ([values(section, run) for run in side] for side in (sides.a, sides.b))
    names = {name: None for run in (*left, *right) for name in run}
    return {
        name: delta_of([run.get(name) for run in left], [run.get(name) for run in right], sides)
        for name in names
    }


def delta_of(a: Sequence[float | None], b: Sequence[float | None], sides: Sides) -> Delta:
    """One number's change; `a` and `b` hold it run by run."""
    known = _known(a, b, sides)
    plain = Delta.between(_mean(known.a), _mean(known.b))
    if plain.delta is None or min(len(known.a), len(known.b)) < 2:
        return plain
    scale = max(map(abs, (*known.a, *known.b))) or 1.0  # squares of extreme numbers are none
    left, right = ([value / scale for value in side] for side in (known.a, known.b))
    if known.paired:
        error = statistics.mean_error([y - x for x, y in zip(left, right, strict=True)])
    else:
        error = together((statistics.mean_error(left), statistics.mean_error(right)))
    around = (reach(error) if error.size else 0.0) * scale
    return structs.replace(
        plain,
        interval=(plain.delta - around, plain.delta + around),
        p=two_sided_p(plain.delta / scale, error),
    )


def _mean(found: Sequence[float]) -> float | None:
    if not found:
        return None
    scale = max(map(abs, found)) or 1.0
    return fmean(x / scale for x in found) * scale if len(found) > 1 else found[0]


def _known(a: Sequence[float | None], b: Sequence[float | None], sides: Sides) -> Known:
    """The runs that have the number; of a pair both or neither, while enough pairs are left."""
    if sides.paired_by:
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        if len(pairs) >= statistics.FEWEST_PAIRS:
            return Known([x for x, _ in pairs], [y for _, y in pairs], paired=True)
    return Known([x for x in a if x is not None], [y for y in b if y is not None])


def observe(endpoint: Endpoint, sides: Sides) -> Observed:
    """How an endpoint moved between the sides."""
    found = [[values(endpoint.section, run) for run in side] for side in (sides.a, sides.b)]
    by_metric = {
        metric: [[run.get(metric) for run in side] for side in found] for metric in endpoint.metrics
    }
    changes = {metric: delta_of(a, b, sides) for metric, (a, b) in by_metric.items()}
    metric = max(changes, key=lambda name: _sides_measured(changes[name]))  # of a tie, the first
    delta, (a, b) = changes[metric], by_metric[metric]
    known = _known(a, b, sides)
    if not known.a or not known.b or min(*known.a, *known.b) <= 0:
        return Observed(endpoint, metric, delta)
    if not sides.several:
        change = _of_one_run_each(endpoint, sides, known.a[0], known.b[0])
        return Observed(endpoint, metric, _with_change(delta, change), change)
    if len(known.a) + len(known.b) < 3:
        return Observed(endpoint, metric, delta)
    test = statistics.between_pairs if known.paired else statistics.between_groups
    change = test(known.a, known.b)
    ranks = statistics.rank_test(known.a, known.b, known.paired)
    return Observed(endpoint, metric, _with_change(delta, change), change, ranks)


def _sides_measured(delta: Delta) -> int:
    return sum(value is not None for value in (delta.lhs, delta.rhs))


def _of_one_run_each(endpoint: Endpoint, sides: Sides, a: float, b: float) -> Change | None:
    if not endpoint.of_steps:
        return None
    errors = [
        within_run(run.steps, values(Section.STEP_TIME, run).get("step_time_ms") or 0.0)
        for run in (sides.a[0], sides.b[0])
    ]
    if errors[0] is None or errors[1] is None:
        return None
    return statistics.between_two_runs(a, b, errors[0], errors[1])


def _with_change(delta: Delta, change: Change | None) -> Delta:
    """The interval of the ratio as one of the difference."""
    if change is None or delta.lhs is None:
        return delta
    interval = (delta.lhs * (change.low - 1), delta.lhs * (change.high - 1))
    significant = None if change.p is None else change.p < SIGNIFICANT
    return structs.replace(delta, interval=interval, p=change.p, significant=significant)
