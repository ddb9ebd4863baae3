"""Computes the facts of a run from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from statistics import fmean

import numpy as np

from traceml.facts.analysed_attempts import (
    AnalysedAttempts,
    StepsByAttempt,
    analysed_attempts,
)
from traceml.facts.attempts import Attempt, find_attempts
from traceml.facts.facts import Facts, RankFacts, StepWindow
from traceml.facts.goodput import goodput_of
from traceml.facts.job import Job, ddp_facts, job_of
from traceml.facts.layers import layers_of_run
from traceml.facts.loader import (
    flags_of_complete,
    loader_facts,
    queue_dry_share,
    syncs_per_step,
)
from traceml.facts.machines import machine_facts
from traceml.facts.memory import RankMemory, processes_by_rank, rank_memory, sampled_while
from traceml.facts.nodes import node_facts
from traceml.facts.pipeline import pipeline_of
from traceml.facts.series import (
    MIN_SEGMENT_STEPS,
    Slowdown,
    StepTimeSeries,
    describe_series,
    find_slowdown,
)
from traceml.facts.settings import settings_of, uneven_settings
from traceml.facts.stability import stability
from traceml.facts.step_table import (
    RankSteps,
    StepTable,
    complete_steps,
    mean_over_ranks,
    step_table,
)
from traceml.facts.step_traces import step_trace_facts
from traceml.facts.stragglers import find_stragglers
from traceml.facts.sums import add_up
from traceml.facts.thread_time import thread_times
from traceml.facts.times import NO_TIMES, StepTimes, mean_times, parts_by_block, times_by_rank
from traceml.facts.undisturbed_steps import left_out_note, recorded_steps, undisturbed_steps
from traceml.facts.uneven_work import UnevenWork, uneven_work
from traceml.facts.user_time import user_time
from traceml.model import record_layout
from traceml.model.parallel_place import ParallelPlace
from traceml.model.rank import Region
from traceml.model.sample import Sample
from traceml.store.records import RankRecords, RunRecords


@dataclass(frozen=True, slots=True)
class _Steps:
    """What the step table says."""

    window: StepWindow
    times: Mapping[int, StepTimes] | None = None
    """By global rank."""
    job: Job | None = None
    uneven_work: UnevenWork | None = None
    by_rank: tuple[StepTimes, ...] = ()
    """In the job's order of ranks."""
    series: StepTimeSeries | None = None
    slowdown: Slowdown | None = None


def gather(records: RunRecords, max_warmup: int | None = None) -> Facts:
    """Returns the facts of a run, or of the part of a run that these records hold.

    At most `max_warmup` of the first steps of training count as warm-up; by default, a tenth of
    them.
    """
    complete = {rank.rank.rank: complete_steps(rank) for rank in records.ranks}
    taken = {rank.rank.rank: _steps_taken(rank, complete[rank.rank.rank]) for rank in records.ranks}
    measured = undisturbed_steps(complete, records)
    ended = stability(records)
    attempts = find_attempts(records, ended)
    analysed = analysed_attempts(attempts) if records.attempt_firsts else None
    used, used_steps = _used(records, measured, taken, attempts, analysed)
    table = step_table(used, used_steps, max_warmup)
    places = [rank.place for rank in used]
    in_all = sum(each.steps for each in attempts) or max(taken.values(), default=0)
    steps = _measure_steps(table, StepWindow(steps_taken=in_all, attempts=analysed), places)
    times = steps.times or {}
    mean = mean_times(tuple(times.values()))
    machines = machine_facts(records, measured, table, mean.wall_s or 0.0)
    threads = thread_times(machines.samples, {rank: each.wall_s for rank, each in times.items()})
    flags = flags_of_complete(records.ranks)
    memory = _memory(records, machines.samples, measured, attempts)
    settings = settings_of(records.ranks)
    layers = layers_of_run(records, used, settings, mean, steps.window.steps_taken, attempts)
    if layers.steps and (note := left_out_note(complete, measured)):
        layers = replace(layers, notes=(*layers.notes, note))
    return Facts(
        ranks=tuple(
            _rank_facts(rank, complete[rank.rank.rank], times, memory) for rank in records.ranks
        ),
        window=steps.window,
        clock=None if table is None else table.clock,
        mean=mean,
        step_table=table,
        job=steps.job,
        stragglers=() if steps.job is None else find_stragglers(steps.job, steps.by_rank, threads),
        uneven_work=steps.uneven_work,
        pipeline=pipeline_of(steps.job, steps.by_rank, places),
        threads=threads,
        series=steps.series,
        slowdown=_with_core_wait(
            _with_attempt(steps.slowdown, attempts), table, used, machines.samples
        ),
        regions=_sum_regions(records.ranks),
        loader=loader_facts(records.ranks, mean, table, flags),
        ddp=ddp_facts(records.ranks),
        queue_dry_share=queue_dry_share(flags),
        syncs_per_step=syncs_per_step(records.ranks),
        host=machines.host,
        processes=machines.processes,
        user_time=user_time(records.stack_bursts, used, steps.window.warmup_steps),
        reason_without_steps=_reason_without_steps(records, taken),
        stability=ended,
        attempts=attempts,
        goodput=goodput_of(records, attempts),
        settings=settings,
        uneven_settings=uneven_settings(records.ranks),
        layers=layers,
        step_traces=step_trace_facts(records.step_traces, table),
        nodes=node_facts(
            records.nodes,
            {rank.rank.rank: rank.rank for rank in records.ranks},
            times,
            table,
            machines.hosts,
            is_over=records.ending is not None,
        ),
    )


