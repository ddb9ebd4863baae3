"""The steps that measuring made longer, and all the others.

Steps that are recorded with torch's profiler, or looked at layer by layer, take longer than they
would. What that costs over a whole run is bounded, but in a run of a minute it is a visible part of
the mean step, in phases that have nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np

from traceml.facts.step_table import Ints, RankSteps
from traceml.model.phase import IN_BETWEEN
from traceml.model.quantities import count
from traceml.store.layer_records import LayerRecords
from traceml.store.records import RankRecords, RunRecords

DISTURBED_STEPS = (-1, 0, 1)
"""A recording begins in the step before it and is written in the one after it, or at its end."""
MIN_LEFT = 0.5
"""Of a rank's steps: where looking at layers disturbed more, those are how the run was."""

LEFT_OUT_NOTE = (
    "Left out of the mean step and its phases: {left_out} of {taken}, which took longer because "
    "they were recorded, or looked at layer by layer."
)

StepsByRank: TypeAlias = Mapping[int, RankSteps]


def undisturbed_steps(complete: StepsByRank, records: RunRecords) -> StepsByRank:
    """Returns the steps of each rank without those that recording or looking at layers made longer.

    Ranks wait for each other, so what one of them looked at is left out of all. A step behind an
    evaluation or a checkpoint of any rank stays: without it, that would be lost too. Where
    recording disturbed all steps of a rank, they all count; so do those that were looked at where
    too few would be left.
    """
    found = _without_recorded(complete, records) if records.step_traces else complete
    if not records.layers:
        return found
    looked_at = _numbers(_looked_at(records))
    for steps in found.values():
        looked_at = np.setdiff1d(looked_at, _behind_other_work(steps, looked_at))
    left = {number: _without(steps, looked_at) for number, steps in found.items()}
    if any(len(left[number].index) < MIN_LEFT * len(found[number].index) for number in found):
        return found
    return left


def left_out_note(complete: StepsByRank, undisturbed: StepsByRank) -> str | None:
    """Returns a sentence about the steps that are left out of the means; `None` where none is."""
    taken = {number: len(steps.index) for number, steps in complete.items()}
    left_out = {number: taken[number] - len(undisturbed[number].index) for number in taken}
    number = max(left_out, key=left_out.__getitem__, default=None)
    if number is None or not left_out[number]:
        return None
    return LEFT_OUT_NOTE.format(left_out=left_out[number], taken=count(taken[number], "step"))


def recorded_steps(records: RunRecords) -> dict[int, set[int]]:
    """Returns the numbers of the steps in which torch's profiler ran for us, by rank: for a whole
    trace, or for the kernels of a deep profile."""
    ranks = _ranks_by_pid(records)
    by_pid = [(each.pid, [step for step, _ in each.recorded]) for each in records.step_traces]
    by_pid += [(each.pid, list(_with_kernels(each))) for each in records.layers]
    found: dict[int, set[int]] = {}
    for pid, steps in by_pid:
        rank = ranks.get(pid)
        if rank is not None and steps:
            numbers = {rank.former_steps + step for step in steps}
            found.setdefault(rank.rank.rank, set()).update(numbers)
    return found


def _without_recorded(complete: StepsByRank, records: RunRecords) -> StepsByRank:
    ranks = _ranks_by_pid(records)
    found = dict(complete)
    for each in records.step_traces:
        rank = ranks.get(each.pid)
        if rank is None:
            continue  # it took no step, or was restarted, and nobody knows with which number
        number = rank.rank.rank
        recorded = _numbers(_around(rank, (step for step, _ in each.recorded)))
        kept = _behind_other_work(found[number], recorded)
        left = _without(found[number], np.setdiff1d(recorded, kept))
        if len(left.index):
            found[number] = left
    return found


def _looked_at(records: RunRecords) -> set[int]:
    """Returns the steps of any rank whose layers or kernels were looked at, from 0 on. Of long runs
    the file does not name them all."""
    ranks = _ranks_by_pid(records)
    found: set[int] = set()
    for each in records.layers:
        rank = ranks.get(each.pid)
        if rank is not None:
            found |= _around(rank, each.looked_at, near=(0,)) | _around(rank, _with_kernels(each))
    return found


def _ranks_by_pid(records: RunRecords) -> dict[int, RankRecords]:
    return {rank.rank.pid: rank for rank in records.ranks}


def _with_kernels(records: LayerRecords) -> Iterable[int]:
    """Returns the steps whose kernels were recorded."""
    return (step for each in records.kernels for step in each.numbers or (each.step,))


def _around(
    rank: RankRecords, steps: Iterable[int], near: Sequence[int] = DISTURBED_STEPS
) -> set[int]:
    """Returns the steps near these of a rank, counted over its restarts and from 0 on."""
    before = rank.former_steps - 1
    return {before + step + each for step in steps for each in near}


def _numbers(steps: Set[int]) -> Ints:
    return np.array(sorted(steps), np.int64)


def _behind_other_work(steps: RankSteps, numbers: Ints) -> Ints:
    """Returns which of these steps have an evaluation or a checkpoint before them."""
    chosen = np.flatnonzero(np.isin(steps.index, numbers))
    is_behind = np.zeros(len(chosen), np.bool_)
    for name in IN_BETWEEN:
        is_behind |= steps.columns[f"{name}_ns"][chosen] > 0
    return steps.index[chosen[is_behind]]


def _without(steps: RankSteps, numbers: Ints) -> RankSteps:
    is_left = ~np.isin(steps.index, numbers)
    return steps if is_left.all() else steps.take(np.flatnonzero(is_left))
