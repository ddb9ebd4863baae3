"""Everything the rules, the summary and the live views know about a run."""

from __future__ import annotations

from dataclasses import dataclass

from traceml.facts.parts import StepParts
from traceml.facts.sensors import NOT_SAMPLED, HostFacts, ProcessFacts
from traceml.facts.series import Series, Slowdown
from traceml.facts.times import NO_TIMES, StepTimes
from traceml.model.phase import Phase
from traceml.model.rank import Rank, Region


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
class RankMemory:
    """One rank's largest use of memory; the GPU's from its allocator, the host's from samples."""

    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_rss_bytes: int | None = None


NO_MEMORY = RankMemory()


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
    parts: StepParts | None = None
    """Every shared step of every rank, part by part."""
    series: Series | None = None
    """Step by step, each step's mean over ranks, after warm-up, at full resolution."""
    slowdown: Slowdown | None = None
    regions: tuple[Region, ...] = ()
    """Summed over ranks, the longest total first."""
    loader_workers: int | None = None
    """The most workers that a rank's training loader has."""
    host: HostFacts = NOT_SAMPLED
    processes: tuple[ProcessFacts, ...] = ()
    reason_without_steps: str | None = None

    @property
    def ranks_used(self) -> tuple[RankFacts, ...]:
        """The ranks whose steps the means cover."""
        return tuple(rank for rank in self.ranks if rank.times.step_s is not None)

    def typical(self, phase: Phase) -> float | None:
        """A phase's mean seconds per step."""
        return phase_s(self.mean, phase)

    def typical_share(self, phase: Phase) -> float | None:
        """A phase's part of where the step's time went."""
        return share(self.typical(phase), self.mean.step_s)


def phase_s(times: StepTimes, phase: Phase) -> float | None:
    """The seconds of one phase."""
    found: float | None = getattr(times, f"{phase.value}_s")
    return found


def share(part_s: float | None, whole_s: float | None) -> float | None:
    """A part of a whole, 0–1; `None` where either is unknown."""
    return part_s / whole_s if part_s is not None and whole_s else None
