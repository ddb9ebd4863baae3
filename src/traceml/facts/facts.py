"""Everything the rules, the summary and the live views know about a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traceml.facts.gpu_use import GpuUse, mean_use
from traceml.facts.job import Job
from traceml.facts.loader import NO_LOADER, LoaderFacts
from traceml.facts.memory import RankMemory
from traceml.facts.sensors import NOT_SAMPLED, GpuFacts, HostFacts, ProcessFacts
from traceml.facts.series import Series, Slowdown
from traceml.facts.stability import NOTHING_KNOWN, Stability
from traceml.facts.step_table import StepTable
from traceml.facts.stragglers import Straggler
from traceml.facts.thread_time import ThreadTime
from traceml.facts.times import NO_TIMES, StepTimes
from traceml.facts.user_time import NOBODY_LOOKED, UserTime
from traceml.model.phase import Phase
from traceml.model.rank import Rank, Region
from traceml.model.settings import NOT_RECORDED, Settings
from traceml.store.records import DdpStatistics


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that the means cover; steps are numbered from 1, as people do."""

    steps_analyzed: int = 0
    first_step: int | None = None
    last_step: int | None = None
    warmup_steps: int = 0
    steps_taken: int = 0
    """Complete steps of the rank that took most."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank."""

    rank: Rank
    steps_taken: int
    """Complete ones, at full resolution or folded."""
    steps_aborted: int
    loop_s: float
    """All recorded wall time: warm-up, aborted steps and the tail too."""
    times: StepTimes
    memory: RankMemory


@dataclass(frozen=True, slots=True)
class Facts:
    """A run, measured; `None` is "not measured" everywhere."""

    ranks: tuple[RankFacts, ...] = ()
    """Every rank seen, in order."""
    window: Window = Window()
    clock: str | None = None
    """`gpu` or `cpu`: which clock the means are taken on."""
    mean: StepTimes = NO_TIMES
    """The mean over ranks of their means."""
    parts: StepTable | None = None
    """Every shared step of every rank, part by part."""
    job: Job | None = None
    """The ranks as one job, in which some may wait for others."""
    stragglers: tuple[Straggler, ...] = ()
    """The ranks whose own work takes longer than the others', the latest first."""
    threads: Mapping[int, ThreadTime] = field(default_factory=dict)
    """What the scheduler gave each rank's training thread; only the ranks where that is known."""
    series: Series | None = None
    """Step by step, each step's mean over ranks, after warm-up, at full resolution."""
    slowdown: Slowdown | None = None
    regions: tuple[Region, ...] = ()
    """Summed over ranks, the longest total first."""
    loader: LoaderFacts = NO_LOADER
    ddp: DdpStatistics | None = None
    """What DDP measured of its own communication; `None` where nothing is known of any."""
    queue_dry_share: float | None = None
    """Of the steps that were watched, those in which the GPU had caught up with the host."""
    syncs_per_step: float | None = None
    """How often the host waited for the device in a mean step."""
    host: HostFacts = NOT_SAMPLED
    processes: tuple[ProcessFacts, ...] = ()
    user_time: UserTime = NOBODY_LOOKED
    """Which of the user's lines the training threads stood at."""
    reason_without_steps: str | None = None
    stability: Stability = NOTHING_KNOWN
    settings: Settings = NOT_RECORDED
    """Of the lowest rank; what advice has to know."""
    uneven_settings: tuple[str, ...] = ()
    """The settings in which the ranks differ."""

    @property
    def ranks_used(self) -> tuple[RankFacts, ...]:
        """The ranks whose steps the means cover."""
        return tuple(rank for rank in self.ranks if rank.times.step_s is not None)

    @property
    def hidden_communication_s(self) -> float | None:
        """Communication that went on while backward still computed."""
        return None if self.ddp is None else self.ddp.overlap_s

    @property
    def gpus_used(self) -> tuple[GpuFacts, ...] | None:
        """The sampled GPUs that the ranks train on; `None` where they cannot be told apart.

        Ranks say which GPU they have; where torch is too old for that, they have all there are or
        it is not known, because torch's numbers are not the machine's.
        """
        ranks = [rank.rank for rank in self.ranks if rank.rank.is_on_gpu]
        if not ranks or not all(rank.device_uuid for rank in ranks):
            return self.host.by_gpu if len(self.host.by_gpu) == self.gpus_needed else None
        theirs = (
            gpu for gpu in self.host.by_gpu if any(rank.trains_on(gpu.uuid) for rank in ranks)
        )
        return tuple(theirs) or None

    @property
    def gpu_use(self) -> GpuUse:
        """What the counters say of the ranks' own GPUs, over the time in which steps ran."""
        return mean_use([gpu.use for gpu in self.gpus_used or () if gpu.use.samples])

    @property
    def gpus_needed(self) -> int:
        """How many GPUs of this machine the ranks train on."""
        ranks = [rank.rank for rank in self.ranks if rank.rank.is_on_gpu]
        return len({(rank.hostname, rank.device_uuid or rank.device) for rank in ranks})

    def typical(self, phase: Phase) -> float | None:
        """A phase's mean seconds per step."""
        return phase_s(self.mean, phase)

    def typical_share(self, phase: Phase) -> float | None:
        """A phase's part of where the step's time went."""
        return share(self.typical(phase), self.mean.step_s)


def phase_s(times: StepTimes, phase: Phase) -> float | None:
    """The seconds of one phase."""
    return times.phase(phase)


def share(part_s: float | None, whole_s: float | None) -> float | None:
    """A part of a whole, 0–1; `None` where either is unknown."""
    return part_s / whole_s if part_s is not None and whole_s else None