def _used(
    records: RunRecords,
    measured: Mapping[int, RankSteps],
    taken: Mapping[int, int],
    attempts: Sequence[Attempt],
    analysed: AnalysedAttempts | None,
) -> tuple[list[RankRecords], list[RankSteps]]:
    """Returns the ranks that the step table holds, and the steps of each that may be in it."""
    used = [rank for rank in records.ranks if taken[rank.rank.rank]]
    if analysed is None:
        return used, [measured[rank.rank.rank] for rank in used]
    by_attempt = StepsByAttempt(attempts)
    found = [
        by_attempt.select(rank, measured[rank.rank.rank], analysed.numbers)
        for rank in used
        if rank.rank.rank in analysed.ranks
    ]
    return [rank for rank, _ in found], [steps for _, steps in found]


def _rank_facts(
    rank: RankRecords,
    steps: RankSteps,
    times: Mapping[int, StepTimes],
    memory: Mapping[int, RankMemory],
) -> RankFacts:
    """Returns what is known of one rank; `steps` are its complete ones, the others are by rank."""
    number = rank.rank.rank
    return RankFacts(
        rank=rank.rank,
        steps_taken=_steps_taken(rank, steps),
        steps_aborted=_steps_aborted(rank, steps),
        loop_s=_loop_s(rank),
        times=times.get(number, NO_TIMES),
        memory=memory[number],
        place=rank.place,
    )


def _memory(
    records: RunRecords,
    samples: Sequence[Sample],
    complete: Mapping[int, RankSteps],
    attempts: Sequence[Attempt],
) -> dict[int, RankMemory]:
    """Returns the memory of each rank, without what our own recordings took.

    Whether it grows is judged within one attempt: a process that is started again has other
    memory.
    """
    sampled, recorded = processes_by_rank(samples), recorded_steps(records)
    by_attempt, found = StepsByAttempt(attempts), {}
    for rank in records.ranks:
        number = rank.rank.rank
        theirs, steps, ours = sampled.get(number, ()), complete[number], recorded.get(number, ())
        found[number] = rank_memory(rank, theirs, steps, ours)
        if records.attempt_firsts:
            part, steps = by_attempt.select(rank, steps, (by_attempt.longest(number),))
            trends = rank_memory(part, sampled_while(theirs, part, steps), steps, ours).trends
            found[number] = replace(found[number], trends=trends)
    return found


def _measure_steps(
    table: StepTable | None, taken: StepWindow, places: Sequence[ParallelPlace]
) -> _Steps:
    """Returns what the step table says, or only `taken`, the window of the steps that the run took,
    where there is no table."""
    if table is None:
        return _Steps(taken)
    rank_sums, block_sums = add_up(table)
    by_rank = times_by_rank(rank_sums, table)
    over_ranks = table.over_ranks()
    seen = np.isfinite(over_ranks)
    series = None
    if seen.any():
        series = describe_series(over_ranks[seen], parts_by_block(block_sums, table.clock))
    job = job_of(table, by_rank, places)
    uneven = uneven_work(job) if len(by_rank) > 1 else None
    return _Steps(
        window=_window(table, taken),
        times=dict(zip(table.ranks, by_rank, strict=True)),
        job=job if uneven is None else replace(job, extra_work_s=uneven.extra_s),
        uneven_work=uneven,
        by_rank=by_rank,
        series=series,
        slowdown=_slowdown(table),
    )


