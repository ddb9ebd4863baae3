"""The final summary: one record that every output consumes and `final_summary.json` holds.

The names are those of the file. Everything has a default, because a summary that somebody else
wrote may lack any part of it; `None` is "not measured" and is written as `null`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from traceml.model.lineage import Lineage
from traceml.summaries.layer_record import LayersSummary

Setting = str | int | float | bool | tuple[str, ...] | None
"""The value of one setting; `None` is not known."""

SCHEMA_VERSION = 1.9
PRODUCER = "traceml-insight"
FORMAT = 1
"""The version of what we add to the shared schema. History: 1 is the first."""


class Producer(Struct, frozen=True):
    """The program that wrote the file."""

    name: str | None = None
    version: str | None = None
    format: int | None = None


class Meta(Struct, frozen=True):
    """The run's name and size."""

    run_name: str | None = None
    mode: str | None = None
    world_size: int | None = None
    nodes_observed: int | None = None
    gpus_observed: int | None = None


class FactSummary(Struct, frozen=True):
    """Label and unit of one piece of evidence (`model/evidence.py`)."""

    name: str
    """Its key in `evidence`."""
    label: str
    unit: str


class Issue(Struct, frozen=True):
    """One finding as a section lists it; shares are fractions in 0–1."""

    kind: str | None = None
    status: str | None = None
    severity: str | None = None
    summary: str | None = None
    action: str | None = None
    metric: str | None = None
    phase: str | None = None
    score: float | None = None
    share_pct: float | None = None
    skew_pct: float | None = None
    ranks: tuple[int, ...] = ()
    evidence: dict[str, Any] = {}
    facts: tuple[FactSummary, ...] = ()
    """The evidence that people see, in order; empty in files of older versions."""
    since_step: int | None = None
    """The step since which it holds, where that is known."""


class PrimaryDiagnosis(Struct, frozen=True):
    """The one finding to read first."""

    kind: str | None = None
    status: str | None = None
    severity: str | None = None
    section: str | None = None
    summary: str | None = None
    action: str | None = None
    evidence: dict[str, Any] = {}


class Window(Struct, frozen=True):
    """The steps or samples that the numbers of a section cover."""

    kind: str | None = None
    alignment: str | None = None
    samples: int | None = None
    steps_analyzed: int | None = None
    start_step: int | None = None
    end_step: int | None = None
    completed_step: int | None = None
    warmup_steps: int | None = None
    diagnosis_clock: str | None = None


class RankValue(Struct, frozen=True, gc=False):
    """A value, and the rank or node that has it."""

    value: float | None = None
    idx: str | None = None


class Global(Struct, frozen=True):
    """A section's numbers over all ranks or nodes."""

    index_by: str | None = None
    window: Window = Window()
    average: dict[str, float | None] = {}
    median: dict[str, RankValue] = {}
    worst: dict[str, RankValue] = {}


class Identity(Struct, frozen=True, gc=False):
    """The rank or node that a row is about."""

    global_rank: int | None = None
    local_rank: int | None = None
    node_rank: int | None = None
    hostname: str | None = None
    local_world_size: int | None = None
    world_size: int | None = None


class RankRow(Struct, frozen=True, gc=False):
    """One rank's or node's own numbers."""

    identity: Identity = Identity()
    metrics: dict[str, float | None] = {}


class Groups(Struct, frozen=True):
    """A section's numbers by rank or by node."""

    by: str | None = None
    rows: dict[str, RankRow] = {}


class SectionMetadata(Struct, frozen=True):
    """How much data a section is based on."""

    mode: str | None = None
    duration_s: float | None = None
    samples: int | None = None
    nodes_expected: int | None = None
    nodes_observed: int | None = None
    gpus_observed: int | None = None
    global_ranks_seen: int | None = None
    global_ranks_used: int | None = None
    training_total_steps: int | None = None
    training_latest_step: int | None = None
    section_metric_names: tuple[str, ...] = ()


