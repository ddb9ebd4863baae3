"""Two models on one test set: their scores compared example by example.

The pair of scores of one example is the unit, so that examples that are hard for both say nothing.
What another training of the same model would score is not in these intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from msgspec import structs

from traceml.compare import statistics
from traceml.compare.record import SIGNIFICANT, Status
from traceml.compare.sample_record import PairedDifference, SampleComparison, ScoreComparison
from traceml.compare.statistics import holm
from traceml.compare.students_t import reach, two_sided_p
from traceml.compare.terms import Terms
from traceml.model.metric_direction import direction_of
from traceml.store.logged_samples import ScoredSamples

MIN_SAMPLES = 5
"""Of a segment: with fewer nothing is tested."""
MAX_BOOTSTRAPPED = 2000
"""Samples up to which the interval is bootstrapped; of more, that of Student's t is the same."""
RESAMPLES = 2000
ROUNDING = 1e-12
"""Differences that vary by less, as a share of themselves, are all the same."""
RANDOM_SEED = 20260101
"""One and the same comparison always gives one and the same interval."""
MAX_SEGMENTS = 100
"""The largest; further ones are counted and not tested."""


@dataclass(frozen=True, slots=True)
class _Pairs:
    a: Sequence[float]
    b: Sequence[float]

    @property
    def differences(self) -> list[float]:
        return [y - x for x, y in zip(self.a, self.b, strict=True)]

    @property
    def is_right_or_wrong(self) -> bool:
        return set(self.a) | set(self.b) <= {0.0, 1.0}


def compare_samples(
    a: ScoredSamples, b: ScoredSamples, terms: Terms | None = None
) -> SampleComparison:
    """Returns the scores that both sides have, compared over the examples that both have."""
    terms = terms or Terms()
    ids = [side.ids.union(*side.scores.values()) for side in (a, b)]
    segment_of = {**a.segments, **b.segments}
    names = [name for name in a.scores if name in b.scores]
    wholes = {name: _difference(_pairs(a.scores[name], b.scores[name])) for name in names}
    corrected = _corrected(wholes)
    scores: dict[str, ScoreComparison] = {}
    left_out = 0
    for name in names:
        segments, skipped = _segments(a.scores[name], b.scores[name], segment_of)
        left_out = max(left_out, skipped)
        said = terms.higher_is_better if terms.metric == name else None
        direction = direction_of(name, said)
        without = [(ids[0] & ids[1]) - side.scores[name].keys() for side in (a, b)]
        status = _status(corrected[name], direction.higher_is_better, terms)
        if status is Status.NO_CHANGE and without[0] != without[1]:
            status = Status.INCONCLUSIVE  # the examples that one side failed on are not in it
        source = None
        if direction.higher_is_better is not None:
            source = "name" if direction.is_guessed else "user"
        scores[name] = ScoreComparison(
            status=status.value,
            higher_is_better=direction.higher_is_better,
            direction_from=source,
            whole=corrected[name],
            without_number=(len(without[0]), len(without[1])),
            segments=segments,
        )
    return SampleComparison(
        paired=len(ids[0] & ids[1]),
        only_in_a=len(ids[0] - ids[1]),
        only_in_b=len(ids[1] - ids[0]),
        segments_left_out=left_out,
        scores=scores,
    )


def _pairs(a: Mapping[str, float], b: Mapping[str, float]) -> _Pairs:
    both = [each for each in a if each in b]
    return _Pairs([a[each] for each in both], [b[each] for each in both])


def _segments(
    a: Mapping[str, float], b: Mapping[str, float], segment_of: Mapping[str, str]
) -> tuple[dict[str, PairedDifference], int]:
    """Returns the difference in each segment, the largest first, and how many were left out."""
    ids: dict[str, list[str]] = {}
    for each in a:
        if each in b and each in segment_of:
            ids.setdefault(segment_of[each], []).append(each)
    ordered = sorted(ids, key=lambda name: (-len(ids[name]), name))
    found = {
        name: _difference(_Pairs([a[each] for each in ids[name]], [b[each] for each in ids[name]]))
        for name in ordered[:MAX_SEGMENTS]
    }
    return _corrected(found), max(0, len(ordered) - MAX_SEGMENTS)


