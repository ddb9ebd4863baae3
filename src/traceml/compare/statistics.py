"""The uncertainty of a change: the ratio of two runs, or of two groups of runs.

Times are compared as ratios, on logarithms: a percentage means the same at any size. With several
runs on a side, the run is the unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TypeVar

from traceml.compare.students_t import CONFIDENCE, MeanError, reach, together, two_sided_p

MIN_RUNS_FOR_RANK_TEST = 5
"""Per side: with three, a rank test cannot reach a p-value below 0.10; with four, barely."""
MIN_PAIRS_FOR_RANK_TEST = 6
"""With five, the signed-rank test cannot reach a p-value below 0.06."""
MIN_PAIRS = 3
_Name = TypeVar("_Name")
_MAX_LOG = 700.0
"""A larger ratio would overflow; no two runs differ so much."""


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """A ratio B / A with its confidence interval."""

    ratio: float
    low: float
    high: float
    method: str
    p: float | None = None
    """The p-value; `None` where no test was made."""
    log_spread: float | None = None
    """The standard deviation of one run's logarithm: from run to run where there are several, else
    from the run's own steps."""
    freedom: float | None = None
    """The degrees of freedom of that spread."""
    confidence: float = CONFIDENCE
    """The probability that the interval holds the true ratio."""

    @property
    def excludes_none(self) -> bool:
        """Whether "no change" lies outside the interval."""
        return self.low > 1 or self.high < 1

    @property
    def reach_log(self) -> float:
        """Half the width of the interval, as a logarithm."""
        return (math.log(self.high) - math.log(self.low)) / 2

    def lies_between(self, low: float, high: float) -> bool:
        """Returns whether the whole interval lies between these limits."""
        return low <= self.low and self.high <= high

    def widened(self, share: float) -> RatioEstimate:
        """Returns the estimate with the interval widened by a share on both sides."""
        return replace(self, low=self.low / (1 + share), high=self.high * (1 + share))


def between_two_runs(
    a: float, b: float, error_a: MeanError, error_b: MeanError
) -> RatioEstimate | None:
    """Returns the ratio of one run each; variation between runs is not in the interval."""
    error = together((error_a, error_b))
    change = _change(math.log(b) - math.log(a), reach(error), "the steps of one run per side")
    return change and replace(change, log_spread=error.size / math.sqrt(2), freedom=error.freedom)


def between_groups(
    a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE
) -> RatioEstimate | None:
    """Returns the ratio of three or more runs in all, by Welch's test on logarithms."""
    logs_a, logs_b = [math.log(x) for x in a], [math.log(x) for x in b]
    difference = fmean(logs_b) - fmean(logs_a)
    if min(len(a), len(b)) == 1:
        larger = max(logs_a, logs_b, key=len)
        # One run has no spread to show: that of the other side's runs stands for both.
        spread = stdev(larger)
        error = MeanError(spread * math.sqrt(1 / len(a) + 1 / len(b)), len(larger) - 1)
        spread_of_runs = MeanError(spread, len(larger) - 1)
        method = "one run against the spread of the others"
        return _tested(difference, error, method, spread_of_runs, confidence)
    error = together((mean_error(logs_a), mean_error(logs_b)))
    spread = math.sqrt((stdev(logs_a) ** 2 + stdev(logs_b) ** 2) / 2)
    spread_of_runs = MeanError(spread, len(a) + len(b) - 2)
    method = "Welch's t test on logarithms"
    return _tested(difference, error, method, spread_of_runs, confidence)


def between_pairs(
    a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE
) -> RatioEstimate | None:
    """Returns the ratio of paired runs (same seed or fold), by the paired t-test on logarithms."""
    differences = [math.log(y) - math.log(x) for x, y in zip(a, b, strict=True)]
    # Half of a pair's variance is what one run has left once its partner is taken into account.
    spread = MeanError(stdev(differences) / math.sqrt(2), len(differences) - 1)
    method = "paired t test on logarithms"
    return _tested(fmean(differences), mean_error(differences), method, spread, confidence)


def mean_error(values: Sequence[float]) -> MeanError:
    """Returns the standard error of the mean of two or more independent values."""
    return MeanError(stdev(values) / math.sqrt(len(values)), len(values) - 1)


def error_of_one_against(a: Sequence[float], b: Sequence[float]) -> MeanError:
    """Returns the error of the difference between one run and several.

    One run has no spread, so the relative spread of the others is used for it, or the same spread
    where a mean is not positive and no share can express it.
    """
    several = max(a, b, key=len)
    if min(fmean(a), fmean(b)) <= 0:
        size = stdev(several) * math.sqrt(1 / len(a) + 1 / len(b))
        return MeanError(size, len(several) - 1)
    spread = stdev(several) / fmean(several)
    size = spread * math.hypot(fmean(a) / math.sqrt(len(a)), fmean(b) / math.sqrt(len(b)))
    return MeanError(size, len(several) - 1)


def rank_test(a: Sequence[float], b: Sequence[float], paired: bool) -> tuple[str, float] | None:
    """Returns the name and p-value of a rank test; `None` with too few runs."""
    fewest = MIN_PAIRS_FOR_RANK_TEST if paired else MIN_RUNS_FOR_RANK_TEST
    if min(len(a), len(b)) < fewest or (paired and list(a) == list(b)):
        return None
    from scipy import stats  # late: it takes most of a second

    if paired:
        return "Wilcoxon signed-rank", float(stats.wilcoxon(a, b).pvalue)
    return "Mann-Whitney", float(stats.mannwhitneyu(a, b).pvalue)


def _tested(
    difference: float, error: MeanError, method: str, spread: MeanError, confidence: float
) -> RatioEstimate | None:
    change = _change(difference, reach(error, confidence) if error.size else 0.0, method)
    return change and replace(
        change,
        p=two_sided_p(difference, error),
        log_spread=spread.size,
        freedom=spread.freedom,
        confidence=confidence,
    )


def _change(log_ratio: float, log_reach: float, method: str) -> RatioEstimate | None:
    low, high = log_ratio - log_reach, log_ratio + log_reach
    if max(abs(low), abs(high)) > _MAX_LOG:
        return None
    return RatioEstimate(math.exp(log_ratio), math.exp(low), math.exp(high), method)


def holm(p_values: Mapping[_Name, float]) -> dict[_Name, float]:
    """Returns the p-values corrected for multiple comparisons by Holm's method."""
    adjusted: dict[_Name, float] = {}
    worst = 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        worst = max(worst, min(1.0, p * (len(p_values) - place)))
        adjusted[name] = worst
    return adjusted
