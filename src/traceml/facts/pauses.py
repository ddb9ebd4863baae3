"""What the host did besides a step's phases (garbage collection, logging …), and how much it
delayed the step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.step_table import StepTable

MAX_DISTANCES = 2.0
"""Where more steps than this many distances between two pauses lie before the first or after the
last pause, the pauses do not cover the whole run."""


@dataclass(frozen=True, slots=True)
class Pauses:
    """One kind of pause over all ranks and steps; steps in blocks are left out."""

    steps: int
    """Steps in which any rank had one; a step of several ranks counts once."""
    steps_seen: int
    longest_s: float
    """The longest pause of one step on one rank."""
    usual_s: float
    """The median of the pauses, over ranks and steps."""
    late_s: float
    """How much longer the bodies of those steps are than the rank's median body, at most their
    pause; as a mean over all steps. A pause that overlaps with other work, and a late batch, add
    nothing."""
    every_steps: float | None = None
    """How often a pause comes: the mean number of steps between two, where they cover the whole
    run; else all steps divided by the number of pauses. `None` without any."""


def pauses(table: StepTable, name: str) -> Pauses | None:
    """Returns the pauses that a field of the record holds; `None` where it was never measured."""
    if all(rank.columns.constants.get(name) == 0 for rank in table.rank_steps):  # as mostly
        return Pauses(0, len(table.numbers), 0.0, 0.0, 0.0)
    spent_s = table.field(name)
    if not np.isfinite(spent_s).any():
        return None
    spent_s = np.nan_to_num(spent_s)
    if not spent_s.any():
        return Pauses(0, spent_s.shape[1], 0.0, 0.0, 0.0)
    body_s = table.body()
    median_s = np.array([[_median(row)] for row in body_s])
    late_s = np.minimum(spent_s, np.maximum(np.nan_to_num(body_s - median_s), 0.0))
    places = np.flatnonzero(spent_s.any(axis=0))
    return Pauses(
        steps=len(places),
        steps_seen=spent_s.shape[1],
        longest_s=float(spent_s.max()),
        usual_s=float(np.median(spent_s[spent_s > 0])),
        late_s=float(late_s.mean()),
        every_steps=_mean_distance(places, spent_s.shape[1]),
    )


def _mean_distance(places: npt.NDArray[np.intp], steps: int) -> float:
    """Returns the mean distance, in steps, between the steps at these places, of a run of so many
    steps."""
    if len(places) > 1:
        distance = float(places[-1] - places[0]) / (len(places) - 1)
        before, after = int(places[0]), steps - 1 - int(places[-1])
        if max(before, after) <= MAX_DISTANCES * distance:
            return distance
    return steps / len(places)


def _median(row: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    known = row[np.isfinite(row)]
    return float(np.median(known)) if len(known) else float("nan")
