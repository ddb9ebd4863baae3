"""A run as it was recorded: what other packages read, independent of files and formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.model.failure import NOTHING_SEEN, AgentSaw, FailureReport
from traceml.model.lineage import Lineage
from traceml.model.node import NodeState
from traceml.model.parallel_place import NO_PLACE, ParallelPlace
from traceml.model.rank import Rank, Region, ScriptStart
from traceml.model.run import Ending, Manifest
from traceml.model.sample import Sample, StackBurst
from traceml.model.settings import Settings
from traceml.store.layer_records import LayerRecords
from traceml.store.step_trace_records import StepTraceRecords

if TYPE_CHECKING:
    from traceml.store.step_columns import Steps

_NUMPY_KIND = {"h": "<i2", "q": "<i8", "Q": "<u8", "i": "<i4", "I": "<u4", "H": "<u2", "d": "<f8"}


def dtype_of(fields: tuple[record_layout.Field, ...]) -> np.dtype[Any]:
    """Returns the numpy dtype of a record_layout, with the same bytes that `struct` packs."""
    return np.dtype(
        [
            (name, f"S{kind[:-1]}" if kind.endswith("s") else _NUMPY_KIND[kind])
            for name, kind in fields
        ]
    )


STEP_DTYPE = dtype_of(record_layout.STEP)
BLOCK_DTYPE = dtype_of(record_layout.BLOCK)


@dataclass(frozen=True, slots=True)
class TracerHealth:
    """What the tracer of one rank could not do."""

    steps_lost: int = 0
    """Steps that the ring overwrote before they were drained."""
    failures: int = 0
    """Exceptions caught inside our hooks."""
    last_failure: str = ""
    messages_lost: int = 0
    """Message pieces that the ring overwrote before they were drained."""
    values_refused: int = 0
    """Logged values and calls that could not be recorded as they were."""
    regions_dropped: int = 0
    ended: bool = False
    """Whether the process ended regularly rather than being killed."""
    recording_ended: bool = False
    """Whether the tracer stopped before the training's end, so that the rest is unknown."""
    limit_reached: bool = False
    """Whether it stopped because the requested number of steps was recorded."""


@dataclass(frozen=True, slots=True)
class DdpStatistics:
    """What DDP measured of its own communication, as means over the passes that it sampled."""

    communication_s: float
    """From the first gradients sent to the last received, with waiting for other ranks."""
    overlap_s: float
    """The part of it in which backward was still computing."""
    gradient_bytes: int
    buckets: int
    has_hook: bool
    """Whether the script registered a communication hook."""


@dataclass(frozen=True, slots=True)
class SeenLoss:
    """One loss that `backward` was called on, and its step, counted from 1."""

    step: int
    value: float


@dataclass(frozen=True, slots=True)
class RecordedLosses:
    """The losses of one rank that stay known although its old steps are merged into blocks."""

    first: SeenLoss | None = None
    """The first finite loss."""
    first_lost: SeenLoss | None = None
    """The first non-finite loss …"""
    before_lost: SeenLoss | None = None
    """… and the last finite one seen before it."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a process had loaded when it took its first step, and how it was started."""

    has_loaded: bool
    """Whether it loaded a file of torch's, or the state of a model or an optimizer."""
    step: int | None = None
    """How many steps the optimizer whose state it loaded had taken; `None` where that does not
    say."""
    restart: int | None = None
    """How often torch's launcher had started the ranks again; `None` under other launchers."""


@dataclass(frozen=True, slots=True)
class RankRecords:
    """One rank: its steps in order, old ones merged into blocks, and its named regions."""

    rank: Rank
    steps: Steps
    """Single steps in order, with aborted ones and the time after the last step."""
    blocks: npt.NDArray[Any]
    """`BLOCK_DTYPE`: the steps before `steps`, oldest first."""
    earlier_steps: int = 0
    """Complete steps of the process before these, where only its last ones are here."""
    former_steps: int = 0
    """Complete steps that earlier processes of a restarted rank took."""
    regions: tuple[Region, ...] = ()
    loader_workers: int | None = None
    """The number of workers of the training loader; `None` where no fetch was seen."""
    loader_pinned: bool | None = None
    ddp: DdpStatistics | None = None
    losses: RecordedLosses = RecordedLosses()
    settings: Settings | None = None
    """The settings as last reported; `None` where there were none."""
    resumption: Resumption | None = None
    """`None` where the process did not say: earlier versions did not."""
    place: ParallelPlace = NO_PLACE
    """Where it stands in the device mesh and the pipeline."""
    health: TracerHealth = TracerHealth()


