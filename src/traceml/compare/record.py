"""A comparison as one record: the content of the JSON file, and the input of every output."""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from traceml.compare.artifact_changes import ArtifactChange
from traceml.compare.lineage import LineageComparison
from traceml.compare.sample_record import SampleComparison

SCHEMA_VERSION = 2
"""History: 1 is the first; 2 adds intervals, groups of runs, the gate, and changes between
ranks."""
FORMAT = "A -> B | delta = B - A"
SIGNIFICANT = 0.05
CONTEXT = ("process", "system")
"""Sections that describe the machine while a run went on, and not what it did: two runs without a
step have nothing in common, although both were sampled."""


class Status(str, Enum):
    """The possible verdicts."""

    IMPROVEMENT = "IMPROVEMENT"
    REGRESSION = "REGRESSION"
    NO_CHANGE = "NO CHANGE"
    MIXED = "MIXED"
    INCONCLUSIVE = "INCONCLUSIVE"


class Delta(Struct, frozen=True):
    """One metric on both sides; `None` means "not measured", also for its change."""

    lhs: float | None = None
    """With several runs, their mean."""
    rhs: float | None = None
    delta: float | None = None
    pct_change: float | None = None
    """In percent of the size of `lhs`, with the sign of `delta`."""
    interval: tuple[float, float] | None = None
    """The 95 % confidence interval of `delta`; `None` where nothing gives one."""
    p: float | None = None
    """The p-value, corrected for the number of metrics that were compared."""
    significant: bool | None = None
    higher_is_better: bool | UnsetType | None = UNSET
    """Only of a logged metric, see `LoggedDelta`; of all others the file has no such key."""
    direction_from: str | UnsetType | None = UNSET

    @staticmethod
    def between(lhs: float | None, rhs: float | None) -> Delta:
        """Returns the change from A's value to B's."""
        if lhs is None or rhs is None:
            return Delta(lhs, rhs)
        delta = rhs - lhs
        return Delta(lhs, rhs, delta, 100 * delta / abs(lhs) if lhs else None)

    def times(self, factor: float) -> Delta:
        """Returns the same change in a unit that is `factor` times smaller."""

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
        """Returns the same change with its p-value corrected for multiple comparisons."""
        return structs.replace(self, p=p, significant=p < SIGNIFICANT)


class LoggedDelta(Delta, frozen=True, kw_only=True):
    """A metric that the scripts logged, by the last value of each run."""

    higher_is_better: bool | None = None
    """`None` where neither the script nor the name says."""
    direction_from: str | None = None
    """Who says so: the `script`, the `user` (`--better`), or the `name` of the metric, from which
    it is guessed."""

    @staticmethod
    def of(delta: Delta) -> LoggedDelta:
        """Returns a change that was read from a file."""
        known = structs.asdict(delta)
        return LoggedDelta(**{name: value for name, value in known.items() if value is not UNSET})

    @property
    def is_better(self) -> bool:
        """Whether B is better; only where the metric has changed and its direction is known."""
        return ((self.delta or 0.0) > 0) is self.higher_is_better


class SegmentChanges(Struct, frozen=True, kw_only=True):
    """How the segments (classes) of one logged metric changed; each is a metric `name[segment]`."""

    compared: int
    """Segments of which both sides have a value."""
    better: int
    """Of these, changes that the runs show; with one run per side those of one percent or more."""
    worse: int
    worst: str | None = None
    """The segment that lost the most; `None` where none got worse."""
    best: str | None = None
    """The segment that gained the most."""
    listed: int
    """How many of them are among the logged metrics of the comparison: those that changed most."""


class LayerChange(Struct, frozen=True, kw_only=True):
    """One layer, or all those whose names differ in a number alone, on both sides."""

    name: str
    """Dotted; empty for the model itself; `blocks.*.attn` for layers that repeat."""
    was: str | None = None
    """Its name in A, where that differs."""
    kind: str | None = None
    layers: int = 1
    """How many layers it stands for."""
    change: Delta
    """Of its own time in milliseconds per step, or of bytes that it holds."""


class LayerMemoryChange(LayerChange, frozen=True, kw_only=True):
    """The same of something that a layer holds."""

    what: str
    """`saved` (for backward), `parameters`, `gradients`, `optimizer`, `buffers` or `peak`."""


