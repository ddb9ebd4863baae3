"""Distinguishes time lost in every step from time lost in a few single steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceml.facts.step_table import Floats, StepTable

MAX_STEPS = 3
"""A loss in at most this many steps is an accident; in more of them it is how the run goes."""
MAX_SHARE = 0.05
"""Of all steps: in a run so short that a few steps are more than this, none of them stands out."""
CHUNK_RANKS = 256
"""Ranks whose steps are copied at a time: a table of all of them is large."""
MIN_SHARE_OF_LOST_TIME = 0.5  # with less of it in the few steps, the other steps are the story


@dataclass(frozen=True, slots=True)
class FewSteps:
    """The few steps that hold most of a lost time. Times are those of the slowest rank in each
    step."""

    numbers: tuple[int, ...]
    """The steps' numbers, counted from 1, in order."""
    step_s: float
    """The sum of their step times."""
    lost_s: float
    """The sum of the time lost in them."""
    other_step_s: float
    """The mean step time of all other steps."""
    other_lost_s: float
    """The mean time lost in all other steps."""

    @property
    def words(self) -> str:
        """The steps in words: `one step (number 7)`, `2 steps (numbers 7 and 12)`."""
        if len(self.numbers) == 1:
            return f"one step (number {self.numbers[0]:,})"
        first, last = ", ".join(f"{n:,}" for n in self.numbers[:-1]), f"{self.numbers[-1]:,}"
        return f"{len(self.numbers)} steps (numbers {first} and {last})"

    @property
    def pronoun(self) -> str:
        """The pronoun for the steps in the rest of the sentence: `it` or `them`."""
        return "it" if len(self.numbers) == 1 else "them"


def few_steps(table: StepTable, lost_s: Floats, whole_s: Floats | None = None) -> FewSteps | None:
    """Returns the few steps that hold most of a lost time; `None` where no few steps do.

    `lost_s` and `whole_s` have a row per rank and a column per step; `whole_s` is the step time by
    default. Also `None` where old steps are merged into blocks: single steps are unknown there.
    """
    if table.folded:
        return None
    whole_s = table.step() if whole_s is None else whole_s
    timed = np.flatnonzero(np.isfinite(whole_s).any(axis=0))
    most = min(MAX_STEPS, int(MAX_SHARE * len(timed)))
    if most < 1:
        return None
    whole, lost = np.zeros(len(timed)), np.zeros(len(timed))
    for first in range(0, len(whole_s), CHUNK_RANKS):
        rows = slice(first, first + CHUNK_RANKS)
        part = np.nan_to_num(whole_s[rows, timed])
        np.maximum(whole, part.max(axis=0), out=whole)
        lost_part = np.clip(np.nan_to_num(lost_s[rows, timed]), 0.0, part)
        np.maximum(lost, lost_part.max(axis=0), out=lost)
    latest = np.argsort(-lost, kind="stable")[:most]
    held = np.cumsum(lost[latest])
    enough = np.flatnonzero(held >= MIN_SHARE_OF_LOST_TIME * lost.sum())
    if not held[-1] or not len(enough):
        return None
    few = np.sort(latest[: int(enough[0]) + 1])
    others = np.delete(np.arange(len(timed)), few)
    return FewSteps(
        numbers=tuple(table.numbers[timed[few]].tolist()),
        step_s=float(whole[few].sum()),
        lost_s=float(lost[few].sum()),
        other_step_s=float(whole[others].mean()),
        other_lost_s=float(lost[others].mean()),
    )
