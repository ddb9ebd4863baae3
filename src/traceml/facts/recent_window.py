"""The facts of a run's last steps, and of those among them that show how it runs now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.facts.series import find_slowdown
from traceml.facts.step_table import Floats, Ints, StepTable
from traceml.model.phase import Phase
from traceml.store.recent_steps import WINDOW_STEPS, select_steps
from traceml.store.records import RunRecords

MAX_WARMUP_STEPS = WINDOW_STEPS // 10  # the tenth of a full window, from its first seconds on
MIN_STEPS = 8  # fewer since a change say little about how the run is now
STALL = 3.0  # times the median: a step that stands out like this …
MIN_STALLS = 2  # … proves nothing by itself
PRESENCE = 0.5  # of a phase's mean: so much of it shows that it takes its time already
FLOOR_S = 1e-6  # under a phase that took nothing at first, so that its growth has a ratio


@dataclass(frozen=True, slots=True)
class RecentFacts:
    """The facts of a run's last steps, for live views."""

    whole: Facts
    """Over all steps of the window."""
    now: Facts
    """Over the steps since the step time last changed, without a stall that happened only once."""


def gather_recent(records: RunRecords) -> RecentFacts:
    """Returns the facts of the last steps of a run; `records` holds those steps and no others."""
    window = gather(records, MAX_WARMUP_STEPS)
    if window.step_table is None:
        return RecentFacts(window, window)
    step_s, numbers = _over_ranks(window.step_table.step(), window.step_table.numbers)
    if not len(numbers):
        return RecentFacts(window, window)
    chosen = numbers[_since_the_pace_changed(step_s, numbers)]
    stall = _lone_stall(step_s[-len(chosen) :])
    if stall is not None:
        chosen = np.delete(chosen, stall)
    if len(chosen) == len(numbers):
        return RecentFacts(window, window)
    untimed = np.setdiff1d(
        window.step_table.numbers, numbers
    )  # the GPU's clock did not run: they stay
    kept = np.concatenate([chosen, untimed[untimed > chosen[0]]])
    return RecentFacts(window, gather(select_steps(records, kept - 1), 0))


def since_step(table: StepTable, phase: Phase | None, ranks: Collection[int]) -> int:
    """Returns the number of the step since which a phase takes as long as it does now.

    That is the step at which the phase became longer, or else the first step that has the phase.
    Without a phase, the whole step is judged. `ranks` are the ranks to look at; empty means all.
    """
    table_s = table.step() if phase is None else table.phase(phase)
    chosen = frozenset(ranks)
    rows = [row for row, rank in enumerate(table.ranks) if not chosen or rank in chosen]
    part_s, numbers = _over_ranks(table_s[rows], table.numbers)
    if not len(part_s):
        return int(table.numbers[0])
    grown = find_slowdown(part_s + FLOOR_S, numbers)
    if grown is not None:
        return grown.onset_step
    return int(numbers[np.argmax(part_s >= PRESENCE * part_s.mean())])


def _over_ranks(table_s: Floats, numbers: Ints) -> tuple[Floats, Ints]:
    """Each step's mean over ranks, for the steps in which any was measured."""
    seen = np.isfinite(table_s).any(axis=0)
    return np.asarray(np.nanmean(table_s[:, seen], axis=0)), numbers[seen]


def _since_the_pace_changed(step_s: Floats, numbers: Ints) -> slice:
    slower = find_slowdown(step_s, numbers)
    faster = find_slowdown(step_s[::-1], numbers[::-1])  # a speed-up, read backwards
    first = max(
        0 if slower is None else int(np.searchsorted(numbers, slower.onset_step)),
        0 if faster is None else int(np.searchsorted(numbers, faster.onset_step)) + 1,
    )
    return slice(first if len(numbers) - first >= MIN_STEPS else 0, None)


def _lone_stall(step_s: Floats) -> int | None:
    """Returns the position of the one step that took far longer; `None` unless it is just one."""
    stalls = np.flatnonzero(step_s > STALL * np.median(step_s))
    return int(stalls[0]) if 0 < len(stalls) < MIN_STALLS else None