class LayersOfOneSide(Struct, frozen=True):
    """Layers that the other side does not have."""

    layers: int = 0
    time_ms: float = 0.0
    """Their own time in all."""
    names: tuple[str, ...] = ()
    """Of those that take the longest."""


class LayerComparison(Struct, frozen=True, kw_only=True):
    """The layers of both sides, by their own time (without the layers below them)."""

    compared: int
    """How many layers both sides have."""
    time_ms: Delta
    """Own time of all layers of a side, per step."""
    moved: tuple[LayerChange, ...] = ()
    """Those whose time changed by more than chance explains, the largest change first."""
    moved_in_all: int = 0
    """How many those are; `moved` has the first of them."""
    memory: tuple[LayerMemoryChange, ...] = ()
    """Those that hold more or less memory, the largest change first."""
    memory_in_all: int = 0
    renamed: tuple[tuple[str, str], ...] = ()
    """Names in A and in B of layers that have the same class, size and order on both sides."""
    renamed_in_all: int = 0
    new: LayersOfOneSide = LayersOfOneSide()
    gone: LayersOfOneSide = LayersOfOneSide()
    notes: tuple[str, ...] = ()


class HostTimeChange(Struct, frozen=True, kw_only=True):
    """One of the user's functions on both sides."""

    phase: str
    function: str
    file: str
    change: Delta
    """Of its share of the phase's stack samples, 0–1, what it called in packages included."""


class HostTimeComparison(Struct, frozen=True, kw_only=True):
    """Where the host's time goes on both sides, by stack samples."""

    phases: tuple[str, ...]
    """Those that every run has enough samples of."""
    compared: int
    """How many functions of those phases were compared."""
    moved: tuple[HostTimeChange, ...] = ()
    """Those whose share changed by more than chance explains, the largest change first."""
    moved_in_all: int = 0


class DiagnosisChange(Struct, frozen=True):
    """The diagnosis of each side in words; `changed` compares the kinds."""

    lhs: str | None = None
    rhs: str | None = None
    changed: bool | None = None


class SectionComparison(Struct, frozen=True):
    """One section of the two summaries."""

    diagnosis: DiagnosisChange
    metrics: dict[str, Delta]
    """Of the section `logged`, each is a `LoggedDelta`."""


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
    """What A recorded of it: a share in 0–1; bytes for `gpu_neighbours`."""
    rhs: float
    share: float
    """The difference between two equal runs that it can explain by itself."""
    summary: str


class Noise(Struct, frozen=True):
    """What the allowance consists of, as shares in 0–1."""

    share: float
    """The allowance."""
    base_share: float
    """The allowance on a quiet machine."""
    sources: tuple[NoiseSource, ...] = ()
    """The recorded sources that widened it, the largest first."""


class ComparisonVerdict(Struct, frozen=True, kw_only=True):
    """The verdict, the sentence that supports it, and what to do next."""

    status: str
    why: str
    next: str
    identical: bool = False
    """Whether both sides hold the same measurements, as a run and itself do."""
    metric: str = "step_time"
    """The metric that it is based on."""
    allowance_pct: float
    """By how much two runs of the same command may differ without any change, in percent."""
    allowance_from: str = "default"
    """Its origin: `default`, the `history` of the command, or the `runs` compared."""
    noise: Noise | None = None
    """What the allowance consists of."""
    tolerance_pct: float = 1.0
    """A change that is shown to be smaller than this counts as none."""
    max_regression_pct: float | None = None
    """The regression that was allowed, if any."""
    ratio: float | None = None
    """The metric's ratio B / A."""
    ratio_interval: tuple[float, float] | None = None
    """The confidence interval of the ratio."""
    confidence: float | None = None
    """The confidence of that interval: 0.95, or more where runs are judged several times."""
    method: str | None = None
    """The method that gave the interval."""
    p: float | None = None
    rank_test: str | None = None
    rank_test_p: float | None = None
    further_runs: int | None = None
    """How many more runs per side give a verdict in four of five cases; `None` where that is more
    than a hundred, or the spread of such runs is not known."""
    further_runs_range: tuple[int, int] | None = None
    """From the number that gives a verdict in one of two cases, up to `further_runs`."""


class Moved(Struct, frozen=True):
    """Whether the time that some phases lost is mostly what others gained."""

    removed_ms: float
    added_ms: float
    moved: bool
    """Work moved from one phase to another instead of disappearing."""


class StragglerRanks(Struct, frozen=True):
    """Ranks that delayed the others."""

    kind: str
    status: str
    ranks: tuple[int, ...]


