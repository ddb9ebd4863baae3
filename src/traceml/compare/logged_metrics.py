"""Metrics that the scripts logged, such as loss and accuracy: how they changed between the sides.

Of each run its last value counts. They are compared as differences, since a reward may be negative
and an accuracy zero; with several runs on a side, the run is the unit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from statistics import stdev

from msgspec import structs

from traceml.compare import statistics
from traceml.compare.measured import Known, Observed, delta_of, known_of
from traceml.compare.record import SIGNIFICANT, Delta, LoggedDelta, Status
from traceml.compare.sides import Sides
from traceml.compare.statistics import holm
from traceml.compare.students_t import CONFIDENCE, MeanError
from traceml.compare.terms import ENDPOINTS, Endpoint, Terms
from traceml.model.errors import UsageError, near_names
from traceml.model.metric_direction import Direction, direction_of, is_cost, unknown_direction
from traceml.model.metric_segments import metric_of, split_segment
from traceml.model.quantities import count
from traceml.summaries.record import Summary

LOGGED = "logged"
"""The section of a comparison that holds them."""
PREFIX = "metrics."
"""`--metric metrics.throughput` is the logged metric where TraceML has one of that name."""
ASSUMED_NOISE = 0.25
"""For one run per side: what another seed would change is not known, so that only a change of more
than a quarter of A's value is called one."""
MOVED_PCT = 1.0
"""A change of one run per side that is worth a sentence, in percent."""
MAX_NAMES_LISTED = 8


def logged_deltas(
    sides: Sides, judged: str | None, higher_is_better: bool | None = None
) -> dict[str, LoggedDelta]:
    """Returns every logged metric's change; the p-values of all but the judged one are corrected
    together, those of segments by themselves: thousands of segments hide no change of a whole
    metric.

    `higher_is_better` is what the user says of the judged one, and so of its segments.
    """
    names = dict.fromkeys(name for run in sides.every_run for name in run.metrics)
    found = {name: logged_delta(name, sides) for name in names}
    if judged is not None and higher_is_better is not None:
        for name in names:
            if metric_of(name) == metric_of(judged):
                found[name] = structs.replace(
                    found[name], higher_is_better=higher_is_better, direction_from="user"
                )
    asked: dict[bool, dict[str, float]] = {False: {}, True: {}}
    for name, delta in found.items():
        if delta.p is not None and delta.interval != (0, 0) and name != judged:
            asked[split_segment(name) is not None][name] = delta.p
    for name, p in (*holm(asked[False]).items(), *holm(asked[True]).items()):
        found[name] = structs.replace(found[name], p=p, significant=p < SIGNIFICANT)
    return found


def logged_delta(name: str, sides: Sides) -> LoggedDelta:
    """Returns one logged metric's change, with the p-value of its own test."""
    a, b = ([last_value(run, name) for run in side] for side in (sides.a, sides.b))
    delta = delta_of(a, b, sides)
    direction = direction_in(name, sides)
    source = None
    if direction.higher_is_better is not None:
        source = "name" if direction.is_guessed else "script"
    return structs.replace(
        LoggedDelta.of(_tested(delta)),
        higher_is_better=direction.higher_is_better,
        direction_from=source,
    )


def _tested(delta: Delta) -> Delta:
    return delta if delta.p is None else delta.judged(delta.p)


def last_value(run: Summary, name: str) -> float | None:
    """Returns the last value that a run logged; `None` where there is none, or it is not finite."""
    metric = run.metrics.get(name)
    if metric is None or metric.last is None or not math.isfinite(metric.last):
        return None
    return metric.last


def direction_in(name: str, sides: Sides) -> Direction:
    """Returns which way a metric improves: as most runs that say so do, else by its name."""
    said = [
        metric.higher_is_better
        for run in sides.every_run
        if (metric := run.metrics.get(name)) and metric.higher_is_better is not None
    ]
    return direction_of(name, Counter(said).most_common(1)[0][0] if said else None)


