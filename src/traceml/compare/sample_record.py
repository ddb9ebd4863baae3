"""A comparison of two models on one test set as a record: a part of the JSON file."""

from __future__ import annotations

from msgspec import Struct


class PairedDifference(Struct, frozen=True, kw_only=True):
    """B's score minus A's over the examples that both have."""

    count: int
    lhs: float | None = None
    rhs: float | None = None
    delta: float | None = None
    pct_change: float | None = None
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval of `delta`."""
    interval_by: str | None = None
    """`bootstrap` (bias-corrected and accelerated) or `t`."""
    test: str | None = None
    """The test that decides: `mcnemar` where all scores are 0 or 1, else `t`."""
    p: float | None = None
    """Its p-value, corrected for the number of scores or of segments (Holm)."""
    significant: bool | None = None
    t_p: float | None = None
    """The p-value of the paired t test, by itself."""
    wilcoxon_p: float | None = None
    """That of Wilcoxon's signed-rank test."""
    mcnemar_p: float | None = None
    """That of McNemar's exact test, for scores that are 0 or 1."""
    only_a_right: int | None = None
    """Of such scores: examples that A has right and B wrong."""
    only_b_right: int | None = None


class ScoreComparison(Struct, frozen=True, kw_only=True):
    """One score of both models, over all examples and by segment."""

    status: str
    higher_is_better: bool | None = None
    direction_from: str | None = None
    whole: PairedDifference
    without_number: tuple[int, int] = (0, 0)
    """Of the examples that both sides have, those without a finite score: in A, and in B."""
    segments: dict[str, PairedDifference] = {}


class SampleComparison(Struct, frozen=True, kw_only=True):
    """One test set, and both models on it."""

    paired: int
    """Examples that both sides have."""
    only_in_a: int = 0
    only_in_b: int = 0
    segments_left_out: int = 0
    scores: dict[str, ScoreComparison]
