"""What the host did besides a step's phases, step by step, and how late it made the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceml.facts.parts import StepParts


@dataclass(frozen=True, slots=True)
class Pauses:
    """One kind of pause over all ranks and steps, at full resolution."""

    steps: int
    """Steps of any rank that had one."""
    steps_seen: int
    longest_s: float
    """The most that one step spent."""
    late_s: float
    """What the bodies of those steps took longer than the rank's median body, at most their pauses;
    a mean over all steps. A pause that the step hides costs nothing, and counts for nothing here,
    nor does a late batch, which is the input's."""


def pauses(parts: StepParts, name: str) -> Pauses | None:
    """The pauses that a field of the record holds; `None` where it was never measured."""
    spent_s = parts.field(name)
    if not np.isfinite(spent_s).any():
        return None
    spent_s = np.nan_to_num(spent_s)
    if not spent_s.any():  # as nearly always
        return Pauses(0, int(spent_s.size), 0.0, 0.0)
    body_s = parts.body()
    usual_s = np.array([[_median(row)] for row in body_s])
    late_s = np.minimum(spent_s, np.maximum(np.nan_to_num(body_s - usual_s), 0.0))
    return Pauses(
        steps=int(np.count_nonzero(spent_s)),
        steps_seen=int(spent_s.size),
        longest_s=float(spent_s.max()),
        late_s=float(late_s.mean()),
    )


def _median(row: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    known = row[np.isfinite(row)]
    return float(np.median(known)) if len(known) else float("nan")
