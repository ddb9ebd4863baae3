"""Everything the rules, the summary and the live views know about a run, as one record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from traceml.facts.analysed_attempts import AnalysedAttempts
from traceml.facts.attempts import Attempt
from traceml.facts.goodput import Goodput
from traceml.facts.gpu_idle import MIN_RECORDED_STEPS, GpuIdle, RecordedBusy, gpu_idle
from traceml.facts.gpu_use import GpuUse, mean_use
from traceml.facts.job import Job
from traceml.facts.layers import NO_LAYERS, LayerProfile
from traceml.facts.loader import NO_LOADER, LoaderFacts
from traceml.facts.memory import RankMemory
from traceml.facts.nodes import NodeFacts
from traceml.facts.pipeline import Pipeline
from traceml.facts.sensors import NOT_SAMPLED, GpuFacts, HostFacts, ProcessFacts
from traceml.facts.series import Slowdown, StepTimeSeries
from traceml.facts.stability import NOTHING_KNOWN, Stability
from traceml.facts.step_table import StepTable
from traceml.facts.step_traces import StepTraceFacts
from traceml.facts.stragglers import Straggler
from traceml.facts.thread_time import ThreadTime
from traceml.facts.times import NO_TIMES, StepTimes
from traceml.facts.uneven_work import UnevenWork
from traceml.facts.user_time import NOBODY_LOOKED, UserTime
from traceml.model.parallel_place import NO_PLACE, ParallelPlace
from traceml.model.phase import Phase
from traceml.model.rank import Rank, Region
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.records import DdpStatistics

_Of = TypeVar("_Of")
"""Something that there is one of for each rank."""


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The steps that the means cover. Steps are numbered from 1."""

    steps_analyzed: int = 0
    first_step: int | None = None
    last_step: int | None = None
    warmup_steps: int = 0
    steps_taken: int = 0
    """Complete steps of the rank that took the most, in each attempt."""
    attempts: AnalysedAttempts | None = None
    """Which attempts they are of; `None` where that is all that took steps."""

    @property
    def steps_in_attempts(self) -> int:
        """The steps that were taken in the attempts that are analysed."""
        return self.steps_taken if self.attempts is None else self.attempts.steps


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What is known about one rank."""

    rank: Rank
    steps_taken: int
    """Complete steps, whether kept one by one or merged into blocks."""
    steps_aborted: int
    loop_s: float
    """All recorded wall time, with warm-up, aborted steps and the time after the last step."""
    times: StepTimes
    memory: RankMemory
    place: ParallelPlace = NO_PLACE
    """Where it stands in the device mesh and the pipeline."""


@dataclass(frozen=True)
class Facts:
    """Everything measured about a run; `None` means "not measured".

    Without slots, so that what many rules ask for can be kept (`cached_property`).
    """

    ranks: tuple[RankFacts, ...] = ()
    """Every rank that was seen, by number."""
    window: StepWindow = StepWindow()
    clock: str | None = None
    """The clock of the means: `gpu` or `cpu`; `None` without steps."""
    mean: StepTimes = NO_TIMES
    """The mean over ranks of their mean step times."""
    step_table: StepTable | None = None
    """Every step that all ranks share, by rank, step and phase; `None` without such steps."""
    job: Job | None = None
    """The ranks as one job, in which ranks may wait for each other; `None` without steps."""
    stragglers: tuple[Straggler, ...] = ()
    """The ranks whose own work takes longer than their peers', the slowest first."""
    uneven_work: UnevenWork | None = None
    """What ranks have more to work on than their peers; `None` where it is even, or was not
    counted."""
    pipeline: Pipeline | None = None
    """The stages that the ranks form; `None` without a pipeline, or where waiting was not
    measured."""
    threads: Mapping[int, ThreadTime] = field(default_factory=dict)
    """CPU time and waiting for a core of each rank's training thread, by rank; ranks for which it
    is not known are missing."""
    series: StepTimeSeries | None = None
    """The step time of each step after warm-up, as the mean over ranks; steps in blocks are left
    out."""
    slowdown: Slowdown | None = None
    regions: tuple[Region, ...] = ()
    """The regions named by `trace_time`, summed over ranks; the longest first."""
    loader: LoaderFacts = NO_LOADER
    ddp: DdpStatistics | None = None
    """What DDP measured of its own communication; `None` where no rank knows it."""
    queue_dry_share: float | None = None
    """The share of the watched steps in which the GPU finished its queue and waited for the host,
    0–1."""
    syncs_per_step: float | None = None
    """How often per step the host waited for the device, as a mean."""
    host: HostFacts = NOT_SAMPLED
    processes: tuple[ProcessFacts, ...] = ()
    user_time: UserTime = NOBODY_LOOKED
    """The lines of user code at which the training threads were sampled."""
    reason_without_steps: str | None = None
    stability: Stability = NOTHING_KNOWN
    attempts: tuple[Attempt, ...] = ()
    """Each start of the ranks, in order of time; empty where no rank took a step."""
    goodput: Goodput | None = None
    """What the run's wall time went to; `None` where no rank took a step."""
    settings: Settings = NOT_RECORDED
    """The settings of the lowest rank (autocast, compile, workers …), for the advice."""
    uneven_settings: tuple[str, ...] = ()
    """The names of the settings in which the ranks differ."""
    layers: LayerProfile = NO_LAYERS
    """What the deep profile saw of the model's layers."""
    step_traces: StepTraceFacts | None = None
    """The steps that were recorded with torch's profiler; `None` where none was asked for."""
    nodes: tuple[NodeFacts, ...] = ()
    """The machines of a run over several, the head first; empty for one machine, which `host`
    describes. Of several, `host` is the head's."""

    @cached_property
    def node_names(self) -> Mapping[int, str]:
        """The machine of each rank, by rank; empty where all ranks are on one machine."""
        found = {rank: node.name for node in self.nodes for rank in node.ranks}
        if not found:
            found = {rank.rank.rank: rank.rank.hostname for rank in self.ranks_used}
        return found if len(set(found.values())) > 1 else {}

    @cached_property
    def by_node(self) -> tuple[tuple[NodeFacts, Facts], ...]:
        """Returns each machine with the facts as they are there: its sensors, its ranks and their
        processes. The steps stay those of the whole job."""
        ranks = {rank.rank.rank: rank for rank in self.ranks}
        processes = {each.rank: each for each in self.processes}
        late = {each.rank: each for each in self.stragglers}
        return tuple(
            (
                node,
                replace(
                    self,
                    host=node.host,
                    nodes=(),
                    ranks=_of_node(node, ranks),
                    processes=_of_node(node, processes),
                    stragglers=_of_node(node, late),
                ),
            )
            for node in self.nodes
        )

    @property
    def ranks_used(self) -> tuple[RankFacts, ...]:
        """The ranks whose steps the means cover."""
        return tuple(rank for rank in self.ranks if rank.times.step_s is not None)

    @property
    def hidden_communication_s(self) -> float | None:
        """Communication per step that overlapped with backward, as measured by DDP."""
        return None if self.ddp is None else self.ddp.overlap_s

    @cached_property
    def gpus_used(self) -> tuple[GpuFacts, ...] | None:
        """Returns the sampled GPUs that the ranks train on; `None` where they cannot be identified.

        Ranks report their GPU's UUID. Old versions of torch do not: then the ranks use all GPUs of
        the machine, or it is not known which, because torch numbers GPUs differently from the
        driver.
        """
        ranks = [rank.rank for rank in self.ranks if rank.rank.is_on_gpu]
        if not ranks or not all(rank.device_uuid for rank in ranks):
            return self.host.by_gpu if len(self.host.by_gpu) == self.gpus_needed else None
        theirs = (
            gpu for gpu in self.host.by_gpu if any(rank.trains_on(gpu.uuid) for rank in ranks)
        )
        return tuple(theirs) or None

    @cached_property
    def gpu_use(self) -> GpuUse:
        """What the counters of the ranks' own GPUs say about the time in which steps ran."""
        return mean_use([gpu.use for gpu in self.gpus_used or () if gpu.use.samples])

    @cached_property
    def gpu_idle(self) -> GpuIdle | None:
        """The GPU's idle time in a mean step, by cause; `None` where it was not measured."""
        return gpu_idle(self.mean, self.gpu_use.busy_share, self.recorded_busy)

    @property
    def recorded_busy(self) -> RecordedBusy | None:
        """How long the GPU worked in a mean step, as the deep profile recorded it; `None` where too
        few steps were."""
        found = self.layers.activity
        if found is None or found.steps < MIN_RECORDED_STEPS:
            return None
        return RecordedBusy(found.steps, found.busy_s, found.copies_s)

    @property
    def gpus_needed(self) -> int:
        """Returns how many GPUs of this machine the ranks train on."""
        ranks = [rank.rank for rank in self.ranks if rank.rank.is_on_gpu]
        return len({(rank.hostname, rank.device_uuid or rank.device) for rank in ranks})

    def mean_s(self, phase: Phase) -> float | None:
        """Returns a phase's mean seconds per step; `None` where it was not measured."""
        return self.mean.phase(phase)

    def mean_share(self, phase: Phase) -> float | None:
        """Returns a phase's share of the mean step, 0–1; `None` where it was not measured."""
        return share(self.mean_s(phase), self.mean.step_s)


