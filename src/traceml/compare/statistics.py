"""How sure one can be of a change: the ratio of two runs, or of two groups of them.

Times are compared as ratios, on logarithms: so many percent mean the same at any size. Where there
are several runs on a side, the run is the unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TypeVar

from traceml.compare.student import Error, reach, together, two_sided_p

MIN_RUNS_FOR_RANK_TEST = 5
"""Runs on each side: with three a rank test cannot go below p = 0.10, with four barely."""
MIN_PAIRS_FOR_RANK_TEST = 6
"""With five, the signed ranks cannot go below p = 0.06."""
MIN_PAIRS = 3
_Name = TypeVar("_Name")
_MAX_LOG = 700.0
"""Ratios beyond have no number; no two runs of anything differ so much."""


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio B : A and the interval that holds the true one in 95 of 100 such comparisons."""

    ratio: float
    low: float
    high: float
    method: str
    p: float | None = None
    """The chance of a change this large where there is none; `None` where no test was made."""
    log_spread: float | None = None
    """Of one run: the standard deviation of logarithms on a side, from run to run where there are
    several, else what the run's own steps leave open."""
    freedom: float | None = None
    """How well the spread is known."""

    @property
    def excludes_none(self) -> bool:
        """Whether "nothing changed" lies outside the interval."""
        return self.low > 1 or self.high < 1

    @property
    def reach_log(self) -> float:
        """How far the interval reaches to either side, as a logarithm."""
        return (math.log(self.high) - math.log(self.low)) / 2

    def lies_between(self, low: float, high: float) -> bool:
        """Whether the whole interval does."""
        return low <= self.low and self.high <= high

    def widened(self, share: float) -> RatioEstimate:
        """The same change, with room on both sides for what the interval does not hold."""
        return replace(self, low=self.low / (1 + share), high=self.high * (1 + share))


def between_two_runs(a: float, b: float, error_a: Error, error_b: Error) -> RatioEstimate | None:
    """Of one run each; what differs from run to run is not in the interval."""
    error = together((error_a, error_b))
    change = _change(math.log(b) - math.log(a), reach(error), "the steps of one run per side")
    return change and replace(change, log_spread=error.size / math.sqrt(2), freedom=error.freedom)


def between_groups(a: Sequence[float], b: Sequence[float]) -> RatioEstimate | None:
    """Of several runs, three or more in all: Welch's test on logarithms."""
    logs_a, logs_b = [math.log(x) for x in a], [math.log(x) for x in b]
    difference = fmean(logs_b) - fmean(logs_a)
    if min(len(a), len(b)) == 1:
        larger = max(logs_a, logs_b, key=len)
        # One run has no spread to show: that of the other side's runs stands for both.
        spread = stdev(larger)
        error = Error(spread * math.sqrt(1 / len(a) + 1 / len(b)), len(larger) - 1)
        spread_of_runs = Error(spread, len(larger) - 1)
        method = "one run against the spread of the others"
        return _tested(difference, error, method, spread_of_runs)
    error = together((mean_error(logs_a), mean_error(logs_b)))
    spread = math.sqrt((stdev(logs_a) ** 2 + stdev(logs_b) ** 2) / 2)
    spread_of_runs = Error(spread, len(a) + len(b) - 2)
    return _tested(difference, error, "Welch's t test on logarithms", spread_of_runs)


def between_pairs(a: Sequence[float], b: Sequence[float]) -> RatioEstimate | None:
    """Of runs that belong together two by two (a seed, a fold): the paired test on logarithms."""
    differences = [math.log(y) - math.log(x) for x, y in zip(a, b, strict=True)]
    # Half of a pair's variance is what one run has left once its partner is taken into account.
    spread = Error(stdev(differences) / math.sqrt(2), len(differences) - 1)
    return _tested(
        fmean(differences), mean_error(differences), "paired t test on logarithms", spread
    )


def mean_error(values: Sequence[float]) -> Error:
    """The error of the mean of two or more independent values."""
    return Error(stdev(values) / math.sqrt(len(values)), len(values) - 1)


def error_of_one_against(a: Sequence[float], b: Sequence[float]) -> Error | None:
    """Of the difference of one run from several, or the reverse.

    One run has no spread to show: that of the others stands for it, as a share of their mean, so
    that there is none where a mean is not above zero.
    """
    several = max(a, b, key=len)
    if min(fmean(a), fmean(b)) <= 0:
        return None
    spread = stdev(several) / fmean(several)
    size = spread * math.hypot(fmean(a) / math.sqrt(len(a)), fmean(b) / math.sqrt(len(b)))
    return Error(size, len(several) - 1)


def rank_test(a: Sequence[float], b: Sequence[float], paired: bool) -> tuple[str, float] | None:
    """The name and p of a test that looks at the order alone; `None` with too few runs for one."""
    fewest = MIN_PAIRS_FOR_RANK_TEST if paired else MIN_RUNS_FOR_RANK_TEST
    if min(len(a), len(b)) < fewest or (paired and list(a) == list(b)):
        return None
    from scipy import stats  # late: it takes most of a second

    if paired:
        return "Wilcoxon signed-rank", float(stats.wilcoxon(a, b).pvalue)
    return "Mann-Whitney", float(stats.mannwhitneyu(a, b).pvalue)


def _tested(difference: float, error: Error, method: str, spread: Error) -> RatioEstimate | None:
    change = _change(difference, reach(error) if error.size else 0.0, method)
    p = two_sided_p(difference, error)
    return change and replace(change, p=p, log_spread=spread.size, freedom=spread.freedom)


def _change(log_ratio: float, log_reach: float, method: str) -> RatioEstimate | None:
    low, high = log_ratio - log_reach, log_ratio + log_reach
    if max(abs(low), abs(high)) > _MAX_LOG:
        return None
    return RatioEstimate(math.exp(log_ratio), math.exp(low), math.exp(high), method)


def holm(p_values: Mapping[_Name, float]) -> dict[_Name, float]:
    """The p-values of questions asked at once, so that in 95 of 100 cases none of them errs."""
    adjusted: dict[_Name, float] = {}
    worst = 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        worst = max(worst, min(1.0, p * (len(p_values) - place)))
        adjusted[name] = worst
    return adjusted
