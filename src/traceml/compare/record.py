"""A comparison as one record: what the JSON file holds and every output consumes."""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec import Struct, structs

from traceml.compare.lineage import LineageComparison

SCHEMA_VERSION = 2
"""History: 1 first; 2 adds intervals, groups of runs, the gate, and what moved between ranks."""
FORMAT = "A -> B | delta = B - A"
SIGNIFICANT = 0.05


class Status(str, Enum):
    """What a comparison can conclude."""

    IMPROVEMENT = "IMPROVEMENT"
    REGRESSION = "REGRESSION"
    NO_CHANGE = "NO CHANGE"
    MIXED = "MIXED"
    INCONCLUSIVE = "INCONCLUSIVE"


class Delta(Struct, frozen=True):
    """One number on both sides; `None` is not measured, and so is a change from or to it."""

    lhs: float | None = None
    """Of several runs their mean."""
    rhs: float | None = None
    delta: float | None = None
    pct_change: float | None = None
    """In percent of `lhs`."""
    interval: tuple[float, float] | None = None
    """Holds the true `delta` in 95 of 100 such comparisons; `None` where nothing shows it."""
    p: float | None = None
    """The chance of a change this large where there is none, given how many were looked at."""
    significant: bool | None = None

    @staticmethod
    def between(lhs: float | None, rhs: float | None) -> Delta:
        """The change from A's value to B's."""
        if lhs is None or rhs is None:
            return Delta(lhs, rhs)
        delta = rhs - lhs
        return Delta(lhs, rhs, delta, 100 * delta / lhs if lhs else None)

    def times(self, factor: float) -> Delta:
        """The same change in a unit that is so many times as small."""

        def scaled(value: float | None) -> float | None:
            return None if value is None else factor * value

        interval = self.interval and (factor * self.interval[0], factor * self.interval[1])
        return structs.replace(
            self,
            lhs=scaled(self.lhs),
            rhs=scaled(self.rhs),
            delta=scaled(self.delta),
            interval=interval,
        )

    def judged(self, p: float) -> Delta:
        """The same change with the p that counts, all questions asked at once considered."""
        return structs.replace(self, p=p, significant=p < SIGNIFICANT)


class DiagnosisChange(Struct, frozen=True):
    """What each side was diagnosed with, in words; `changed` is judged by the kinds."""

    lhs: str | None = None
    rhs: str | None = None
    changed: bool | None = None


class SectionComparison(Struct, frozen=True):
    """One section of the two summaries."""

    diagnosis: DiagnosisChange
    metrics: dict[str, Delta]


class Overview(Struct, frozen=True):
    """The runs as a whole."""

    primary_diagnosis: DiagnosisChange
    duration_s: Delta


class NoiseSource(Struct, frozen=True):
    """Something about the machine that can make two runs of one command differ."""

    kind: str
    """`cpu_wait`, `host_load`, `cpu_steal`, `cpu_quota`, `gpu_clock`, `gpu_neighbours`,
    `unsteady`, `virtual_cpu`."""
    lhs: float
    """What A recorded of it: a share of one, of `gpu_neighbours` bytes."""
    rhs: float
    share: float
    """The difference between two runs alike that it can explain by itself."""
    summary: str


class Noise(Struct, frozen=True):
    """What the allowance is made of, as shares of one."""

    share: float
    """The allowance."""
    base_share: float
    """What it would be on a quiet machine."""
    sources: tuple[NoiseSource, ...] = ()
    """What the two runs recorded about the machine and widened it, the largest first."""


class ComparisonVerdict(Struct, frozen=True, kw_only=True):
    """The claim, the sentence that supports it, and what to do about it."""

    status: str
    why: str
    next: str
    metric: str = "step_time"
    """What it was judged by."""
    allowance_pct: float
    """How far two runs of the same command are taken to differ by themselves."""
    allowance_from: str = "default"
    """Where that is from: `default`, the `history` of the command, or the `runs` compared."""
    noise: Noise | None = None
    """How the allowance comes about."""
    tolerance_pct: float = 1.0
    """A change shown to be smaller than this is none."""
    max_regression_pct: float | None = None
    """The change for the worse that was allowed, where one was."""
    ratio: float | None = None
    """B : A of the metric."""
    ratio_interval: tuple[float, float] | None = None
    """Holds the true one in 95 of 100 such comparisons."""
    method: str | None = None
    """How the interval was made."""
    p: float | None = None
    rank_test: str | None = None
    rank_test_p: float | None = None
    further_runs: int | None = None
    """How many more runs per side give a verdict in four of five cases, by what these runs leave
    open; `None`: more than a hundred in all, or nothing shows how such runs spread."""
    further_runs_range: tuple[int, int] | None = None
    """From as many as give a verdict in one of two cases, up to `further_runs`."""


class Moved(Struct, frozen=True):
    """Whether the time that some phases lost is, for the most part, what others gained."""

    removed_ms: float
    added_ms: float
    moved: bool
    """Work went from one phase to another rather than away."""


class StragglerRanks(Struct, frozen=True):
    """Ranks that held up the others."""

    kind: str
    status: str
    ranks: tuple[int, ...]


class RankChanges(Struct, frozen=True):
    """What moved between ranks."""

    new: tuple[StragglerRanks, ...] = ()
    gone: tuple[StragglerRanks, ...] = ()
    skew_percent: Delta = Delta()
    """How much longer the slowest rank's step was than the median rank's."""


class Gate(Struct, frozen=True):
    """What the comparison was to fail on, and whether it did."""

    fail_on: tuple[str, ...]
    failed: bool
    unmeasured: tuple[str, ...] = ()
    """What it judges by and a side lacks; then it fails, whatever the verdict."""
    nothing_measured: bool = False
    """Whether nothing that it judges by was measured on both sides."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Two runs, or two groups of runs, side by side."""

    schema_version: int = SCHEMA_VERSION
    format: str = FORMAT
    a: str
    b: str
    a_runs: tuple[str, ...] = ()
    """The runs of a side, by name."""
    b_runs: tuple[str, ...] = ()
    paired_by: str | None = None
    """The parameter by which the runs of both sides belong together two by two."""
    verdict: ComparisonVerdict
    gate: Gate | None = None
    overview: Overview
    waterfall_ms: dict[str, float] | None
    """By phase: the parts of the step time's change; they sum to it."""
    moved: Moved | None = None
    ranks: RankChanges = RankChanges()
    sections: dict[str, SectionComparison]
    lineage: LineageComparison | None = None
    """What is different about the runs' code, command, environment, machine and data."""
    code_stat: str | None = None
    """The files that differ between the two commits, as git counts them."""
    warnings: tuple[str, ...]

    def with_code_stat(self, stat: str | None) -> Comparison:
        """The same comparison; the repository was asked what changed in the code."""
        return structs.replace(self, code_stat=stat)

    @property
    def has_common_metric(self) -> bool:
        """Whether any metric was measured on both sides; with a gate, any that it judges by."""
        if self.gate is not None and self.gate.nothing_measured:
            return False
        return any(
            metric.delta is not None
            for section in self.sections.values()
            for metric in section.metrics.values()
        )


def to_json(comparison: Comparison) -> bytes:
    """The comparison as strict JSON, indented for people."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n"


def all_to_json(comparisons: tuple[Comparison, ...]) -> bytes:
    """One comparison as itself, several as an array."""
    if len(comparisons) == 1:
        return to_json(comparisons[0])
    return msgspec.json.format(msgspec.json.encode(comparisons), indent=2) + b"\n"
