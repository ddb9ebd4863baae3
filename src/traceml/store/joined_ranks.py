"""Joins the processes of a rank that was restarted: the result has one entry per rank, with the
steps of its processes numbered on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model.parallel_place import NO_PLACE
from traceml.store.attempt_groups import first_numbers, group_attempts, started_processes
from traceml.store.blocks import fold
from traceml.store.records import (
    RankRecords,
    RecordedLosses,
    RunRecords,
    SeenLoss,
    TracerHealth,
)
from traceml.store.restarted_ranks import ProcessSpan, restarts_by_rank
from traceml.store.step_columns import columns_of
from traceml.store.step_records import (
    incomplete_so_far,
    is_incomplete,
    next_number,
    record_numbers,
)


def one_per_rank(
    records: list[RankRecords],
) -> tuple[tuple[RankRecords, ...], tuple[RankRecords, ...]]:
    """Returns one entry per rank, restarts joined end to end; and, where there were restarts, the
    processes by themselves in order of time, with the final numbers of their ranks."""
    trained = [record for record in records if len(record.steps)] or records
    ranks: list[RankRecords] = []
    processes: list[RankRecords] = []
    for number, found in restarts_by_rank(trained, _life):
        lives = [_as_rank(life, number) for life in found]
        ranks.append(_joined(lives))
        processes += lives
    if len(processes) == len(ranks):
        return tuple(ranks), ()
    processes.sort(key=lambda process: (process.rank.unix_ns, process.rank.rank))
    return tuple(ranks), tuple(processes)


def number_attempts(records: RunRecords) -> RunRecords:
    """Returns a run whose steps are numbered by attempt: each begins with the same number on every
    rank, however many steps a rank took in the one before."""
    processes = records.processes or records.ranks
    groups = group_attempts(started_processes(records)) if len(processes) > 1 else []
    if len(groups) < 2:
        return records
    firsts = first_numbers(groups)
    first_of: dict[int, int] = {}
    starts = []
    for group, first in zip(groups, firsts, strict=True):
        trained = [each.records for each in group.processes if each.records is not None]
        first_of |= {id(each): first for each in trained}
        starts += [first] if trained else []
    lives: dict[int, list[RankRecords]] = {}
    for each in processes:
        lives.setdefault(each.rank.rank, []).append(each)
    ranks = tuple(
        _joined(own, [first_of.get(id(each), 0) for each in own])
        for own in (lives[rank.rank.rank] for rank in records.ranks)
    )
    return replace(records, ranks=ranks, attempt_firsts=tuple(starts))


def _joined(lives: Sequence[RankRecords], firsts: Sequence[int] | None = None) -> RankRecords:
    """Returns the processes of one rank as one. `firsts` are the numbers, from 0, of their first
    steps; without them each process counts on from the one before."""
    found = _counted_from(lives[0], firsts[0] if firsts else 0)
    for place, life in enumerate(lives[1:], 1):
        first = 0 if firsts is None else firsts[place]
        found = _join(found, life, max(first, next_number(found)))
    return found


def _counted_from(life: RankRecords, number: int) -> RankRecords:
    """Returns the first process of a rank with its steps numbered from `number` (from 0)."""
    if not number:
        return life
    steps = np.array(life.steps)
    steps["sequence"] += number
    losses = _later_losses(life.losses, number)
    return replace(life, steps=columns_of(steps), losses=losses, former_steps=number)


def _as_rank(record: RankRecords, number: int) -> RankRecords:
    if record.rank.rank == number:
        return record
    return replace(record, rank=replace(record.rank, rank=number))


def _life(record: RankRecords) -> ProcessSpan:
    restart = None if record.resumption is None else record.resumption.restart
    if not len(record.steps):
        return ProcessSpan(record.rank, None, None, restart)
    starts, walls = record.steps["start_ns"], record.steps["wall_ns"]
    return ProcessSpan(record.rank, int(starts[0]), int(starts[-1] + walls[-1]), restart)


def _join(first: RankRecords, second: RankRecords, number: int) -> RankRecords:
    """Returns two processes of one rank joined, on the first one's clock; the second one's first
    step has this number, from 0."""
    shift = (second.rank.unix_ns - second.rank.monotonic_ns) - (
        first.rank.unix_ns - first.rank.monotonic_ns
    )
    former, steps, blocks = np.array(first.steps), np.array(second.steps), second.blocks.copy()
    steps["sequence"] = (
        record_numbers(second)
        + incomplete_so_far(steps)
        + (number + 1 + _incomplete_in_all(first) + _incomplete_in(blocks))
    )
    steps["start_ns"] += shift
    blocks["start_ns"] += shift
    if len(blocks):  # the first life's steps can stand before the second's blocks only as blocks
        blocks = np.concatenate([first.blocks, fold(former), blocks])
    else:
        blocks, steps = first.blocks, np.concatenate([former, steps])
    return RankRecords(
        rank=replace(second.rank, monotonic_ns=first.rank.monotonic_ns, unix_ns=first.rank.unix_ns),
        steps=columns_of(steps),
        blocks=blocks,
        regions=first.regions + second.regions,
        loader_workers=(
            first.loader_workers if second.loader_workers is None else second.loader_workers
        ),
        loader_pinned=(
            first.loader_pinned if second.loader_pinned is None else second.loader_pinned
        ),
        ddp=second.ddp or first.ddp,
        losses=_join_losses(first, second, number),
        former_steps=number,
        settings=second.settings or first.settings,
        resumption=second.resumption,
        place=first.place if second.place == NO_PLACE else second.place,
        health=_join_health(first.health, second.health),
    )


def _incomplete_in(blocks: npt.NDArray[Any]) -> int:
    return int((blocks["steps"] - blocks["complete_steps"]).sum())


def _incomplete_in_all(records: RankRecords) -> int:
    """Returns how many records of a rank are no complete steps."""
    return int(np.count_nonzero(is_incomplete(records.steps))) + _incomplete_in(records.blocks)


def _join_losses(first: RankRecords, second: RankRecords, passed: int) -> RecordedLosses:
    """Returns the recorded losses of both; so many steps came before those of the second one."""

    earlier, own = first.losses, _later_losses(second.losses, passed)
    was_lost = earlier.first_lost is not None
    return RecordedLosses(
        first=earlier.first or own.first,
        first_lost=earlier.first_lost if was_lost else own.first_lost,
        before_lost=earlier.before_lost if was_lost else own.before_lost,
    )


def _later_losses(losses: RecordedLosses, passed: int) -> RecordedLosses:
    """Returns the losses of steps before which so many others came."""

    def later(seen: SeenLoss | None) -> SeenLoss | None:
        return None if seen is None else replace(seen, step=seen.step + passed)

    return RecordedLosses(*map(later, (losses.first, losses.first_lost, losses.before_lost)))


def _join_health(first: TracerHealth, second: TracerHealth) -> TracerHealth:
    return TracerHealth(
        steps_lost=first.steps_lost + second.steps_lost,
        failures=first.failures + second.failures,
        last_failure=second.last_failure or first.last_failure,
        messages_lost=first.messages_lost + second.messages_lost,
        values_refused=first.values_refused + second.values_refused,
        regions_dropped=first.regions_dropped + second.regions_dropped,
        ended=second.ended,
        recording_ended=second.recording_ended,
        limit_reached=second.limit_reached,
    )
