"""How many more runs it takes to a verdict: a range, by what the runs so far leave open.

Neither the true change nor the true spread is known from a few runs. So both are taken as the runs
leave them open (the change around the one seen, by its error; the spread by its degrees of
freedom), and for a number of further runs the chance is computed that all runs together give a
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from traceml.compare.student import chi_square, quantile
from traceml.compare.terms import Terms

MAX_RUNS = 100
"""Per side; more is no advice: then the noise is what to work on."""
EVEN_CHANCE, LIKELY = 0.5, 0.8
"""Of a verdict with as many further runs as the lower and the upper end of the range say."""
QUANTILES = 12
"""Of the true change and of the true spread that are tried: the chance is a mean over them."""

_NORMAL = NormalDist()
_MIDDLES = [(place + 0.5) / QUANTILES for place in range(QUANTILES)]
_Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the runs so far say of the endpoint, on logarithms; worse is above zero."""

    worse_by: float
    spread: float
    """From run to run, on one side."""
    freedom: float
    """How well the spread is known."""
    runs: tuple[int, int]
    """Of A and of B."""
    paired: bool = False


@dataclass(frozen=True, slots=True)
class FurtherRuns:
    """Per side: with `low` a verdict is as likely as not, with `high` it comes in 4 of 5 cases."""

    low: int
    high: int


def further_runs(seen: Seen, terms: Terms) -> FurtherRuns | None:
    """The range; `None` where even `MAX_RUNS` runs per side would probably give no verdict."""
    if seen.spread <= 0:
        return FurtherRuns(1, 1)
    low = _fewest(seen, terms, EVEN_CHANCE)
    high = None if low is None else _fewest(seen, terms, LIKELY, low)
    return None if low is None or high is None else FurtherRuns(low, high)


def _fewest(seen: Seen, terms: Terms, chance: float, least: int = 1) -> int | None:
    """By doubling and halving: the chance grows with the runs."""
    most = MAX_RUNS - min(seen.runs)
    if most < least or chance_of_verdict(seen, terms, most) < chance:
        return None
    low, high = least - 1, least
    while chance_of_verdict(seen, terms, high) < chance:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if chance_of_verdict(seen, terms, middle) < chance:
            low = middle
        else:
            high = middle
    return high


def chance_of_verdict(seen: Seen, terms: Terms, further: int) -> float:
    """That so many more runs per side, with those that are there, show a change or none."""
    freedom = _freedom_with(seen, further)
    before = _error_share(seen, 0)
    after = _error_share(seen, further)
    # What is added weighs as its precision does.
    old_weight = (after / before) ** 2
    total = 0.0
    for level in _MIDDLES:
        spread = seen.spread * math.sqrt(seen.freedom / chi_square(level, seen.freedom))
        reach = quantile(freedom) * spread * after
        scatter = spread * after * math.sqrt(1 - old_weight)
        places = _verdicts(reach, terms)
        for place in _MIDDLES:
            true = seen.worse_by + spread * before * _NORMAL.inv_cdf(place)
            middle = old_weight * seen.worse_by + (1 - old_weight) * true
            total += _chance_in(places, middle, scatter)
    return total / QUANTILES**2


def _error_share(seen: Seen, further: int) -> float:
    """The error of the difference of the two means, per spread of one run."""
    return math.sqrt(sum(1 / (runs + further) for runs in seen.runs))


def _freedom_with(seen: Seen, further: int) -> float:
    runs = [each + further for each in seen.runs]
    return runs[0] - 1 if seen.paired else sum(runs) - 2


def _verdicts(reach: float, terms: Terms) -> list[_Interval]:
    """Where the change seen has to lie for a verdict, given how far its interval reaches."""
    better = math.log1p(terms.tolerance)
    allowed = 0.0 if terms.max_regression is None else math.log1p(terms.max_regression)
    worse = better if terms.max_regression is None else allowed
    places = [(-math.inf, -reach), (max(reach, allowed), math.inf)]
    if reach - better <= worse - reach:
        places.append((reach - better, worse - reach))
    return _joined(places)


def _joined(places: Sequence[_Interval]) -> list[_Interval]:
    """Without overlap."""
    found: list[_Interval] = []
    for low, high in sorted(places):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _chance_in(places: Sequence[_Interval], middle: float, scatter: float) -> float:
    if scatter == 0:
        return float(any(low <= middle <= high for low, high in places))
    return math.fsum(
        _NORMAL.cdf((high - middle) / scatter) - _NORMAL.cdf((low - middle) / scatter)
        for low, high in places
    )