def endpoint_named(word: str, sides: Sides, higher_is_better: bool | None) -> Endpoint:
    """Returns what `--metric` names: a metric of TraceML's, or one that the runs logged.

    Raises UsageError where there is none, where nobody says which way it improves, or where the
    user says of a metric of TraceML's that it improves the other way.
    """
    if word in ENDPOINTS:
        return _own_endpoint(word, higher_is_better)
    logged = dict.fromkeys(name for run in sides.every_run for name in run.metrics)
    name = word if word in logged else word.removeprefix(PREFIX)
    if name not in logged:
        raise UsageError(_no_such_metric(word, list(logged)))
    better = higher_is_better
    if better is None:
        better = direction_in(name, sides).higher_is_better
    if better is None:
        raise UsageError(
            f"{unknown_direction(name)}, or let the script say "
            "log_metrics(…, higher_is_better=True)"
        )
    return Endpoint(word, name, None, (name,), better)


def _own_endpoint(word: str, higher_is_better: bool | None) -> Endpoint:
    found = ENDPOINTS[word]
    if higher_is_better is not None and higher_is_better is not found.more_is_better:
        known, said = ("higher", "lower") if found.more_is_better else ("lower", "higher")
        raise UsageError(
            f"--better {said} is about logged metrics; {word} is measured by TraceML, and {known} "
            f"is better: leave it out, or name a logged metric of that name as {PREFIX}{word}"
        )
    return found


def _no_such_metric(word: str, logged: list[str]) -> str:
    known = [*ENDPOINTS, *logged]
    near = near_names(word, known)
    meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    more = ", …" if len(logged) > MAX_NAMES_LISTED else ""
    said = ", ".join(logged[:MAX_NAMES_LISTED]) + more if logged else "nothing"
    return (
        f"there is no metric {word!r}: TraceML measures {', '.join(ENDPOINTS)}, and these runs "
        f"logged {said}{meant}"
    )


def observe_logged(endpoint: Endpoint, sides: Sides, confidence: float = CONFIDENCE) -> Observed:
    """Returns how the logged metric that decides the verdict changed.

    `confidence` is that of the interval which decides, with several runs per side; the interval in
    the table of metrics is the 95 % one of every other metric.
    """
    name = endpoint.metrics[0]
    a, b = ([last_value(run, name) for run in side] for side in (sides.a, sides.b))
    delta, known = _tested(delta_of(a, b, sides)), known_of(a, b, sides)
    if delta.p is None:
        return Observed(endpoint, name, delta)
    if known.paired:
        method = "paired t test"
    elif min(len(known.a), len(known.b)) == 1:
        method = "one run against the spread of the others"
    else:
        method = "Welch's t test"
    ranks = statistics.rank_test(known.a, known.b, known.paired)
    return Observed(
        endpoint,
        name,
        delta,
        rank_test=ranks,
        method=method,
        run_spread=_spread(known),
        deciding_interval=delta_of(a, b, sides, confidence).interval,
    )


def _spread(known: Known) -> MeanError | None:
    """Returns the standard deviation from run to run of one side, and its degrees of freedom."""
    if known.paired:
        differences = [y - x for x, y in zip(known.a, known.b, strict=True)]
        return MeanError(stdev(differences) / math.sqrt(2), len(differences) - 1)
    several = [side for side in (known.a, known.b) if len(side) >= 2]
    if not several:
        return None
    freedom = sum(len(side) - 1 for side in several)
    squares = math.fsum(stdev(side) ** 2 * (len(side) - 1) for side in several)
    return MeanError(math.sqrt(squares / freedom), freedom)


