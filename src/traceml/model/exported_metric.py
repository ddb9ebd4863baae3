"""The catalogue of exported metrics: what monitoring systems are given of a run, and under which
names.

OpenTelemetry, the Prometheus page of `traceml ui`, the Grafana dashboard and the reference page all
derive from it. A name has two spellings: `traceml.step.duration` with its unit `s` for
OpenTelemetry, and `traceml_step_duration_seconds` for Prometheus, which is what a collector makes
of the first. So one dashboard serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from traceml.model.evidence import EvidenceUnit
from traceml.model.finding import Section
from traceml.model.metric import BY_KEY, Metric
from traceml.model.phase import PHASES

MAX_SERIES = 64
"""Up to so many ranks, machines or GPUs each has series of its own; of more there are means and
the spread alone, so that a thousand ranks are not a thousand series."""
MAX_LOGGED = 50
"""So many of the metrics that a script logs are exported: their names are the script's."""

RUN_LABEL = "run"
"""The label that every metric has: the name of the run."""
QUANTILES = MappingProxyType(
    {"step_time_p50_ms": "0.5", "step_time_p95_ms": "0.95", "step_time_p99_ms": "0.99"}
)
STATS = ("min", "median", "max")

_PROMETHEUS_UNITS = {
    "s": "seconds",
    "By": "bytes",
    "1": "ratio",
    "W": "watts",
    "Cel": "celsius",
    "By/s": "bytes_per_second",
    "{step}/s": "per_second",
    "{sample}/s": "per_second",
}
"""By the unit's UCUM code, which OpenTelemetry uses; what stands in braces alone has no ending."""


class Scope(Enum):
    """Of what a metric is: the value says what stands before its name, and the label it has."""

    RUN = ("", "")
    RANK = ("rank.", "rank")
    SPREAD = ("ranks.", "stat")
    NODE = ("node.", "node")
    GPU = ("gpu.", "gpu")

    @property
    def prefix(self) -> str:
        """What stands before the name."""
        return self.value[0]

    @property
    def label(self) -> str:
        """The label that tells its series apart; empty for the whole run."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """One metric as monitoring systems see it."""

    name: str
    """OpenTelemetry's."""
    unit: str
    """As UCUM writes it."""
    doc: str
    labels: tuple[str, ...] = ()
    """Besides the run."""
    is_counter: bool = False
    source: Metric | None = None
    """The number of a summary that it is; `None`: `summaries/exported_values.py` knows."""
    phase: str = ""
    """The value of its label `phase`, where the number of the summary is a phase."""

    @property
    def family(self) -> str:
        """The name for Prometheus, without the ending of counters."""
        parts = [self.name.replace(".", "_"), _PROMETHEUS_UNITS.get(self.unit, "")]
        return "_".join(filter(None, parts))

    @property
    def prometheus_name(self) -> str:
        """The name of its series for Prometheus."""
        return f"{self.family}_total" if self.is_counter else self.family

    def scaled(self, value: float) -> float:
        """Returns a number of the summary in the unit of this metric."""
        return value if self.source is None else value / self.source.scale