def _corrected(found: Mapping[str, PairedDifference]) -> dict[str, PairedDifference]:
    asked = {name: each.p for name, each in found.items() if each.p is not None}
    corrected = holm(asked)
    return {
        name: structs.replace(each, p=corrected[name], significant=corrected[name] < SIGNIFICANT)
        if name in corrected
        else each
        for name, each in found.items()
    }


def _difference(pairs: _Pairs) -> PairedDifference:
    """Returns the mean difference of pairs, its interval and its tests."""
    count = len(pairs.a)
    if not count:
        return PairedDifference(count=0)
    lhs, rhs = fmean(pairs.a), fmean(pairs.b)
    delta = rhs - lhs
    plain = PairedDifference(
        count=count,
        lhs=lhs,
        rhs=rhs,
        delta=delta,
        pct_change=100 * delta / abs(lhs) if lhs else None,
    )
    if count < MIN_SAMPLES:
        return plain
    interval, by = _interval(pairs.differences)
    t_p = _t_p(pairs.differences)
    tested = structs.replace(
        plain,
        interval=interval,
        interval_by=by,
        test="t",
        p=t_p,
        t_p=t_p,
        wilcoxon_p=_wilcoxon_p(pairs.differences),
    )
    return _with_mcnemar(tested, pairs) if pairs.is_right_or_wrong else tested


def _t_p(differences: Sequence[float]) -> float:
    return two_sided_p(fmean(differences), statistics.mean_error(differences))


def _wilcoxon_p(differences: Sequence[float]) -> float:
    if not any(differences):
        return 1.0
    from scipy import stats  # late: it takes most of a second

    return float(stats.wilcoxon(differences).pvalue)


def _with_mcnemar(found: PairedDifference, pairs: _Pairs) -> PairedDifference:
    """Returns the same with McNemar's exact test, which decides where scores are right or wrong."""
    from scipy import stats

    only_a = sum(x > y for x, y in zip(pairs.a, pairs.b, strict=True))
    only_b = sum(y > x for x, y in zip(pairs.a, pairs.b, strict=True))
    p = float(stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0
    return structs.replace(
        found, test="mcnemar", p=p, mcnemar_p=p, only_a_right=only_a, only_b_right=only_b
    )


def _interval(differences: Sequence[float]) -> tuple[tuple[float, float], str]:
    """Returns the 95 % interval of the mean difference, and how it was made."""
    mean = fmean(differences)
    if max(differences) - min(differences) <= ROUNDING * max(map(abs, differences)):
        return (mean, mean), "bootstrap"
    if len(differences) <= MAX_BOOTSTRAPPED:
        low, high = bootstrap_interval(differences)
        if low <= mean <= high:  # it is not where a single outlier carries all of it
            return (low, high), "bootstrap"
    distance = reach(statistics.mean_error(differences))
    return (mean - distance, mean + distance), "t"


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the bias-corrected and accelerated bootstrap interval of a mean, with a fixed
    seed."""
    import numpy as np
    from scipy import stats

    found = stats.bootstrap(
        (np.asarray(values),),
        np.mean,
        n_resamples=RESAMPLES,
        batch=max(1, 4_000_000 // len(values)),
        method="BCa",
        random_state=np.random.default_rng(RANDOM_SEED),
    ).confidence_interval
    return float(found.low), float(found.high)


def _status(found: PairedDifference, higher_is_better: bool | None, terms: Terms) -> Status:
    """Returns the verdict on one score; without a direction nothing is better or worse."""
    if found.delta is None or found.lhs is None or found.interval is None:
        return Status.INCONCLUSIVE
    size = abs(found.lhs)
    better = terms.tolerance * size
    worse = better if terms.max_regression is None else terms.max_regression * size
    low, high = (-worse, better) if higher_is_better else (-better, worse)
    if low <= found.interval[0] and found.interval[1] <= high:
        return Status.NO_CHANGE
    if not found.significant or higher_is_better is None:
        return Status.INCONCLUSIVE
    if (found.delta > 0) is higher_is_better:
        return Status.IMPROVEMENT
    allowed = (terms.max_regression or 0.0) * size
    return Status.REGRESSION if abs(found.delta) > allowed else Status.INCONCLUSIVE
