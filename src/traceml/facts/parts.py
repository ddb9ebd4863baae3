"""Every shared step of every rank, part by part: what means alone cannot tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.aligned import WIDE, Aligned, Ints
from traceml.model.phase import COMPUTE, Phase

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepParts:
    """The steps that all ranks share, after warm-up, at full resolution.

    Every table has a row per rank and a column per step, in seconds; NaN is "not measured".
    """

    aligned: Aligned
    warmup: int
    clock: str
    """`gpu` or `cpu`: the clock that the phases are taken on."""
    ranks: tuple[int, ...]
    """The global rank of each row."""

    @property
    def numbers(self) -> Ints:
        """The number of each column's step, counted from 1."""
        return self.aligned.index[self.warmup :] + 1

    def field(self, name: str) -> Floats:
        """One field of the record, in seconds."""
        column = WIDE.index(name)
        table = np.stack([rank.rows[self.warmup :, column] for rank in self.aligned.ranks])
        return np.where(table >= 0, table * 1e-9, np.nan)

    def phase(self, phase: Phase) -> Floats:
        """One phase on the run's clock; the residual is what the others leave of the body."""
        if phase is Phase.RESIDUAL:
            rest = self.body()
            for part in (Phase.H2D, Phase.COMMUNICATION, *COMPUTE):
                rest = rest - np.nan_to_num(self.phase(part))
            return rest - np.nan_to_num(self._clocked("graph"))
        return self._clocked(phase.value)

    def body(self) -> Floats:
        """The step without its input wait."""
        return self._clocked("body")

    def step(self) -> Floats:
        """The whole step: input wait and body."""
        return self.body() + np.nan_to_num(self._clocked("input"))

    def outside(self) -> Floats:
        """What passed before the step and is neither its input wait, evaluation nor a checkpoint;
        on the host's clock."""
        left = self.field("wall_ns")
        for name in ("input_ns", "body_ns", "evaluation_ns", "checkpoint_ns"):
            left = left - np.nan_to_num(self.field(name))
        return np.maximum(left, 0.0)

    def in_rest(self, name: str) -> Floats:
        """What the host spent on something, as far as the step's rest has room for it."""
        return np.minimum(self.field(name), np.maximum(self.phase(Phase.RESIDUAL), 0.0))

    def own(self) -> Floats:
        """What each rank itself took: the step without exposed communication."""
        return self.step() - np.nan_to_num(self.phase(Phase.COMMUNICATION))

    def _clocked(self, name: str) -> Floats:
        return self.field(f"gpu_{name}_ns" if self.clock == "gpu" else f"{name}_ns")