_UNITS = {
    EvidenceUnit.MILLISECONDS: "s",
    EvidenceUnit.PERCENT: "1",
    EvidenceUnit.BYTES: "By",
}
_NAMES: tuple[tuple[Section, str, str, str], ...] = (
    # section, key of the summary, name, unit where the key does not say it
    (Section.STEP_TIME, "step_time_ms", "step.duration", ""),
    (Section.STEP_TIME, "between_ms", "between_steps.duration", ""),
    (Section.STEP_TIME, "wall_step_ms", "wall_step.duration", ""),
    (Section.STEP_TIME, "steps_per_s", "throughput.steps", "{step}/s"),
    (Section.STEP_TIME, "samples_per_s", "throughput.samples", "{sample}/s"),
    (Section.STEP_MEMORY, "peak_allocated_bytes", "memory.gpu.peak_allocated", ""),
    (Section.STEP_MEMORY, "peak_reserved_bytes", "memory.gpu.peak_reserved", ""),
    (Section.STEP_MEMORY, "peak_rss_bytes", "memory.process.peak", ""),
    (Section.PROCESS, "cpu_percent", "process.cpu.cores", "{cpu}"),
    (Section.PROCESS, "ram_bytes", "process.memory", ""),
    (Section.PROCESS, "workers", "process.workers", "{process}"),
    (Section.PROCESS, "workers_cpu_percent", "process.workers.cpu.cores", "{cpu}"),
    (Section.PROCESS, "runqueue_percent", "process.runqueue.utilization", ""),
    (Section.SYSTEM, "cpu_percent", "host.cpu.utilization", ""),
    (Section.SYSTEM, "cpu_other_percent", "host.cpu.other.utilization", ""),
    (Section.SYSTEM, "ram_bytes", "host.memory.used", ""),
    (Section.SYSTEM, "ram_percent", "host.memory.utilization", ""),
    (Section.SYSTEM, "disk_read_bytes_per_s", "host.disk.read", "By/s"),
    (Section.SYSTEM, "disk_write_bytes_per_s", "host.disk.write", "By/s"),
    (Section.SYSTEM, "network_received_bytes_per_s", "host.network.received", "By/s"),
    (Section.SYSTEM, "network_sent_bytes_per_s", "host.network.sent", "By/s"),
    (Section.SYSTEM, "gpu_util_percent", "gpus.utilization", ""),
    (Section.SYSTEM, "sm_share", "gpus.sm.utilization", "1"),
    (Section.SYSTEM, "tensor_share", "gpus.tensor_cores.utilization", "1"),
    (Section.SYSTEM, "dram_share", "gpus.memory_bandwidth.utilization", "1"),
    (Section.SYSTEM, "gpu_mem_bytes", "gpus.memory.used", ""),
    (Section.SYSTEM, "gpu_mem_percent", "gpus.memory.utilization", ""),
    (Section.SYSTEM, "gpu_temp_c", "gpus.temperature", "Cel"),
    (Section.SYSTEM, "gpu_power_w", "gpus.power", "W"),
    (Section.STABILITY, "goodput_percent", "goodput", ""),
)
_OF_RANKS = ("step.duration", "memory.gpu.peak_allocated", "memory.process.peak")
"""What every rank has of its own, and the spread over the ranks; besides its phases."""
_PREFIXES = {Scope.NODE: "host.", Scope.GPU: "gpus."}
"""How the names of the means begin whose parts each machine and each GPU has: the mean
`traceml.gpus.power` is made of `traceml.gpu.power`."""
_DOCS = {
    "step.duration": "mean time of a step: input wait + body",
    "process.cpu.cores": "cores that the rank's own process kept busy",
    "process.memory": "resident memory of the rank's process",
    "process.workers.cpu.cores": "cores that all processes below the rank kept busy together",
    "host.cpu.utilization": "CPU cores of the machine that were busy, of all",
    "host.memory.used": "memory of the machine that is in use",
    "host.memory.utilization": "memory of the machine that is in use, of all",
    "host.network.received": "received by the machine's network interfaces",
    "host.network.sent": "sent by the machine's network interfaces",
    "gpus.memory.utilization": "GPU memory in use, of all",
    "gpus.temperature": "temperature of the GPU",
    "gpus.power": "power that the GPU draws",
}
"""What it is, where the words of the summary's reference need their table, or another unit."""
_PHASE = "phase.duration"


def _of_summary(scope: Scope, section: Section, key: str, name: str, unit: str) -> ExportedMetric:
    source = BY_KEY[section, key]
    whose = {
        Scope.RANK: "of each rank: ",
        Scope.SPREAD: "over the ranks, the least, the median and the most: ",
        Scope.NODE: "of each machine: ",
        Scope.GPU: "of each GPU: ",
        Scope.RUN: "",
    }[scope]
    return ExportedMetric(
        f"traceml.{scope.prefix}{name.removeprefix(_PREFIXES.get(scope, ''))}",
        unit or _UNITS[source.unit],
        whose + _DOCS.get(name, source.doc),
        (scope.label,) if scope.label else (),
        source=source,
    )