def logged_status(found: Observed, sides: Sides, terms: Terms) -> Status | None:
    """Returns the verdict by a logged metric; `None` where a side has no value.

    With several runs, the test decides. With one run per side the spread between seeds is not
    known: then only what exceeds `ASSUMED_NOISE`, or the regression that the user allows, counts.
    """
    delta = found.delta
    if delta.delta is None or delta.lhs is None:
        return None
    size = abs(delta.lhs)
    better = terms.tolerance * size
    worse = better if terms.max_regression is None else terms.max_regression * size
    if not sides.several:
        if delta.delta == 0:
            return Status.NO_CHANGE
        allowed = terms.max_regression if found.got_worse else None
        limit = ASSUMED_NOISE if allowed is None else allowed
        if abs(delta.delta) <= limit * size:
            return Status.INCONCLUSIVE
        return Status.REGRESSION if found.got_worse else Status.IMPROVEMENT
    low, high = (-worse, better) if found.endpoint.more_is_better else (-better, worse)
    interval = found.deciding_interval
    if interval is not None and low <= interval[0] and interval[1] <= high:
        return Status.NO_CHANGE
    if delta.p is None or delta.p >= terms.significance:
        return Status.INCONCLUSIVE
    if not found.got_worse:
        return Status.IMPROVEMENT
    allowed = terms.max_regression or 0.0
    return Status.REGRESSION if abs(delta.delta) > allowed * size else Status.INCONCLUSIVE


_EVALUATION = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})


def quality_changes(logged: Mapping[str, LoggedDelta], several: bool) -> dict[str, LoggedDelta]:
    """Returns the changes of what the model has learned that are worth a sentence, the worst first.

    Of several runs those that the runs show, of one run per side those of at least `MOVED_PCT`.
    Segments are not among them, see `segment_changes.py`. Where anything was evaluated on other
    data than that of training, only that counts.
    """
    quality = {
        name: delta
        for name, delta in logged.items()
        if delta.higher_is_better is not None
        and delta.delta is not None
        and not is_cost(name)
        and split_segment(name) is None
    }
    evaluated = {name: delta for name, delta in quality.items() if is_evaluated(name)}
    moved = {
        name: delta
        for name, delta in (evaluated or quality).items()
        if (delta.significant if several else is_moved(delta))
    }
    return dict(sorted(moved.items(), key=lambda item: (item[1].is_better, -_size(item[1]))))


def is_evaluated(name: str) -> bool:
    """Returns whether a metric is, by its name, of other data than that of training."""
    words = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return bool(_EVALUATION.intersection(words))


def is_moved(delta: Delta) -> bool:
    """Returns whether a change of one run per side is worth a sentence."""
    return bool(delta.delta) and (delta.pct_change is None or abs(delta.pct_change) >= MOVED_PCT)


def _size(delta: Delta) -> float:
    return math.inf if delta.pct_change is None else abs(delta.pct_change)


def unlike_steps(logged: Mapping[str, LoggedDelta], sides: Sides) -> str | None:
    """Returns a warning where metrics of the two sides are from different steps."""
    for name, delta in logged.items():
        if delta.delta is None:
            continue
        a, b = ({_last_step(run, name) for run in side} - {None} for side in (sides.a, sides.b))
        if a and b and a != b:
            first, second = ("–".join(f"{step:,}" for step in _ends(side)) for side in (a, b))
            return (
                f"Logged metrics are compared by their last values, which are from different steps "
                f"({name}: step {first} -> {second})."
            )
    return None


def left_out_runs(logged: Mapping[str, LoggedDelta], sides: Sides) -> str | None:
    """Returns a warning where a run's last value is NaN or infinite, and so not in the mean of its
    side."""
    for name, delta in logged.items():
        if delta.higher_is_better is None or split_segment(name) is not None:
            continue
        for side, runs in (("A", sides.a), ("B", sides.b)):
            lost = sum(name in run.metrics and last_value(run, name) is None for run in runs)
            if lost:
                return (
                    f"{name} ended as NaN or infinite in {lost} of {count(len(runs), 'run')} of "
                    f"{side}; {'it is' if lost == 1 else 'they are'} left out of its mean."
                )
    return None


def _last_step(run: Summary, name: str) -> int | None:
    metric = run.metrics.get(name)
    return None if metric is None else metric.last_step


def _ends(steps: set[int | None]) -> list[int]:
    known = sorted(step for step in steps if step is not None)
    return list(dict.fromkeys((known[0], known[-1])))


def not_finite(name: str, sides: Sides) -> str | None:
    """Returns the sides in which a run's last value of a metric is NaN or infinite; else `None`."""
    found = [
        side
        for side, runs in (("A", sides.a), ("B", sides.b))
        if any(name in run.metrics and last_value(run, name) is None for run in runs)
    ]
    return " and ".join(found) or None
