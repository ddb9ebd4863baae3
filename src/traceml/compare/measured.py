"""The value of each metric on each side, run by run, and the uncertainty of its change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec import structs

from traceml.compare import statistics
from traceml.compare.blocks import errors_of_steps
from traceml.compare.record import SIGNIFICANT, Delta
from traceml.compare.sides import Sides
from traceml.compare.statistics import RatioEstimate
from traceml.compare.students_t import CONFIDENCE, MeanError, reach, together, two_sided_p
from traceml.compare.terms import Endpoint
from traceml.model.finding import Section
from traceml.summaries.record import SectionSummary, Summary

NEAR = 1.1
"""Up to this ratio, the intervals of ratio and difference agree to within a twentieth."""

Values = Mapping[str, "float | None"]


@dataclass(frozen=True, slots=True)
class Observed:
    """How an endpoint changed, and what the runs show about it."""

    endpoint: Endpoint
    metric: str
    delta: Delta
    change: RatioEstimate | None = None
    """`None` where nothing shows how much it varies by chance."""
    rank_test: tuple[str, float] | None = None
    method: str | None = None
    """The test behind the p-value of a logged metric's `delta`; that of a ratio is in `change`."""
    run_spread: MeanError | None = None
    """The standard deviation of a logged metric from run to run."""
    deciding_interval: tuple[float, float] | None = None
    """Of a logged metric's `delta`, at the confidence of one look; that of a ratio is in
    `change`."""

    @property
    def got_worse(self) -> bool:
        """Returns whether the change is for the worse."""
        grew = (self.delta.delta or 0.0) > 0 if self.change is None else self.change.ratio > 1
        return grew != self.endpoint.more_is_better

    @property
    def factor(self) -> float | None:
        """The larger side divided by the smaller, so that a change and its reverse count alike."""
        lhs, rhs = self.delta.lhs, self.delta.rhs
        if self.change is not None and self.change.p is not None:  # of several runs
            lhs, rhs = 1.0, self.change.ratio
        return factor_between(lhs, rhs)


def factor_between(lhs: float | None, rhs: float | None) -> float | None:
    """Returns the larger value divided by the smaller; `None` where either is missing or zero."""
    if lhs is None or rhs is None or min(lhs, rhs) <= 0:
        return None
    return max(lhs, rhs) / min(lhs, rhs)


@dataclass(frozen=True, slots=True)
class Known:
    """One metric of the runs that have it; if paired, in the same order."""

    a: list[float]
    b: list[float]
    paired: bool = False


def section_of(summary: Summary, section: Section) -> SectionSummary | None:
    """Returns a section of a summary."""
    found: SectionSummary | None = getattr(summary, section.value)
    return found


def values(section: Section, summary: Summary) -> Values:
    """Returns the value by which each metric is compared: the average; for memory, that of the
    worst rank."""
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
    """Returns metrics that follow from a step's numbers, such as time per sample."""
    found = {}
    step, body, compute = (
        average.get(name) for name in ("step_time_ms", "traced_step_time_ms", "compute_ms")
    )
    if step and body is not None and compute is not None:
        found["wait_share_percent"] = 100 * (body - compute) / step
    samples_per_s, steps_per_s = average.get("samples_per_s"), average.get("steps_per_s")
    if samples_per_s and steps_per_s:
        found["samples_per_step"] = samples_per_step = samples_per_s / steps_per_s
        if step and samples_per_step:  # it may be too small for a number
            found["sample_time_ms"] = step / samples_per_step
    return {name: value for name, value in found.items() if math.isfinite(value)}


def deltas(section: Section, sides: Sides) -> dict[str, Delta]:
    """Returns every metric's change, with its interval where the runs or their steps give one."""
    left, right = ([values(section, run) for run in side] for side in (sides.a, sides.b))
    names = {name: None for run in (*left, *right) for name in run}
    errors = _errors_of_steps(section, sides)
    return {
        name: _with_errors(
            delta_of([run.get(name) for run in left], [run.get(name) for run in right], sides),
            [each.get(name) for each in errors],
        )
        for name in names
    }


def _errors_of_steps(section: Section, sides: Sides) -> list[dict[str, MeanError]]:
    """Returns the errors of A and B by metric, for one run each; empty for several: then the run is
    the unit."""
    if sides.several or section is not Section.STEP_TIME:
        return [{}, {}]
    return [errors_of_steps(run.steps, values(section, run)) for run in sides.every_run]


def _with_errors(delta: Delta, errors: Sequence[MeanError | None]) -> Delta:
    """Returns the delta with its uncertainty from the steps of two runs. Variation between runs is
    not included, so it decides nothing."""
    known = [error for error in errors if error is not None]
    if delta.delta is None or len(known) < len(errors):
        return delta
    return _around(delta, reach(together(known)))


def _around(delta: Delta, distance: float) -> Delta:
    middle = delta.delta or 0.0
    low, high = middle - distance, middle + distance
    is_number = math.isfinite(low) and math.isfinite(high)
    return structs.replace(delta, interval=(low, high)) if is_number else delta


