"""The history of one command as one record: what `traceml history --format=json` prints."""

from __future__ import annotations

from msgspec import Struct

from traceml.compare.change_points import MIN_RUNS
from traceml.model.run_values import RunValue
from traceml.summaries.record import KindScore


class HistoryRun(Struct, frozen=True, kw_only=True):
    """One run of the series."""

    run: str
    value: float
    interval: tuple[float, float] | None = None
    """The 95 % interval of the mean over the run's own steps, of the step time alone; what another
    run of the same code would differ by is not in it."""
    started_unix_s: float | None = None
    commit: str | None = None
    subject: str | None = None
    """The first line of the commit's message; `None` where no repository knows."""
    dirty: bool | None = None
    """Whether tracked files differed from the commit."""


class HistoryLevel(Struct, frozen=True, kw_only=True):
    """A stretch of runs without a change."""

    first_run: str
    last_run: str
    first_commit: str | None = None
    last_commit: str | None = None
    runs: int
    mean: float
    """Geometric where all values of the series are positive; along commits over the means of their
    runs, as in the changes beside it."""


class OtherDifference(Struct, frozen=True, kw_only=True):
    """What else is different between the last run before a change and the first one after it."""

    name: str
    before: RunValue | None = None
    after: RunValue | None = None


class HistoryChange(Struct, frozen=True, kw_only=True):
    """A change of the level."""

    first_run: str
    """The first run after it."""
    first_commit: str | None = None
    first_subject: str | None = None
    """The first line of that commit's message; `None` where no repository knows."""
    dirty: bool | None = None
    """Whether that run had changes that were not committed."""
    last_run_before: str
    last_commit_before: str | None = None
    commits_between: tuple[str, ...] | None = None
    """Commits of the first commit's history after the last commit before that have no run in the
    series: the change may as well be theirs. `None` where no repository knows."""
    earliest_run: str
    latest_run: str
    """The 95 % interval of the first run after the change."""
    before: float
    """The mean of the level before; along commits over the means of their runs."""
    after: float
    difference: float
    difference_interval: tuple[float, float]
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    """`None` where not all values are positive."""
    p: float
    effect: str | None = None
    """`worse` or `better`; `None` where it is not known which way the metric improves."""
    also_different: tuple[OtherDifference, ...] = ()


class LeftOutRuns(Struct, frozen=True, kw_only=True):
    """Runs that are not in the series, and why."""

    why: str
    runs: int
    examples: tuple[str, ...] = ()


class OtherSeries(Struct, frozen=True, kw_only=True):
    """Another series that the filter lets through."""

    command: str
    runs: int
    newest_run: str = ""
    """A run of it, by which it can be asked for."""
    different: dict[str, RunValue | None] = {}
    """What it has that the chosen series has not, besides the command."""


class PredictionScore(Struct, frozen=True, kw_only=True):
    """What a finding predicted, and what happened once it was gone."""

    kinds: tuple[str, ...]
    """Several where they were gone at once: their savings are added."""
    before_run: str
    before_commit: str | None = None
    after_run: str
    after_commit: str | None = None
    step_ms: float
    """Before; with the time between steps where a cause lies there."""
    predicted_ms: float
    actual_ms: float
    saved_share: float
    """The time that was saved divided by the time that was to be saved."""
    is_upper_bound: bool = False
    """Whether it was said that a step may become shorter than predicted."""


class OpenPrediction(Struct, frozen=True, kw_only=True):
    """What the newest run predicts, with the score of earlier predictions of the same kind."""

    kind: str
    step_ms: float | None = None
    predicted_ms: float | None = None
    summary: str | None = None
    score: KindScore | None = None
    """`None` where none of its kind was scored yet."""


class RunHistory(Struct, frozen=True, kw_only=True):
    """A metric of one command along commits, or in time."""

    metric: str
    higher_is_better: bool | None = None
    order: str
    """`commit` or `time`."""
    unit: str
    """What the test takes as one value: `commit` (a version of the code, with the mean of its runs)
    or `run`."""
    units: int
    """How many of these the series has; below twelve, nothing is judged."""
    held_equal: dict[str, RunValue | None] = {}
    """What all runs of the series have in common."""
    runs: tuple[HistoryRun, ...] = ()
    levels: tuple[HistoryLevel, ...] = ()
    changes: tuple[HistoryChange, ...] = ()
    left_out: tuple[LeftOutRuns, ...] = ()
    others: tuple[OtherSeries, ...] = ()
    scores: tuple[PredictionScore, ...] = ()
    predictions: tuple[OpenPrediction, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_judged(self) -> bool:
        """Whether there is enough to tell a change from noise."""
        return self.units >= MIN_RUNS

    @property
    def is_regression(self) -> bool:
        """Whether the newest level began with a change to the worse."""
        return bool(self.changes) and self.changes[-1].effect == "worse"