def _of_node(node: NodeFacts, by_rank: Mapping[int, _Of]) -> tuple[_Of, ...]:
    return tuple(by_rank[rank] for rank in node.ranks if rank in by_rank)


def share(part_s: float | None, whole_s: float | None) -> float | None:
    """Returns a part as a share of the whole, 0–1; `None` where either is unknown or the whole is
    0."""
    return part_s / whole_s if part_s is not None and whole_s else None


@dataclass(frozen=True, slots=True)
class RankSpread:
    """A value over ranks: the largest, the rank that has it, and the median."""

    worst: float
    worst_rank: int
    median: float

    @property
    def skew(self) -> float:
        """How much larger the worst is than the median, as a share of the median."""
        return (self.worst - self.median) / self.median if self.median > 0 else 0.0


def spread_over_ranks(
    facts: Facts, value: Callable[[RankFacts], float | None]
) -> RankSpread | None:
    """Returns the spread of the measured values; `None` where no rank has one.

    With an even number of ranks the median is the lower of the two middle values.
    """
    measured = [
        (found, rank.rank.rank) for rank in facts.ranks if (found := value(rank)) is not None
    ]
    if not measured:
        return None
    ranked = sorted(measured, key=lambda one: (one[0], -one[1]))
    worst, worst_rank = ranked[-1]
    return RankSpread(worst, worst_rank, ranked[(len(ranked) - 1) // 2][0])
