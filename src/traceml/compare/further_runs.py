"""How many more runs a verdict needs: a range, from what the runs so far leave uncertain.

Neither the true change nor the true spread is known from a few runs. Both are therefore drawn from
their uncertainty (the change from its error, the spread from its degrees of freedom), and for a
number of further runs the probability is computed that all runs together give a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from traceml.compare.students_t import chi_square, quantile
from traceml.compare.terms import Terms

MAX_RUNS = 100
"""Per side. Advising more is useless: then the noise has to be reduced."""
EVEN_CHANCE, LIKELY = 0.5, 0.8
"""The probability of a verdict at the lower and at the upper end of the range."""
QUANTILES = 12
"""Of the true change and the true spread that are tried; the probability is the mean over them."""

_NORMAL = NormalDist()
_MIDDLES = [(place + 0.5) / QUANTILES for place in range(QUANTILES)]
_Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the runs so far say about the endpoint, as logarithms; positive is worse."""

    worse_by: float
    spread: float
    """From run to run, on one side."""
    freedom: float
    """The spread's degrees of freedom."""
    runs: tuple[int, int]
    """The number of runs of A and of B."""
    paired: bool = False


@dataclass(frozen=True, slots=True)
class FurtherRuns:
    """Runs per side: with `low` a verdict is as likely as not, with `high` it comes in 4 of 5
    cases."""

    low: int
    high: int


def further_runs(seen: Seen, terms: Terms) -> FurtherRuns | None:
    """Returns the range; `None` where even `MAX_RUNS` runs per side would probably give no
    verdict."""
    if seen.spread <= 0:
        return FurtherRuns(1, 1)
    low = _fewest(seen, terms, EVEN_CHANCE)
    high = None if low is None else _fewest(seen, terms, LIKELY, low)
    return None if low is None or high is None else FurtherRuns(low, high)


def _fewest(seen: Seen, terms: Terms, chance: float, least: int = 1) -> int | None:
    """Returns the smallest number of runs with this probability, by bisection."""
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
    """Returns the probability that so many more runs per side show a change, or that there is
    none."""
    freedom = _freedom_with(seen, further)
    before = _error_share(seen, 0)
    after = _error_share(seen, further)
    # What is added weighs as its precision does.
    old_weight = (after / before) ** 2
    total = 0.0
    for level in _MIDDLES:
        spread = seen.spread * math.sqrt(seen.freedom / chi_square(level, seen.freedom))
        reach = quantile(freedom, terms.confidence) * spread * after
        scatter = spread * after * math.sqrt(1 - old_weight)
        places = _verdicts(reach, terms)
        for place in _MIDDLES:
            true = seen.worse_by + spread * before * _NORMAL.inv_cdf(place)
            middle = old_weight * seen.worse_by + (1 - old_weight) * true
            total += _chance_in(places, middle, scatter)
    return total / QUANTILES**2


def _error_share(seen: Seen, further: int) -> float:
    """Returns the error of the difference of the two means, relative to the spread of one run."""
    return math.sqrt(sum(1 / (runs + further) for runs in seen.runs))


def _freedom_with(seen: Seen, further: int) -> float:
    runs = [each + further for each in seen.runs]
    return runs[0] - 1 if seen.paired else sum(runs) - 2


def _verdicts(reach: float, terms: Terms) -> list[_Interval]:
    """Returns the intervals in which the observed change has to lie for a verdict."""
    better = math.log1p(terms.tolerance)
    allowed = 0.0 if terms.max_regression is None else math.log1p(terms.max_regression)
    worse = better if terms.max_regression is None else allowed
    places = [(-math.inf, -reach), (max(reach, allowed), math.inf)]
    if reach - better <= worse - reach:
        places.append((reach - better, worse - reach))
    return _joined(places)


def _joined(places: Sequence[_Interval]) -> list[_Interval]:
    """Returns the intervals with overlapping ones merged."""
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
