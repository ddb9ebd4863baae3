"""The final summary: one record that every output consumes and `final_summary.json` holds.

The names are those of the file. Everything has a default, because a summary that somebody else
wrote may lack any part of it; `None` is "not measured" and is written as `null`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from traceml.model.lineage import Lineage
from traceml.summaries.host_time_record import HostTimeSummary
from traceml.summaries.layer_record import LayersSummary
from traceml.summaries.step_traces import KinetoSummary

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
    nodes: tuple[str, ...] = ()
    """The machines that it is about, in a run over several; the worst first."""
    evidence: dict[str, Any] = {}
    facts: tuple[FactSummary, ...] = ()
    """The evidence that people see, in order; empty in files of older versions."""
    since_step: int | None = None
    """The step since which it holds, or in which it happened, where that is known."""
    until_step: int | None = None
    """The last step that it is about; `null` where it holds on, or where that is not known."""


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
    attempts: tuple[int, ...] | None = None
    """Whose steps these are, by number, where other attempts had another set of ranks …"""
    steps_left_out: int | None = None
    """… and how many steps those took."""


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
    mesh: dict[str, int] | None = None
    """The rank's coordinate in each dimension of the device mesh; `None` without a mesh."""
    pipeline_stages: tuple[int, ...] | None = None
    """The stages that it holds, from 0; `None` without a pipeline."""


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
    node: str | None = None
    """The machine that it is in, by name, in a run over several."""


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


class KindScore(Struct, frozen=True, kw_only=True):
    """How good the earlier predictions of one kind were."""

    kind: str
    predictions: int
    median_saved_share: float
    min_saved_share: float
    max_saved_share: float


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
    score: KindScore | None = None
    """How predictions of this kind by earlier runs of the same work came out; `None` where none
    could be scored."""


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


class GoodputSummary(Struct, frozen=True):
    """What the run's wall time went to."""

    wall_s: float | None = None
    """What the parts sum to: the run's wall time."""
    share: float | None = None
    """Of the wall time in productive steps, 0–1."""
    parts_s: dict[str, float] = {}
    """Every part of `model/run_time.py` by its name, in seconds, as the mean over ranks."""
    gpu_hours: float | None = None
    productive_gpu_hours: float | None = None
    restarts: int = 0
    """How often the ranks were started again after a failure."""
    redone_steps: int | None = None
    """Steps that had to be done again; `None` where what a restart went on from is not known."""


class AttemptSummary(Struct, frozen=True):
    """One start of the ranks of a run that had several."""

    number: int
    began_s: float | None = None
    """Since the start of the run."""
    until_s: float | None = None
    """When the next attempt began, or the run ended."""
    first_step_s: float | None = None
    """When its first step began and …"""
    last_step_s: float | None = None
    """… its last one ended, since the start of the run; `None` where it took none."""
    world_size: int | None = None
    steps: int = 0
    resumed_step: int | None = None
    """The step from which it went on, by the state that it loaded; 0: it began anew."""
    redone_steps: int | None = None
    """Of its steps, those that a later attempt did again."""
    lost_s: float | None = None
    """From its last step to the first step of the next attempt; `None` where no restart
    followed."""
    is_restart: bool = False
    """Whether the attempt before it had failed."""
    kind: str | None = None
    """What ended it: `EXCEPTION`, `KILLED` …; `None` where it ended well or is not known."""
    rank: int | None = None
    reason: str | None = None
    """The same in words; `None` where it ended well."""


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


class NodeSummary(Struct, frozen=True):
    """One machine of a run over several."""

    name: str
    """The name of its folder under `nodes`."""
    hostname: str | None = None
    ranks: tuple[int, ...] = ()
    """The global ranks that trained there."""
    way: str | None = None
    """How its records came: `head`, `shared`, `http`, `copied`."""
    is_complete: bool | None = None
    """Whether all its records are here."""
    clock_offset_s: float | None = None
    """Its clock minus the head's; `None` where it was not measured."""
    clock_uncertainty_s: float | None = None
    version: str | None = None
    """The version of TraceML that it ran."""
    missing: tuple[str, ...] = ()
    """What of it is not here, a few words each; `tracer.notes` says what to do."""
    node_rank: int | None = None
    """Its number in the job, by which `system.groups.rows` has its sensors."""
    slowest_rank: int | None = None
    """Its rank with the longest own time."""
    metrics: dict[str, float | None] = {}
    """Times as means over its ranks, and what tables show of its sensors."""


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
    goodput: GoodputSummary | None = None
    """`None` where no step was taken, and in files of earlier versions."""
    attempts: tuple[AttemptSummary, ...] = ()
    """Where the ranks were started more than once; of very many the first and the last ones."""
    steps: StepSeries | None = None
    what_if: tuple[WhatIfSummary, ...] = ()
    """In the order of the findings that they belong to."""
    regions: tuple[RegionSummary, ...] = ()
    user_time: UserTimeSummary | None = None
    """`None` where no stack was sampled: nothing was wrong, or it was not possible."""
    host_time: HostTimeSummary | None = None
    """The sampled stacks by phase; `None` where none was kept."""
    layers: LayersSummary | None = None
    """`None` where the run had no deep profile."""
    kineto: KinetoSummary | None = None
    """The steps that were recorded with torch's profiler; `None` where none was asked for."""
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
    nodes: tuple[NodeSummary, ...] = ()
    """The machines of a run over several, the head first; empty for one machine."""
    tracer: TracerSummary | None = None
    text: str | None = None


SECTIONS = ("step_time", "step_memory", "process", "system", "stability")
"""The names of a summary's sections, in its order."""


def sections_of(summary: Summary) -> Iterator[tuple[str, SectionSummary]]:
    """Yields the sections that a summary has, with their names."""
    for name in SECTIONS:
        section = getattr(summary, name)
        if section is not None:
            yield name, section


class RunLabels(Struct, frozen=True):
    """The part of a summary by which runs are selected; the rest of the file is not decoded."""

    params: Any = None
    meta: Any = None
    lineage: Any = None


def has_failed(summary: Summary | None, exit_status: int | None) -> bool:
    """Returns whether a training failed: something was seen that ended it, or its exit status says
    so. Both are needed: `traceml.init()` sees no exit status, and a kill may leave no summary."""
    return bool(exit_status) or (summary is not None and summary.failure is not None)
