"""One variable at a time: what a parameter does, by the runs that differ in it alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from msgspec import structs

from traceml.compare import statistics
from traceml.compare.lineage import Shown
from traceml.compare.many_record import Effect
from traceml.compare.parameter_groups import (
    CODE,
    Params,
    Varied,
    in_value_order,
    one_at_a_time,
    seed_of,
    varying,
    without,
)
from traceml.compare.record import Delta
from traceml.compare.statistics import MIN_PAIRS, holm
from traceml.compare.students_t import reach, two_sided_p

MAX_METRICS = 32
"""Metrics of which effects are computed, besides the step time."""
MAX_VALUES = 6
"""Values of one parameter that are all compared with each other; of more, each with the reference
and with its neighbours."""

Value: TypeAlias = Callable[[int, str], "float | None"]
"""Returns a run's value of a metric, by the run's position."""
_Key: TypeAlias = tuple[str, Shown, Shown]


@dataclass(frozen=True, slots=True)
class Matched:
    """Runs that were made alike but for one value: those with the one, and with the other."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]


def effects_of(
    params: Sequence[Params],
    names: Sequence[str],
    metrics: Sequence[str],
    value: Value,
) -> tuple[Effect, ...]:
    """Returns the effect of each parameter in which alone some runs differ.

    `names` are the runs' names, `params` what each was run with. Every two values that were run in
    otherwise equal settings are compared, those with the value of the first run, the baseline,
    first.
    """
    found: list[Effect] = []
    for (param, lhs, rhs), matched in _matches(params).items():
        changes = {metric: _change(matched, metric, value) for metric in metrics[:MAX_METRICS]}
        known = {metric: change for metric, change in changes.items() if change.delta is not None}
        if known:
            found.append(
                Effect(
                    param=param,
                    lhs_value=lhs,
                    rhs_value=rhs,
                    pairs=len(matched),
                    runs=tuple(_names(matched, names)),
                    changes=dict(known),
                )
            )
    return _corrected(found)


def _names(matched: Sequence[Matched], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for pair in matched:
        yield ", ".join(names[run] for run in pair.lhs), ", ".join(names[run] for run in pair.rhs)


def _matches(params: Sequence[Params]) -> dict[_Key, list[Matched]]:
    """Returns, for each pair of values of a parameter, the runs that differ in nothing else; pairs
    with the baseline's value are first."""
    first: dict[_Key, list[Matched]] = {}
    further: dict[_Key, list[Matched]] = {}
    for varied in one_at_a_time(params):
        reference = params[0].get(varied.name)
        for lhs, rhs in _value_pairs(in_value_order(varied.runs, reference), reference):
            found = first if lhs == reference else further
            found.setdefault((varied.name, lhs, rhs), []).extend(_by_seed(varied, lhs, rhs, params))
    return first | further


def _value_pairs(values: Sequence[Shown], reference: Shown) -> Iterator[tuple[Shown, Shown]]:
    """Yields the values that are compared, each two once."""
    for place, lhs in enumerate(values):
        is_all = lhs == reference or len(values) <= MAX_VALUES
        for rhs in values[place + 1 :] if is_all else values[place + 1 : place + 2]:
            yield lhs, rhs


def pairs_of_other_code(params: Sequence[Params]) -> int:
    """Returns how many pairs of settings differ in one parameter and in the code besides, so that
    no effect counts them."""
    if CODE not in varying(params):
        return 0
    counted = sum(len(pairs) for key, pairs in _matches(params).items() if key[0] != CODE)
    ignoring_code = sum(map(len, _matches(without(params, (CODE,))).values()))
    return max(0, ignoring_code - counted)


def _by_seed(varied: Varied, lhs: Shown, rhs: Shown, params: Sequence[Params]) -> Iterator[Matched]:
    """Yields pairs of runs with the same seed; without any, all runs of both values as one pair.

    Runs of one value that share their seed are one side of one pair, whose mean counts: no run is
    in two pairs.
    """
    left, right = varied.runs[lhs], varied.runs[rhs]
    a, b = (_runs_by_seed(side, params) for side in (left, right))
    pairs = [Matched(runs, b[seed]) for seed, runs in a.items() if seed in b]
    is_seeded = all(seed_of(params[run]) for run in (*left, *right))
    yield from (
        pairs if pairs and (is_seeded or len(left) == len(right) == 1) else [Matched(left, right)]
    )


def _runs_by_seed(runs: Sequence[int], params: Sequence[Params]) -> dict[Hashable, tuple[int, ...]]:
    found: dict[Hashable, tuple[int, ...]] = {}
    for run in runs:
        seed = seed_of(params[run])
        found[seed] = (*found.get(seed, ()), run)
    return found


def _change(matched: Sequence[Matched], metric: str, value: Value) -> Delta:
    """Returns a metric's mean change over the pairs, and its test where they are enough."""
    pairs = []
    for pair in matched:
        lhs, rhs = (_mean(side, metric, value) for side in (pair.lhs, pair.rhs))
        if lhs is not None and rhs is not None:
            pairs.append((lhs, rhs))
    if not pairs:
        return Delta()
    plain = Delta.between(fmean(lhs for lhs, _ in pairs), fmean(rhs for _, rhs in pairs))
    if len(pairs) < MIN_PAIRS:
        return plain
    error = statistics.mean_error([rhs - lhs for lhs, rhs in pairs])
    middle, distance = plain.delta or 0.0, reach(error) if error.size else 0.0
    interval = (middle - distance, middle + distance)
    return structs.replace(plain, interval=interval, p=two_sided_p(middle, error))


def _mean(runs: Sequence[int], metric: str, value: Value) -> float | None:
    known = [found for run in runs if (found := value(run, metric)) is not None]
    return fmean(known) if known else None


def _corrected(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Returns the effects with their p-values corrected over all of them and all metrics."""
    asked: dict[tuple[int, str], float] = {
        (place, metric): change.p
        for place, effect in enumerate(effects)
        for metric, change in effect.changes.items()
        if change.p is not None
    }
    corrected = holm(asked)

    def judged(place: int, changes: Mapping[str, Delta]) -> dict[str, Delta]:
        return {
            metric: change.judged(corrected[place, metric])
            if (place, metric) in corrected
            else change
            for metric, change in changes.items()
        }

    return tuple(
        structs.replace(effect, changes=judged(place, effect.changes))
        for place, effect in enumerate(effects)
    )
