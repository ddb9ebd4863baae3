"""The attempts of a run: each time that its ranks were started, and why the ones before ended.

A launcher such as torchrun starts all ranks again when one fails (`--max-restarts`). That is
one run with several attempts. A script that is run again after it ended well (a second script of a
shell, the next fold of a cross-validation) is a further attempt, but no restart.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from traceml.facts.rank_ends import last_step_unix_s as last_complete_unix_s
from traceml.facts.stability import Failure, Stability, find_failure
from traceml.model.failure import AgentSaw, Death
from traceml.model.finding import Kind
from traceml.model.run import Ending
from traceml.store.attempt_groups import (
    AttemptGroup,
    StartedProcess,
    first_numbers,
    group_attempts,
    has_records,
    span_unix_s,
    started_processes,
)
from traceml.store.records import RankRecords, RunRecords
from traceml.store.step_records import count_complete


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the ranks, and what came of it."""

    number: int
    """From 1."""
    began_unix_s: float
    """When its first process was started; the run's own start for the first attempt."""
    until_unix_s: float
    """When the next attempt began, or the run ended; the latest that is known where it goes on."""
    world_size: int
    processes: tuple[RankRecords, ...]
    """Its processes that took steps; empty where it ended before its first step."""
    first_number: int
    """The number, from 0, of its first step among those of the run, the same on every rank."""
    steps: int
    """Complete steps of the rank that took the most."""
    resumed_step: int | None = None
    """The number of steps from which it went on, by what it had loaded; 0 where it began anew;
    `None` where that is not known."""
    redone_steps: int | None = 0
    """How many of its steps a later attempt had to do again; `None` where that is not known."""
    failure: Failure | None = None
    """What ended it; `None` where it ended well, or goes on, or where only `first_to_leave` is
    known."""
    first_to_leave: Death | None = None
    """The first of its processes to end with a status other than 0."""
    restart: int | None = None
    """How often its launcher had started the ranks again; `None` where it did not say."""
    is_restart: bool = False
    """Whether the attempt before it failed, or its launcher says so."""
    next_world_size: int | None = None
    """Of the attempt after it, which is a restart; `None` for the last one."""
    is_regrouped: bool = False
    """Whether its launcher stopped it to go on with another number of ranks: a machine came, or
    left in good order."""


def find_attempts(records: RunRecords, whole: Stability) -> tuple[Attempt, ...]:
    """Returns the attempts of a run in order of time; empty where no rank took a step, and where
    the records hold the last steps alone.

    `whole` is how the run itself ended: so ended its last attempt.
    """
    if any(rank.earlier_steps for rank in records.ranks):
        return ()  # these are the last steps of a run that goes on
    processes = started_processes(records)
    if not any(each.records is not None for each in processes):
        return ()
    groups = group_attempts(processes)
    starts = [group.began_unix_s for group in groups[1:]]
    # A clock that was set back may have changed their order.
    begins = list(accumulate([records.manifest.started_unix_s, *starts], max))
    ends = [*begins[1:], max(run_end_unix_s(records), begins[-1])]
    last = len(groups) - 1
    found = [
        replace(
            _attempt(records, place + 1, group, begins[place], ends[place], whole, place == last),
            first_number=first,
        )
        for place, (group, first) in enumerate(zip(groups, first_numbers(groups), strict=True))
    ]
    return tuple(_with_redone(_with_restarts(found)))


def run_end_unix_s(records: RunRecords) -> float:
    """Returns when the run ended; of one that goes on, the latest moment that is recorded."""
    if records.ending is not None:
        return records.ending.unix_s
    recorded = [span_unix_s(rank)[1] for rank in records.ranks if has_records(rank)]
    sampled = [records.samples[-1].unix_s] if records.samples else []
    return max(recorded + sampled, default=records.manifest.started_unix_s)


# What came of an attempt


def _attempt(
    records: RunRecords,
    number: int,
    group: AttemptGroup,
    began_unix_s: float,
    until_unix_s: float,
    whole: Stability,
    is_last: bool,
) -> Attempt:
    processes = tuple(each.records for each in group.processes if each.records is not None)
    pids = frozenset(each.pid for each in group.processes)
    of_attempt = _deaths_of(records.seen.deaths, group.processes)
    failure = whole.failure
    if not is_last or _is_of_other_attempt(whole.failure, records, pids):
        own = _records_of(records, processes, pids, of_attempt, until_unix_s)
        failure = find_failure(own, is_followed=not is_last)
    badly = (death for death in of_attempt if death.status)
    left = None if failure is None or is_last else failure.left
    if left is not None:
        failure = None  # it only says that this one has left
    told = max((each.rank.world_size for each in processes), default=0)
    return Attempt(
        number=number,
        began_unix_s=began_unix_s,
        until_unix_s=until_unix_s,
        world_size=max(told, group.world_size),
        processes=processes,
        first_number=0,
        steps=max((count_complete(each.steps, each.blocks) for each in processes), default=0),
        resumed_step=_resumed_step(processes),
        failure=failure,
        first_to_leave=(left or next(badly, None)) if failure is None else None,
        restart=max(
            (each.restart for each in group.processes if each.restart is not None), default=None
        ),
    )


def _is_of_other_attempt(
    failure: Failure | None, records: RunRecords, pids: frozenset[int]
) -> bool:
    """Returns whether what ended the run happened to a process of another attempt, which reported
    it or was killed: the last attempts may fail because of it."""
    if failure is None:
        return False
    if failure.report is not None:
        return failure.report.is_rank and failure.report.pid not in pids
    killed = (each.rank.pid for each in records.ranks if each.rank.rank == failure.rank)
    is_killed = failure.kind is Kind.KILLED and failure.rank is not None and not failure.lost
    return is_killed and pids.isdisjoint(killed)