class RankChanges(Struct, frozen=True):
    """What changed between ranks."""

    new: tuple[StragglerRanks, ...] = ()
    gone: tuple[StragglerRanks, ...] = ()
    skew_percent: Delta = Delta()
    """How much longer the slowest rank's step was than the median rank's, in percent."""


class Gate(Struct, frozen=True):
    """What the comparison should fail on, and whether it did."""

    fail_on: tuple[str, ...]
    failed: bool
    unmeasured: tuple[str, ...] = ()
    """Metrics that the gate needs and a side lacks; then it fails, whatever the verdict."""
    nothing_measured: bool = False
    """Whether none of the gate's metrics was measured on both sides."""


class BenchStop(str, Enum):
    """Why a benchmark made no further runs."""

    CLEAR = "clear"
    MAX_RUNS = "max_runs"
    MAX_MINUTES = "max_minutes"
    INTERRUPTED = "interrupted"


class BenchRecord(Struct, frozen=True, kw_only=True):
    """The benchmark that made the runs (`traceml bench`)."""

    a_command: str
    b_command: str
    a_commit: str | None = None
    """`None` where the command ran in the user's working tree."""
    b_commit: str | None = None
    looks: tuple[int, ...]
    """After how many runs per side they were to be judged, as planned before the first run."""
    stopped: str
    """Why there are no further runs: `clear`, `max_runs`, `max_minutes`, `interrupted`."""
    duration_s: float


class Comparison(Struct, frozen=True, kw_only=True):
    """Two runs, or two groups of runs, side by side."""

    schema_version: int = SCHEMA_VERSION
    format: str = FORMAT
    a: str
    b: str
    a_runs: tuple[str, ...] = ()
    """The names of the runs of a side."""
    b_runs: tuple[str, ...] = ()
    paired_by: str | None = None
    """The parameter by which runs of both sides are paired."""
    verdict: ComparisonVerdict
    gate: Gate | None = None
    overview: Overview
    waterfall_ms: dict[str, float] | None
    """The change of the step time by phase; the values add up to the change."""
    moved: Moved | None = None
    ranks: RankChanges = RankChanges()
    sections: dict[str, SectionComparison]
    segments: dict[str, SegmentChanges] = {}
    """Of logged metrics per segment, by the name of the metric."""
    layers: LayerComparison | None = None
    """Which layers moved; `None` where a side has no deep profile."""
    host_time: HostTimeComparison | None = None
    """Which functions moved; `None` where a side has no sampled stacks."""
    lineage: LineageComparison | None = None
    """The differences in the runs' code, command, environment, machine and data."""
    samples: dict[str, SampleComparison] = {}
    """By the name of a test set: both runs on it, example by example."""
    code_stat: str | None = None
    """The files that differ between the two commits, as `git diff --stat` lists them."""
    artifacts: tuple[ArtifactChange, ...] = ()
    """The logged files that differ, of one run on each side."""
    bench: BenchRecord | None = None
    """The benchmark that made the runs; `None` where they were made otherwise."""
    warnings: tuple[str, ...]

    def with_code_stat(self, stat: str | None) -> Comparison:
        """Returns the comparison with the list of files that changed in the code."""
        return structs.replace(self, code_stat=stat)

    def with_artifacts(self, changes: tuple[ArtifactChange, ...]) -> Comparison:
        """Returns the comparison with the logged files that differ."""
        return structs.replace(self, artifacts=changes)

    def with_samples(self, samples: dict[str, SampleComparison]) -> Comparison:
        """Returns the comparison with that of single examples."""
        return structs.replace(self, samples=samples)

    def with_names(self, a: str, b: str) -> Comparison:
        """Returns the comparison with other names of its sides."""
        return structs.replace(self, a=a, b=b)

    def with_bench(self, bench: BenchRecord) -> Comparison:
        """Returns the comparison with the benchmark that made its runs."""
        return structs.replace(self, bench=bench)

    @property
    def has_common_metric(self) -> bool:
        """Returns whether any metric was measured on both sides; with a gate, any that it needs."""
        if self.gate is not None and self.gate.nothing_measured:
            return False
        return bool(self.samples) or any(
            metric.delta is not None
            for name, section in self.sections.items()
            if name not in CONTEXT
            for metric in section.metrics.values()
        )


def to_json(comparison: Struct) -> bytes:
    """Returns a comparison of whatever kind as strict JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n"
