"""Scores earlier predictions ("without this a step takes …") by what happened once they were gone.

Runs of the same code and command are one version. Of two versions that follow each other, a finding
that every run of the earlier one has with a prediction, and no run of the later one, is taken for
mended. What else was changed at the same time is in the score too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from traceml.compare.comparable import SAME_SAMPLES
from traceml.compare.history_record import OpenPrediction, PredictionScore
from traceml.summaries.record import KindScore, Summary, WhatIfSummary

_STEP, _WALL = "step_time_ms", "wall_step_ms"


@dataclass(frozen=True, slots=True)
class RunVersion:
    """All runs of one code and command; the oldest run first."""

    runs: tuple[tuple[str, Summary], ...]
    commit: str | None = None

    @property
    def summaries(self) -> list[Summary]:
        """The summaries alone."""
        return [summary for _, summary in self.runs]

    def mean(self, metric: str) -> float | None:
        """Returns the mean of a metric of steps over the runs; `None` where one has none."""
        known = [_average(summary, metric) for summary in self.summaries]
        values = [value for value in known if value is not None]
        return fmean(values) if len(values) == len(known) else None


def score_predictions(versions: Sequence[RunVersion]) -> list[PredictionScore]:
    """Returns the scores of the predictions that can be scored, in the order of the versions."""
    return [score for before, after in pairwise(versions) for score in _scored(before, after)]


def score_by_kind(scores: Iterable[PredictionScore]) -> dict[str, KindScore]:
    """Returns the scores of each kind; those of several kinds at once count for none of them."""
    shares: dict[str, list[float]] = {}
    for score in scores:
        if len(score.kinds) == 1:
            shares.setdefault(score.kinds[0], []).append(score.saved_share)
    return {
        kind: KindScore(
            kind=kind,
            predictions=len(found),
            median_saved_share=median(found),
            min_saved_share=min(found),
            max_saved_share=max(found),
        )
        for kind, found in shares.items()
    }


def open_predictions(newest: Summary, scores: Iterable[PredictionScore]) -> list[OpenPrediction]:
    """Returns what a run predicts, each with the score of its kind."""
    known = score_by_kind(scores)
    return [
        OpenPrediction(
            kind=found.kind,
            step_ms=found.step_time_ms,
            predicted_ms=found.predicted_step_time_ms,
            summary=found.summary,
            score=known.get(found.kind),
        )
        for found in newest.what_if
    ]


def _scored(before: RunVersion, after: RunVersion) -> Iterator[PredictionScore]:
    gone = _gone(before, after)
    if not gone or not _is_same_work(before, after):
        return
    predictions = [
        [found for found in summary.what_if if found.kind in gone and found.part_of not in gone]
        for summary in before.summaries
    ]
    # A part of another finding that is gone as well saves some of the same time.
    kinds = dict.fromkeys(found.kind for each in predictions for found in each)
    is_wall = any(_is_wall(before.summaries[0], found) for found in predictions[0])
    metric = _WALL if is_wall else _STEP
    step_ms, actual_ms = before.mean(metric), after.mean(metric)
    saved_ms = fmean(sum(found.saved_ms or 0.0 for found in each) for each in predictions)
    if step_ms is None or actual_ms is None or saved_ms <= 0:
        return
    yield PredictionScore(
        kinds=tuple(kinds),
        before_run=before.runs[-1][0],
        before_commit=before.commit,
        after_run=after.runs[0][0],
        after_commit=after.commit,
        step_ms=step_ms,
        predicted_ms=max(0.0, step_ms - saved_ms),
        actual_ms=actual_ms,
        saved_share=(step_ms - actual_ms) / saved_ms,
        is_upper_bound=any(found.is_upper_bound for each in predictions for found in each),
    )


def _gone(before: RunVersion, after: RunVersion) -> set[str]:
    """Returns the kinds that all runs of a version have a prediction for, and that no run of the
    next version has."""
    predicted = [{found.kind for found in summary.what_if} for summary in before.summaries]
    still = {
        issue.kind
        for summary in after.summaries
        if summary.step_time is not None
        for issue in summary.step_time.issues
    }
    return set.intersection(*predicted) - still


def _is_wall(summary: Summary, found: WhatIfSummary) -> bool:
    """Returns whether a prediction is of the step with the time between steps: its own step time
    is nearer to that."""
    step_ms, wall_ms = _average(summary, _STEP), _average(summary, _WALL)
    if step_ms is None or wall_ms is None or found.step_time_ms is None:
        return False
    return abs(found.step_time_ms - wall_ms) < abs(found.step_time_ms - step_ms)


def _is_same_work(before: RunVersion, after: RunVersion) -> bool:
    """Returns whether steps process as many samples, as far as that is known."""
    a, b = before.mean("samples_per_step"), after.mean("samples_per_step")
    return a is None or b is None or abs(a - b) <= SAME_SAMPLES * max(a, b)


def _average(summary: Summary, metric: str) -> float | None:
    return summary.step_time.global_.average.get(metric) if summary.step_time else None