class SectionSummary(Struct, frozen=True):
    """One section: its diagnosis, and the numbers behind it."""

    metadata: SectionMetadata = SectionMetadata()
    diagnosis: Issue | None = None
    issues: tuple[Issue, ...] = ()
    global_: Global = field(default=Global(), name="global")
    groups: Groups = Groups()
    units: dict[str, str] = {}


class GpuRow(Struct, frozen=True, gc=False):
    """One GPU of the machine, by its sensors and counters."""

    index: int | None = None
    """As `nvidia-smi` numbers it."""
    uuid: str | None = None
    name: str | None = None
    metrics: dict[str, float | None] = {}


class SystemSummary(SectionSummary, frozen=True):
    """The machine, and each of its GPUs."""

    gpus: tuple[GpuRow, ...] = ()


class StepSeries(Struct, frozen=True):
    """The distribution of the step times over the run, for comparisons.

    Each step's time is its mean over the ranks; after warm-up, without steps that are merged into
    blocks.
    """

    count: int
    mean_ms: float | None = None
    stdev_ms: float | None = None
    quantiles_ms: dict[str, float] = {}
    """By percentile: "1", "5", "25", "50", "75", "95", "99"."""
    autocorrelation: tuple[float, ...] = ()
    """At lags 1, 2, 4, 8, … up to the length of the series."""
    effective_count: float | None = None
    """The number of independent steps with the same uncertainty of the mean."""
    block_steps: int | None = None
    block_means_ms: tuple[float, ...] = ()
    """Means of at most 64 consecutive blocks of equal length."""
    part_block_means_ms: dict[str, tuple[float, ...]] = {}
    """The same for each measured phase, for `between` and for `wall`; in fewer, longer blocks where
    not every block has a measurement."""
    slowdown_step: int | None = None
    """The step, counted from 1, from which on steps took clearly longer; `None` without a
    slowdown."""
    slowdown_ratio: float | None = None
    """The mean step time afterwards divided by the mean before."""


class WhatIfSummary(Struct, frozen=True):
    """How long a step would take without the cause of one finding."""

    kind: str
    ranks: tuple[int, ...] = ()
    phase: str | None = None
    part_of: str | None = None
    """The kind of the finding of whose time this is a part; the savings are not to be added."""
    step_time_ms: float | None = None
    """The step as it is; with the time between steps where the cause lies there."""
    predicted_step_time_ms: float | None = None
    is_upper_bound: bool = False
    """Whether a step may well become shorter than predicted."""
    speedup: float | None = None
    saved_ms: float | None = None
    summary: str | None = None


class FailureSummary(Struct, frozen=True):
    """What ended a run that did not end well."""

    kind: str | None = None
    rank: int | None = None
    step: int | None = None
    phase: str | None = None
    module: str | None = None
    error: str | None = None
    message: str | None = None
    where: str | None = None
    traceback: str | None = None
    """As Python printed it; `None` where no exception ended the run."""
    summary: str | None = None
    action: str | None = None
    evidence: dict[str, Any] = {}
    facts: tuple[FactSummary, ...] = ()


class RegionSummary(Struct, frozen=True):
    """A named region (`trace_time`), summed over ranks."""

    name: str
    calls: int
    total_ms: float
    mean_ms: float
    longest_ms: float
    gpu_total_ms: float | None = None


class CodeSummary(Struct, frozen=True):
    """A function or a line of user code, and how much of a phase was spent there."""

    function: str
    file: str
    line: int
    share: float
    """Of the phase, 0–1, with its 95 % confidence interval."""
    share_low: float
    share_high: float
    looks: int
    per_step_ms: float | None = None
    """The same share of the phase's mean time on the host."""


class PhaseCodeSummary(Struct, frozen=True):
    """Where a phase's time went in the user's code."""

    looks: int
    places: tuple[CodeSummary, ...] = ()


class UserTimeSummary(Struct, frozen=True):
    """Samples of the training threads' Python stacks, taken while something was wrong."""

    looks: int = 0
    """Samples taken while training steps ran; only these count."""
    taken: int = 0
    torn: int = 0
    by: str | None = None
    """How they were taken: `py-spy`, or `signal` where that may not attach."""
    phases: dict[str, PhaseCodeSummary] = {}
    """By phase, and `between`; only those with enough samples."""


