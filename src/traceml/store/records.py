"""A run as it was recorded: what the rooms above read, free of files and formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import layout
from traceml.model.failure import NOTHING_SEEN, AgentSaw, FailureReport
from traceml.model.lineage import Lineage
from traceml.model.rank import Rank, Region
from traceml.model.run import Ending, Manifest
from traceml.model.sample import Sample
from traceml.model.settings import Settings
from traceml.model.stack_sample import StackBurst

_NUMPY_KIND = {"h": "<i2", "q": "<i8", "Q": "<u8", "i": "<i4", "I": "<u4", "H": "<u2", "d": "<f8"}


def dtype_of(fields: tuple[layout.Field, ...]) -> np.dtype[Any]:
    """The numpy dtype of a layout: the same bytes that `struct` packs."""
    return np.dtype(
        [
            (name, f"S{kind[:-1]}" if kind.endswith("s") else _NUMPY_KIND[kind])
            for name, kind in fields
        ]
    )


STEP_DTYPE = dtype_of(layout.STEP)
BLOCK_DTYPE = dtype_of(layout.BLOCK)


@dataclass(frozen=True, slots=True)
class TracerHealth:
    """What the tracer of one rank could not do."""

    steps_lost: int = 0
    """Steps the ring overwrote before anybody drained them."""
    failures: int = 0
    """Exceptions caught inside our hooks."""
    last_failure: str = ""
    messages_lost: int = 0
    """Pieces of messages the ring overwrote before anybody drained them."""
    values_refused: int = 0
    """Logged values and calls that could not be recorded as they were: the script's slips."""
    regions_dropped: int = 0
    ended: bool = False
    """The process said goodbye: it was not killed."""
    recording_ended: bool = False
    """The tracer stopped recording before the training's end: nobody can say how that went on."""
    limit_reached: bool = False
    """It did so because as many steps were recorded as were asked for."""


@dataclass(frozen=True, slots=True)
class DdpStatistics:
    """What DDP measured of its own communication, means over the passes that it sampled."""

    communication_s: float
    """From the first gradients sent to the last received, waiting for other ranks included."""
    overlap_s: float
    """The part of it in which backward still computed."""
    gradient_bytes: int
    buckets: int
    has_hook: bool
    """The script has registered a communication hook."""


@dataclass(frozen=True, slots=True)
class SeenLoss:
    """One loss that `backward` was called on, and its step, counted from 1."""

    step: int
    value: float


@dataclass(frozen=True, slots=True)
class RecordedLosses:
    """The losses of one rank that are known however many of its steps are folded by now."""

    first: SeenLoss | None = None
    """The first finite one."""
    first_lost: SeenLoss | None = None
    """The first that was not finite …"""
    before_lost: SeenLoss | None = None
    """… and the last finite one that was seen before it."""


@dataclass(frozen=True, slots=True)
class RankRecords:
    """One rank: its steps in order, old ones folded into blocks, and its named regions."""

    rank: Rank
    steps: npt.NDArray[Any]
    """`STEP_DTYPE`, full resolution, in order; includes aborted steps and the tail."""
    blocks: npt.NDArray[Any]
    """`BLOCK_DTYPE`: the steps before `steps`, oldest first."""
    earlier_steps: int = 0
    """Complete steps that the process took before these, where only its last ones are here."""
    former_steps: int = 0
    """Of all its complete steps those of earlier processes, where the rank was started again."""
    regions: tuple[Region, ...] = ()
    loader_workers: int | None = None
    """How many workers the training loader has; `None` where no fetch was seen."""
    loader_pinned: bool | None = None
    ddp: DdpStatistics | None = None
    losses: RecordedLosses = RecordedLosses()
    settings: Settings | None = None
    """What it trains with, as last said; `None` where it said nothing."""
    health: TracerHealth = TracerHealth()


@dataclass(frozen=True, slots=True)
class Metric:
    """One logged value's history, reduced."""

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
    """The first value; `None` in records that were thinned before it was kept."""
    history: tuple[tuple[int, float], ...] = field(default=(), repr=False, compare=False)
    """Step and value, in order, of losses and gradient norms; of long ones a part: no number."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file the user named."""

    name: str
    path: str
    size_bytes: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Everything a run left behind."""

    manifest: Manifest
    ranks: tuple[RankRecords, ...]
    """In order of global rank, one entry each."""
    samples: tuple[Sample, ...] = ()
    ending: Ending | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    reports: tuple[FailureReport, ...] = ()
    """The exceptions that the ranks wrote down, in order of time."""
    seen: AgentSaw = NOTHING_SEEN
    lineage: Lineage | None = None
    stack_bursts: tuple[StackBurst, ...] = ()
    """The agent's looks at the training threads' stacks, in order of time."""
    notes: tuple[str, ...] = ()
    """What could not be done or read, in words for people."""