def _deaths_of(deaths: Sequence[Death], processes: Sequence[StartedProcess]) -> tuple[Death, ...]:
    """Returns the ends of these processes, with their ranks, in the order in which they were
    seen."""
    ranks = {("", each.pid): each.rank for each in processes}
    ranks |= {each.identity: each.rank for each in processes}
    named = (((death.hostname, death.pid), death) for death in deaths)
    return tuple(replace(death, rank=ranks[name]) for name, death in named if name in ranks)


def _records_of(
    records: RunRecords,
    processes: tuple[RankRecords, ...],
    pids: frozenset[int],
    deaths: tuple[Death, ...],
    until_unix_s: float,
) -> RunRecords:
    """Returns the part of a run's records that an attempt is judged by."""
    seen = records.seen
    return replace(
        records,
        ranks=processes,
        processes=(),
        starts=(),
        samples=tuple(each for each in records.samples if each.unix_s <= until_unix_s),
        reports=tuple(each for each in records.reports if each.pid in pids),
        seen=AgentSaw(
            deaths,
            tuple(each for each in seen.stalls if {s.pid for s in each.ranks} & pids),
            seen.scripts,
        ),
        ending=Ending(until_unix_s),
    )


def _resumed_step(processes: Sequence[RankRecords]) -> int | None:
    """Returns the number of steps that an attempt went on from; the lowest where ranks differ."""
    said = [each.resumption for each in processes if each.resumption is not None]
    if not said or len(said) < len(processes):
        return None
    known = [each.step for each in said if each.step is not None]
    if known:
        return min(known)
    return None if any(each.has_loaded for each in said) else 0


def _with_restarts(attempts: Sequence[Attempt]) -> list[Attempt]:
    found = list(attempts[:1])
    for before, after in pairwise(attempts):
        has_failed = before.failure is not None or before.first_to_leave is not None
        was_counted = (after.restart or 0) > (before.restart or 0)
        is_restart = has_failed or was_counted
        if is_restart:
            found[-1] = replace(
                found[-1],
                next_world_size=after.world_size,
                is_regrouped=_is_regrouped(before, after) and not was_counted,
            )
        found.append(replace(after, is_restart=is_restart))
    return found


def _is_regrouped(before: Attempt, after: Attempt) -> bool:
    """Returns whether nothing but the launcher's SIGTERM ended an attempt, and the next one has
    another number of ranks."""
    failure = before.failure
    was_told_to_end = failure is not None and failure.signal == signal.SIGTERM
    return was_told_to_end and before.world_size != after.world_size


def _with_redone(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Returns the attempts with the number of their steps that later ones did again.

    An attempt that goes on from step R undoes every step after R of the attempts before it. Only
    restarts undo anything: a further script does not go on where the one before it ended.
    """
    redone: dict[int, int | None] = {}
    trained = [each for each in attempts if each.processes]
    lowest: int | None = None
    is_known = True
    for before, after in reversed([*pairwise(trained)]):
        if not _is_continued(attempts, before, after):
            lowest, is_known = None, True
            continue
        base = before.resumed_step or 0
        reached = base + before.steps
        resumed = after.resumed_step
        if resumed is None or resumed > reached:
            is_known = False
        else:
            lowest = resumed if lowest is None else min(lowest, resumed)
        is_known = is_known and not (before.number > 1 and before.resumed_step is None)
        redone[before.number] = (
            min(max(reached - max(lowest, base), 0), before.steps)
            if is_known and lowest is not None
            else None
        )
    return [replace(each, redone_steps=redone.get(each.number, 0)) for each in attempts]


def _is_continued(attempts: Sequence[Attempt], before: Attempt, after: Attempt) -> bool:
    """Returns whether everything between two attempts with steps was a restart."""
    return all(each.is_restart for each in attempts[before.number : after.number])


def restart_count(attempts: Sequence[Attempt]) -> int:
    """Returns how often the ranks were started again after a failure."""
    return sum(each.is_restart for each in attempts)


def redone_count(attempts: Sequence[Attempt]) -> int | None:
    """Returns how many steps had to be done again; `None` where that is not known of every
    attempt."""
    counts = [each.redone_steps for each in attempts]
    known = [each for each in counts if each is not None]
    return sum(known) if len(known) == len(counts) else None


def lost_s_by_attempt(attempts: Sequence[Attempt]) -> Mapping[int, float]:
    """Returns, by the number of each attempt that a restart followed, the time from its last
    complete step to the first step of the next attempt.

    An attempt without steps lost all of its time; that of its neighbours is not counted twice.
    """
    found: dict[int, float] = {}
    for attempt, after in pairwise(attempts):
        if after.is_restart:
            since_s = last_step_unix_s(attempt) or attempt.began_unix_s
            until_s = first_step_unix_s(after) or after.began_unix_s
            found[attempt.number] = max(0.0, until_s - since_s)
    return found


def first_step_unix_s(attempt: Attempt) -> float | None:
    """Returns when the first step of an attempt began; `None` where it took none."""
    return min((span_unix_s(each)[0] for each in attempt.processes), default=None)


def last_step_unix_s(attempt: Attempt) -> float | None:
    """Returns when the last complete step of an attempt ended; `None` where it completed none."""
    return max(map(last_complete_unix_s, attempt.processes), default=0.0) or None