def _phases(scope: Scope) -> tuple[ExportedMetric, ...]:
    """One metric with a label, whose values are the phases; each phase has an entry."""
    own = (scope.label,) if scope.label else ()
    whose = ", of each rank" if own else ""
    return tuple(
        ExportedMetric(
            f"traceml.{scope.prefix}{_PHASE}",
            "s",
            f"mean time of each phase{whose}; they sum to the step",
            (*own, "phase"),
            source=BY_KEY[Section.STEP_TIME, entry.metric],
            phase=phase.value,
        )
        for phase, entry in PHASES.items()
    )


def _scoped(scope: Scope) -> tuple[ExportedMetric, ...]:
    found = tuple(
        _of_summary(scope, section, key, name, unit)
        for section, key, name, unit in _NAMES
        if _has(scope, name)
    )
    return (*found, *_phases(scope)) if scope in (Scope.RUN, Scope.RANK) else found


def _has(scope: Scope, name: str) -> bool:
    if scope in (Scope.RANK, Scope.SPREAD):
        return name in _OF_RANKS
    return name.startswith(_PREFIXES.get(scope, ""))


BY_SCOPE: Mapping[Scope, tuple[ExportedMetric, ...]] = MappingProxyType(
    {scope: _scoped(scope) for scope in Scope}
)
"""The numbers of a summary's sections: of the run as a mean over ranks, machines or GPUs, and of
each of them."""

STEPS = ExportedMetric(
    "traceml.steps", "{step}", "training steps since the run began", is_counter=True
)
STEP_QUANTILE = ExportedMetric(
    "traceml.step.duration.quantile",
    "s",
    "the step time that this share of the steps stays below",
    ("quantile",),
)
SLOWEST_RANK = ExportedMetric(
    "traceml.ranks.slowest", "{rank}", "the number of the rank with the longest step"
)
DURATION = ExportedMetric("traceml.run.duration", "s", "wall time since the run began")
RANKS = ExportedMetric("traceml.run.ranks", "{rank}", "training processes")
NODES = ExportedMetric("traceml.run.nodes", "{node}", "machines")
GPUS = ExportedMetric("traceml.run.gpus", "{gpu}", "GPUs that were observed")
RESTARTS = ExportedMetric(
    "traceml.run.restarts",
    "{restart}",
    "how often the ranks were started again after a failure; known when the run is over",
)
STATE = ExportedMetric(
    "traceml.run.state",
    "{run}",
    "1 for the state that the run is in: live, finished, failed or lost",
    ("state",),
)
VERDICT = ExportedMetric(
    "traceml.run.verdict",
    "{run}",
    "1 for the finding to read first",
    ("kind", "severity"),
)
FINDING = ExportedMetric(
    "traceml.finding",
    "{finding}",
    "1 for each finding that holds now; severity is info, warn or crit",
    ("section", "kind", "severity"),
)
GOODPUT_TIME = ExportedMetric(
    "traceml.goodput.time",
    "s",
    "what the wall time went to, by part, as in the summary; known when the run is over",
    ("part",),
)
LOGGED = ExportedMetric(
    "traceml.logged",
    "",
    "last value of a metric that the script logs, and of the loss; at most "
    f"{MAX_LOGGED} names, losses first",
    ("metric",),
)
NOT_EXPORTED = ExportedMetric(
    "traceml.export.dropped",
    "{item}",
    "exports of metrics, and events, that the collector did not take; only by OpenTelemetry",
    ("signal",),
    is_counter=True,
)

EXPORTED: tuple[ExportedMetric, ...] = (
    STATE,
    VERDICT,
    FINDING,
    STEPS,
    DURATION,
    RANKS,
    NODES,
    GPUS,
    RESTARTS,
    STEP_QUANTILE,
    SLOWEST_RANK,
    *(metric for metrics in BY_SCOPE.values() for metric in metrics),
    GOODPUT_TIME,
    LOGGED,
    NOT_EXPORTED,
)
"""Every metric, in the order of the reference page; a metric with a label for the phase has an
entry for each phase."""
BY_NAME: Mapping[str, ExportedMetric] = MappingProxyType(
    {metric.name: metric for metric in EXPORTED}
)
