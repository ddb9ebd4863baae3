"""A scenario: a training, the fault planted in it, and the truth that TraceML should say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from benchmarks.faults.training.plan import Plant, Setup


@dataclass(frozen=True, slots=True)
class Truth:
    """What is so in a run, because it was planted."""

    kinds: tuple[str, ...]
    """The exact kind first, then others that are right as well."""
    ranks: tuple[int, ...] | None = None
    """The ranks it is about; `None` where no rank stands out."""
    phase: str | None = None
    share: float | None = None
    """About what part of the step it takes, where that has a meaning."""
    also: tuple[str, ...] = ()
    """Kinds that must be found too, as what explains the first."""
    module: str | None = None
    """The submodule that failed."""
    step: int | None = None
    """The step that failed."""
    live: bool = True
    """Whether it can be seen while the training goes on."""
    what_if: bool = True
    """Whether a training without it has a step time to predict."""
    exits_well: bool = True
    """Whether the training ends with status 0."""

    @property
    def kind(self) -> str:
        """The exact kind."""
        return self.kinds[0]


HEALTHY_KINDS = ("COMPUTE_BOUND", "BALANCED")
"""A training that does nothing but train: both are praise."""
HEALTHY = Truth(HEALTHY_KINDS, live=False, what_if=False)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table."""

    name: str
    setup: Setup
    truth: Truth
    plant: Plant = field(default_factory=Plant)
    ranks: int = 1
    launcher: str = "traceml"
    """Who starts the ranks: `traceml` by its own option, or `torchrun` behind `--`."""
    neighbours: int = 0
    """Busy processes beside the training."""
    crowding: int = 0
    """Busy processes on the very core that the training is pinned to: part of the fault."""
    baseline: Plant = field(default_factory=Plant)
    """What is planted in the run that what-if is held against; usually nothing."""
    gpu: bool = False
    gives_up_after_s: float | None = None
    """How long after the onset somebody ends a training that would never end."""
    timeout_s: float = 120.0

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong here."""
        return self.truth is HEALTHY

    def without_fault(self) -> Scenario:
        """The same training with nothing planted."""
        return replace(self, plant=self.baseline, crowding=0)