def _slowdown(table: StepTable) -> Slowdown | None:
    """Returns the onset of a lasting slowdown, on the clock that the means are taken on.

    On the host's clock the first steps on a GPU look short: the host queues them while the GPU is
    still at work on earlier ones, until the queue is full.
    """
    step_s = mean_over_ranks(table.step())
    seen = np.isfinite(step_s)
    return find_slowdown(step_s[seen], table.numbers[seen])


def _with_attempt(slowdown: Slowdown | None, attempts: Sequence[Attempt]) -> Slowdown | None:
    """Returns the slowdown with the attempt that began near its onset, if one did; the onset may be
    a few steps off."""
    if slowdown is None:
        return None
    near = (
        each.number
        for each in attempts[1:]
        if each.steps and abs(each.first_number + 1 - slowdown.onset_step) < MIN_SEGMENT_STEPS
    )
    return replace(slowdown, attempt=next(near, None))


def _with_core_wait(
    slowdown: Slowdown | None,
    table: StepTable | None,
    used: Sequence[RankRecords],
    samples: Sequence[Sample],
) -> Slowdown | None:
    """Adds how long the training threads waited for a core before and after the onset."""
    if slowdown is None or table is None:
        return slowdown
    column = int(np.searchsorted(table.index, slowdown.onset_step - 1))
    onset_ns = int(table.rank_steps[0].columns["start_ns"][column])
    onset_s = used[0].rank.unix_s(onset_ns)
    before = thread_times(
        [sample for sample in samples if sample.unix_s <= onset_s],
        dict.fromkeys(table.ranks, slowdown.before_s),
    )
    after = thread_times(
        [sample for sample in samples if sample.unix_s >= onset_s],
        dict.fromkeys(table.ranks, slowdown.after_s),
    )
    both = sorted(before.keys() & after.keys())
    if not both:
        return slowdown
    waits = tuple(fmean(times[rank].wait_s for rank in both) for times in (before, after))
    return replace(slowdown, core_wait_s=(waits[0], waits[1]))


def _window(table: StepTable, taken: StepWindow) -> StepWindow:
    older = min(
        (
            int(blocks["complete_steps"].sum()) + len(steps.index)
            for blocks, steps in zip(table.blocks, table.older, strict=False)
        ),
        default=0,
    )
    return replace(
        taken,
        steps_analyzed=older + len(table.numbers),
        first_step=1 if older else int(table.numbers[0]),
        last_step=int(table.numbers[-1]),
        warmup_steps=table.warmup,
    )


def _steps_taken(rank: RankRecords, complete: RankSteps) -> int:
    return len(complete.index) + int(rank.blocks["complete_steps"].sum())


def _steps_aborted(rank: RankRecords, complete: RankSteps) -> int:
    folded = int((rank.blocks["steps"] - rank.blocks["complete_steps"]).sum())
    if len(complete.index) == len(rank.steps):  # as nearly always: none is incomplete
        return folded
    return folded + int(np.count_nonzero(rank.steps["flags"] & record_layout.StepFlag.ABORTED))


def _loop_s(rank: RankRecords) -> float:
    folded_ns = rank.blocks["wall_ns_sum"].sum() + rank.blocks["incomplete_wall_ns"].sum()
    return float(np.maximum(rank.steps["wall_ns"], 0).sum() + folded_ns) * 1e-9


def _sum_regions(ranks: Sequence[RankRecords]) -> tuple[Region, ...]:
    by_name = attrgetter("name")
    every = sorted((region for rank in ranks for region in rank.regions), key=by_name)
    summed = [_sum_region(name, list(parts)) for name, parts in groupby(every, by_name)]
    return tuple(sorted(summed, key=lambda region: (-region.host_s, region.name)))


def _sum_region(name: str, parts: Sequence[Region]) -> Region:
    on_gpu = [part.gpu_s for part in parts if part.gpu_s is not None]
    return Region(
        name=name,
        calls=sum(part.calls for part in parts),
        host_s=sum(part.host_s for part in parts),
        longest_s=max(part.longest_s for part in parts),
        gpu_s=sum(on_gpu) if on_gpu else None,
    )


def _reason_without_steps(records: RunRecords, taken: Mapping[int, int]) -> str | None:
    if any(taken.values()):
        return "The ranks have no complete step in common."
    return None if records.ending is None else records.ending.reason_without_steps