@dataclass(frozen=True, slots=True)
class LoggedMetric:
    """One logged metric's history in a few numbers."""

    name: str
    count: int
    last: float
    minimum: float
    maximum: float
    mean: float
    first_step: int | None
    last_step: int | None
    first_not_finite_step: int | None = None
    first: float | None = None
    """The first value; `None` in records of old versions that had been thinned."""
    history: tuple[tuple[int, float], ...] = field(default=(), repr=False, compare=False)
    """Step and value of losses and gradient norms, in order; of a long history the last values that
    thinning kept. Empty for other metrics."""
    higher_is_better: bool | None = None
    """What the script said of it; `None` where it said nothing."""


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file of a logged folder."""

    path: str
    """Inside the folder."""
    size_bytes: int | None
    sha256: str | None
    kind: str | None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or a folder that the script logged, as it was at one call."""

    name: str
    path: str
    size_bytes: int | None
    sha256: str | None
    kind: str | None = None
    """One of `ArtifactKind`; `None` in runs of earlier versions."""
    unix_s: float | None = None
    """When it was logged."""
    stored: str | None = None
    """Where in the run's folder its content is; `None` where it was not kept."""
    files: tuple[ArtifactFile, ...] = ()
    """Of a folder."""
    note: str | None = None
    """What could not be kept, and why."""


@dataclass(frozen=True, slots=True)
class NodeRecords:
    """One node of a run over several machines; all times are on the head's clock."""

    state: NodeState
    """As its own agent last described it."""
    ranks: tuple[int, ...] = ()
    """The global ranks that trained there, by number."""
    samples: tuple[Sample, ...] = ()
    ending: Ending | None = None
    """How its command ended; `None` where nobody observed it."""
    lineage: Lineage | None = None
    """With its hardware and packages."""
    pids: tuple[int, ...] = ()
    """All processes of ranks that trained there, as they are numbered among those of the run."""


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Everything that was recorded of a run."""

    manifest: Manifest
    ranks: tuple[RankRecords, ...]
    """By global rank, one entry each."""
    processes: tuple[RankRecords, ...] = ()
    """The processes of the ranks that took steps, in order of time, each with its own records,
    where some rank had several; empty where every rank was one process."""
    attempt_firsts: tuple[int, ...] = ()
    """The numbers, from 0, of the first steps of the attempts that took any (see
    `store/attempt_groups.py`), where some rank had several processes."""
    starts: tuple[ScriptStart, ...] = ()
    """The scripts and ranks that were started, in order of time, with or without steps."""
    samples: tuple[Sample, ...] = ()
    """Of the machine itself; of several machines, the head's."""
    ending: Ending | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    param_sources: Mapping[str, str] = field(default_factory=dict)
    """What those parameters were taken from that the script did not log by a call, by name."""
    metrics: tuple[LoggedMetric, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    reports: tuple[FailureReport, ...] = ()
    """The exceptions that the ranks reported, in order of time."""
    seen: AgentSaw = NOTHING_SEEN
    lineage: Lineage | None = None
    stack_bursts: tuple[StackBurst, ...] = ()
    """The stack samples of the training threads, in order of time."""
    layers: tuple[LayerRecords, ...] = ()
    """What the deep profile saw, by process."""
    step_traces: tuple[StepTraceRecords, ...] = ()
    """The steps that were recorded with torch's profiler, by process."""
    notes: tuple[str, ...] = ()
    """What could not be done or read, in words."""
    nodes: tuple[NodeRecords, ...] = ()
    """The machines of a run over several, the head first, then by name; empty for one machine."""

    @property
    def samples_of_all_nodes(self) -> tuple[Sample, ...]:
        """The samples of all machines, those of each in order: for what is asked by rank."""
        if not self.nodes:
            return self.samples
        return tuple(sample for node in self.nodes for sample in node.samples)