class MetricSummary(Struct, frozen=True):
    """A logged metric's history in a few numbers."""

    count: int
    last: float | None = None
    """`None`: it was NaN or infinite, which JSON cannot have."""
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    higher_is_better: bool | None = None
    """What the script said (`log_metrics(…, higher_is_better=…)`); `None`: nothing, so that its
    name is asked (`model/metric_direction.py`)."""


class ArtifactFileSummary(Struct, frozen=True):
    """A file of a logged folder."""

    size_bytes: int | None = None
    sha256: str | None = None
    kind: str | None = None


class ArtifactVersion(Struct, frozen=True):
    """An earlier content that was logged under the same name."""

    size_bytes: int | None = None
    sha256: str | None = None
    stored: str | None = None
    logged_unix_s: float | None = None
    note: str | None = None


class ArtifactSummary(Struct, frozen=True):
    """A file or a folder that the script logged: its last version, and those before it."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None
    """Of a folder, the hash of its files' names and hashes."""
    kind: str | None = None
    """`checkpoint`, `image`, `table`, `json`, `samples`, `log`, `text`, `array`, `folder`,
    `reference` or `other`; `None` in files of earlier versions."""
    stored: str | None = None
    """Where in the run's folder its content is; `None` where it was not kept."""
    logged_unix_s: float | None = None
    version: int = 1
    """How many different contents had been logged under this name."""
    earlier: tuple[ArtifactVersion, ...] = ()
    """The versions before, the latest last; at most `MAX_VERSIONS`."""
    files: dict[str, ArtifactFileSummary] = {}
    """Of a folder, by path."""
    note: str | None = None
    """What could not be kept, and why."""


class TracerSummary(Struct, frozen=True):
    """What the tracer itself could not do."""

    steps_recorded: int = 0
    steps_lost: int = 0
    steps_aborted: int = 0
    failures: int = 0
    last_failure: str | None = None
    messages_lost: int = 0
    values_refused: int = 0
    """Logged values that could not be recorded as they were."""
    stopped_after_steps: int | None = None
    """After how many steps tracing was stopped on request; `None` where all steps were traced."""
    notes: tuple[str, ...] = ()


class Summary(Struct, frozen=True):
    """A whole `final_summary.json`."""

    schema_version: float | None = None
    generated_at: str | None = None
    duration_s: float | None = None
    producer: Producer = Producer()
    meta: Meta = Meta()
    exit_status: int | None = None
    primary_diagnosis: PrimaryDiagnosis = PrimaryDiagnosis()
    step_time: SectionSummary | None = None
    step_memory: SectionSummary | None = None
    process: SectionSummary | None = None
    system: SystemSummary | None = None
    stability: SectionSummary | None = None
    failure: FailureSummary | None = None
    steps: StepSeries | None = None
    what_if: tuple[WhatIfSummary, ...] = ()
    """In the order of the findings that they belong to."""
    regions: tuple[RegionSummary, ...] = ()
    user_time: UserTimeSummary | None = None
    """`None` where no stack was sampled: nothing was wrong, or it was not possible."""
    layers: LayersSummary | None = None
    """`None` where the run had no deep profile."""
    params: dict[str, Any] = {}
    param_sources: dict[str, str] = {}
    """What those parameters were taken from that the script did not log by a call, by name."""
    metrics: dict[str, MetricSummary] = {}
    artifacts: dict[str, ArtifactSummary] = {}
    settings: dict[str, Setting] | None = None
    """The training settings, by the names of `model/settings.py`, and the names in which the ranks
    differ; `None` where nothing was recorded."""
    lineage: Lineage | None = None
    """The run's code, command, machine and data; `None` where it was not recorded."""
    tracer: TracerSummary | None = None
    text: str | None = None


class RunLabels(Struct, frozen=True):
    """The part of a summary by which runs are selected; the rest of the file is not decoded."""

    params: Any = None
    meta: Any = None
    lineage: Any = None
