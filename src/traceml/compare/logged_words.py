"""The sentences about logged metrics: what changed, for better or worse, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from traceml.compare.logged_metrics import ASSUMED_NOISE, not_finite, quality_changes
from traceml.compare.measured import Observed
from traceml.compare.record import Delta, LoggedDelta, SegmentChanges, Status
from traceml.compare.segment_changes import harmed
from traceml.compare.sides import Sides
from traceml.compare.terms import Terms
from traceml.model.metric_segments import metric_of, segment_name
from traceml.model.printable import one_line
from traceml.model.quantities import count, written

NAME_WIDTH = 60
MAX_NAMED = 2
"""Metrics that the verdict's sentence names; the table has the others."""
SEED_UNKNOWN = "one run per side, so what another seed would change is not known"


@dataclass(frozen=True, slots=True)
class LoggedChanges:
    """What became of the logged metrics, and of their segments."""

    deltas: Mapping[str, LoggedDelta]
    segments: Mapping[str, SegmentChanges]


def number(value: float | None) -> str:
    """Returns a logged value with four significant digits."""
    return "n/a" if value is None else written(value, ",.4g")


def logged_sentence(
    found: Observed, status: Status | None, sides: Sides, terms: Terms, logged: LoggedChanges
) -> str:
    """Returns the sentence that supports a verdict by a logged metric, with the segment that lost
    the most."""
    delta, name = found.delta, one_line(found.endpoint.name, NAME_WIDTH)
    if delta.delta is None:
        return _missing(found, name, sides)
    if delta.delta == 0:
        said = f"{name} is the same ({number(delta.lhs)})"
    else:
        word = "worse" if found.got_worse else "better"
        said = f"{name} is {_amount(delta)}{word} ({_from_to(delta)}{_interval(delta)})"
    said += _segment_words(found.metric, bool(delta.delta) and found.got_worse, logged)
    if not sides.several:
        return f"{said}; {_one_run_each(found, status, terms)}."
    if status is Status.NO_CHANGE:
        return f"{said}, within {_limit(found, terms)}."
    if status is Status.INCONCLUSIVE:
        is_shown = delta.p is not None and delta.p < terms.significance
        if is_shown and terms.max_regression is not None:
            return f"{said}: a change, but within the {100 * terms.max_regression:.3g}% allowed."
        return f"{said}: {len(sides.a)} + {len(sides.b)} runs are too few to tell."
    return f"{said}."


def _missing(found: Observed, name: str, sides: Sides) -> str:
    lost = not_finite(found.metric, sides)
    if lost:
        return f"{name} ended as NaN or infinite in {lost}, so there is nothing to judge by."
    missing = " and ".join(
        side for side, value in (("A", found.delta.lhs), ("B", found.delta.rhs)) if value is None
    )
    return f"{name} was not logged in {missing}, so there is nothing to judge by."


def _limit(found: Observed, terms: Terms) -> str:
    if terms.max_regression is not None and found.got_worse:
        return f"the {100 * terms.max_regression:.3g}% allowed"
    return f"the tolerance of {100 * terms.tolerance:.3g}%"


def _one_run_each(found: Observed, status: Status | None, terms: Terms) -> str:
    if status is Status.INCONCLUSIVE:
        if found.got_worse and terms.max_regression is not None:
            return f"within the {100 * terms.max_regression:.3g}% allowed, but {SEED_UNKNOWN}"
        return f"{SEED_UNKNOWN}; less than {100 * ASSUMED_NOISE:.3g}% is not called a change"
    return SEED_UNKNOWN


def quality_clause(logged: LoggedChanges, status: Status | None, sides: Sides) -> str:
    """Returns what became of the model's quality, to follow the verdict's sentence; empty where no
    logged metric moved."""
    moved = quality_changes(logged.deltas, sides.several)
    named = dict(list(moved.items())[:MAX_NAMED])
    more = len(moved) - len(named)
    said = [
        f"{one_line(name, NAME_WIDTH)} is {_amount(delta)}{_better(delta)} ({_from_to(delta)})"
        f"{_segment_words(name, not delta.is_better, logged)}"
        for name, delta in named.items()
    ]
    hurt = [name for name in harmed(logged.segments) if name not in named]
    said += [
        f"{one_line(name, NAME_WIDTH)} is worse for {_worst(name, logged)}"
        for name in hurt[:MAX_NAMED]
    ]
    if not said:
        said = list(_better_for(logged.segments))
    if not said:
        return ""
    worse = bool(hurt) or any(not delta.is_better for delta in named.values())
    against = (status is Status.IMPROVEMENT and worse) or (
        status is Status.REGRESSION and not worse
    )
    rest = f", and {count(more, 'more logged metric')} changed" if more else ""
    doubt = "" if sides.several else f"; {SEED_UNKNOWN}"
    return f"{'but' if against else 'and'} {' and '.join(said)}{rest}{doubt}"