def delta_of(
    a: Sequence[float | None],
    b: Sequence[float | None],
    sides: Sides,
    confidence: float = CONFIDENCE,
) -> Delta:
    """Returns one metric's change, with interval and p-value for several runs; `a` and `b` are by
    run."""
    known = known_of(a, b, sides)
    plain = Delta.between(_mean(known.a), _mean(known.b))
    scale = max(map(abs, (*known.a, *known.b)), default=0.0) or 1.0
    left, right = ([value / scale for value in side] for side in (known.a, known.b))
    error = _error_of_runs(Known(left, right, known.paired))  # extreme numbers have no squares
    if plain.delta is None or error is None:
        return plain
    found = _around(plain, (reach(error, confidence) if error.size else 0.0) * scale)
    return structs.replace(found, p=two_sided_p(plain.delta / scale, error))


def _error_of_runs(known: Known) -> MeanError | None:
    """Returns the error of the difference of the means; `None` for one run per side, or none."""
    if known.paired:
        return statistics.mean_error([y - x for x, y in zip(known.a, known.b, strict=True)])
    if min(len(known.a), len(known.b)) >= 2:
        return together((statistics.mean_error(known.a), statistics.mean_error(known.b)))
    if min(len(known.a), len(known.b)) == 1 and max(len(known.a), len(known.b)) >= 2:
        return statistics.error_of_one_against(known.a, known.b)
    return None


def _mean(found: Sequence[float]) -> float | None:
    if not found:
        return None
    scale = max(map(abs, found)) or 1.0
    return fmean(x / scale for x in found) * scale if len(found) > 1 else found[0]


def known_of(a: Sequence[float | None], b: Sequence[float | None], sides: Sides) -> Known:
    """Returns the runs that have the metric; of a pair both or neither, if enough pairs remain."""
    if sides.paired_by:
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        if len(pairs) >= statistics.MIN_PAIRS:
            return Known([x for x, _ in pairs], [y for _, y in pairs], paired=True)
    return Known([x for x in a if x is not None], [y for y in b if y is not None])


def observe(endpoint: Endpoint, sides: Sides, confidence: float = CONFIDENCE) -> Observed:
    """Returns how an endpoint changed between the sides.

    `confidence` is that of the interval which decides, with several runs per side; the interval in
    the table of metrics is the 95 % one of every other metric.
    """
    section = endpoint.section
    assert section is not None, "a logged metric is observed by observe_logged"
    found = [[values(section, run) for run in side] for side in (sides.a, sides.b)]
    by_metric = {
        metric: [[run.get(metric) for run in side] for side in found] for metric in endpoint.metrics
    }
    errors = _errors_of_steps(section, sides)
    changes = {
        metric: _with_errors(delta_of(a, b, sides), [each.get(metric) for each in errors])
        for metric, (a, b) in by_metric.items()
    }
    metric = max(changes, key=lambda name: _sides_measured(changes[name]))  # of a tie, the first
    delta, (a, b) = changes[metric], by_metric[metric]
    known = known_of(a, b, sides)
    if not known.a or not known.b or min(*known.a, *known.b) <= 0:
        return Observed(endpoint, metric, delta)
    if not sides.several:
        change = _of_one_run_each(known, [each.get(metric) for each in errors])
        return Observed(endpoint, metric, _with_change(delta, change), change)
    if len(known.a) + len(known.b) < 3:
        return Observed(endpoint, metric, delta)
    test = statistics.between_pairs if known.paired else statistics.between_groups
    delta = _with_change(delta, test(known.a, known.b))
    ranks = statistics.rank_test(known.a, known.b, known.paired)
    return Observed(endpoint, metric, delta, test(known.a, known.b, confidence), ranks)


def _sides_measured(delta: Delta) -> int:
    return sum(value is not None for value in (delta.lhs, delta.rhs))


def _of_one_run_each(known: Known, errors: Sequence[MeanError | None]) -> RatioEstimate | None:
    shares = [
        MeanError(error.size / value, error.freedom)
        for error, value in zip(errors, (*known.a, *known.b), strict=True)
        if error is not None and math.isfinite(error.size / value)
    ]
    if len(shares) < len(errors):
        return None
    return statistics.between_two_runs(known.a[0], known.b[0], shares[0], shares[1])


def _with_change(delta: Delta, change: RatioEstimate | None) -> Delta:
    """Returns the delta with the p-value of the ratio, and with its interval converted to one of
    the difference.

    That conversion holds only near no change, because a ratio does not say how well A itself is
    known. Further away the difference has its own interval, which includes zero exactly where that
    of the ratio includes one.
    """
    if change is None or delta.lhs is None:
        return delta
    by_ratio = (delta.lhs * (change.low - 1), delta.lhs * (change.high - 1))
    low, high = by_ratio
    if delta.interval is not None and not 1 / NEAR <= change.ratio <= NEAR:
        low, high = (
            limit if (limit > 0) == (of_ratio > 0) else of_ratio
            for limit, of_ratio in zip(delta.interval, by_ratio, strict=True)
        )
    significant = None if change.p is None else change.p < SIGNIFICANT
    return structs.replace(delta, interval=(low, high), p=change.p, significant=significant)