def _segment_words(metric: str, got_worse: bool, logged: LoggedChanges) -> str:
    """Returns what to add to a metric's change: the segment that lost the most, if one did."""
    worst = _worst(metric, logged)
    if not worst:
        return ""
    return f", most of all for {worst}" if got_worse else f" overall, but worse for {worst}"


def _worst(metric: str, logged: LoggedChanges) -> str:
    """Returns `dog (0.8 -> 0.7) and 2 more of 10 segments`; empty where no segment got worse."""
    found = logged.segments.get(metric)
    if found is None or found.worst is None:
        return ""
    worst = logged.deltas[segment_name(metric, found.worst)]
    more = found.worse - 1
    others = f" and {more:,} more of {count(found.compared, 'segment')}" if more else ""
    return f"{one_line(found.worst, NAME_WIDTH)} ({_from_to(worst)}){others}"


def _better_for(segments: Mapping[str, SegmentChanges]) -> Iterator[str]:
    """Yields the metrics whose segments got better, where no whole metric says so."""
    for name, found in list(segments.items())[:MAX_NAMED]:
        if found.better:
            of = f"{found.better:,} of {count(found.compared, 'segment')}"
            yield f"{one_line(name, NAME_WIDTH)} is better for {of}"


def _better(delta: LoggedDelta) -> str:
    return "better" if delta.is_better else "worse"


def _amount(delta: Delta) -> str:
    return "" if delta.pct_change is None else f"{abs(delta.pct_change):,.1f}% "


def _from_to(delta: Delta) -> str:
    return f"{number(delta.lhs)} -> {number(delta.rhs)}"


def _interval(delta: Delta) -> str:
    if delta.interval is None or delta.p is None:
        return ""
    low, high = delta.interval
    return f", 95% interval of the change {written(low, '+,.3g')} to {written(high, '+,.3g')}"


def next_for_logged(status: Status, name: str, sides: Sides) -> str | None:
    """Returns what to do next after a verdict by a logged metric; `None`: nothing in particular."""
    if status is Status.REGRESSION:
        return f"Find what changed {one_line(name, NAME_WIDTH)} between A and B."
    if status is Status.INCONCLUSIVE and not sides.several:
        return (
            "Run both sides with several seeds, three or more each, and compare the groups "
            "(traceml compare --a … --b …)."
        )
    return None


def segments_sentence(metric: str, found: SegmentChanges) -> str:
    """Returns in how many segments a metric got better or worse, and in which the most."""
    name = one_line(metric, NAME_WIDTH)
    if not found.better and not found.worse:
        return f"{name} by segment: no change shown in {count(found.compared, 'segment')}."
    said = []
    for many, word, most in (
        (found.better, "better", found.best),
        (found.worse, "worse", found.worst),
    ):
        named = "" if most is None else one_line(most, NAME_WIDTH)
        which = f" ({'most of all ' if many > 1 else ''}{named})" if named else ""
        said.append(f"{many:,} {word}{which}")
    return f"{name} by segment: {', '.join(said)}, of {count(found.compared, 'segment')}."


def directions_guessed(logged: Mapping[str, LoggedDelta], shown: list[str]) -> str | None:
    """Returns a sentence on the metrics whose better direction is a guess; `None` without any."""
    guessed = dict.fromkeys(
        one_line(metric_of(name), NAME_WIDTH)
        for name in shown
        if name in logged and logged[name].delta and logged[name].direction_from == "name"
    )
    if not guessed:
        return None
    return (
        f"Better or worse is guessed from the name of {', '.join(guessed)}; "
        "log_metrics(…, higher_is_better=…) says it."
    )
