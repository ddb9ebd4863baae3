"""Computes the facts of a run from its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import attrgetter
from statistics import fmean

import numpy as np

from traceml.facts.facts import Facts, RankFacts, StepWindow
from traceml.facts.job import Job, ddp_facts, job_of
from traceml.facts.layers import layer_profile
from traceml.facts.loader import (
    flags_of_complete,
    loader_facts,
    queue_dry_share,
    syncs_per_step,
)
from traceml.facts.memory import processes_by_rank, rank_memory
from traceml.facts.sensors import during, host_facts, oom_kills, process_facts, with_gpu_use
from traceml.facts.series import Slowdown, StepTimeSeries, describe_series, find_slowdown
from traceml.facts.settings import settings_of, uneven_settings
from traceml.facts.stability import stability
from traceml.facts.step_stretches import NO_STRETCHES, Stretches, step_stretches, together
from traceml.facts.step_table import (
    RankSteps,
    StepTable,
    complete_steps,
    mean_over_ranks,
    step_table,
)
from traceml.facts.stragglers import find_stragglers
from traceml.facts.sums import add_up
from traceml.facts.thread_time import thread_times
from traceml.facts.times import NO_TIMES, StepTimes, mean_times, parts_by_block, times_by_rank
from traceml.facts.user_time import user_time
from traceml.model import record_layout
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
    used = [rank for rank in records.ranks if taken[rank.rank.rank]]
    table = step_table(used, [complete[rank.rank.rank] for rank in used], max_warmup)
    steps = _measure_steps(table, max(taken.values(), default=0))
    times = steps.times or {}
    mean = mean_times(tuple(times.values()))
    training = during(records.samples, *_training_time(records.ranks))
    samples = training or records.samples
    sampled = processes_by_rank(samples)
    host = with_gpu_use(
        host_facts(records.samples, training),
        records.samples,
        _steps_on_gpu(_on_sampled_gpus(records), complete, table),
        mean.wall_s or 0.0,
    )
    threads = thread_times(samples, {rank: each.wall_s for rank, each in times.items()})
    flags = flags_of_complete(records.ranks)
    return Facts(
        ranks=tuple(
            RankFacts(
                rank=rank.rank,
                steps_taken=taken[rank.rank.rank],
                steps_aborted=_steps_aborted(rank, complete[rank.rank.rank]),
                loop_s=_loop_s(rank),
                times=times.get(rank.rank.rank, NO_TIMES),
                memory=rank_memory(rank, sampled.get(rank.rank.rank, ()), complete[rank.rank.rank]),
            )
            for rank in records.ranks
        ),
        window=steps.window,
        clock=None if table is None else table.clock,
        mean=mean,
        step_table=table,
        job=steps.job,
        stragglers=() if steps.job is None else find_stragglers(steps.job, steps.by_rank, threads),
        threads=threads,
        series=steps.series,
        slowdown=_with_core_wait(steps.slowdown, table, used, samples),
        regions=_sum_regions(records.ranks),
        loader=loader_facts(records.ranks, mean, table, flags),
        ddp=ddp_facts(records.ranks),
        queue_dry_share=queue_dry_share(flags),
        syncs_per_step=syncs_per_step(records.ranks),
        # A kill for want of memory comes after the last step.
        host=replace(host, oom_kills=oom_kills(records.samples)),
        processes=process_facts(samples, _steps_of_rank(records.ranks, complete)),
        user_time=user_time(records.stack_bursts, used, steps.window.warmup_steps),
        reason_without_steps=_reason_without_steps(records, taken),
        stability=stability(records),
        settings=settings_of(records.ranks),
        uneven_settings=uneven_settings(records.ranks),
        layers=layer_profile(
            records.layers,
            {rank.rank.pid: rank.rank.rank for rank in records.ranks},
            next((rank.rank.device_name for rank in used), None),
            settings_of(records.ranks),
        ),
    )


def _on_sampled_gpus(records: RunRecords) -> list[RankRecords]:
    """Returns the ranks that may train on a GPU that was sampled: those of the sampled machine.

    It is the machine of the ranks whose processes were sampled; every rank's where none was.
    """
    sampled = {process.rank for sample in records.samples for process in sample.processes}
    machines = {rank.rank.hostname for rank in records.ranks if rank.rank.rank in sampled}
    return [
        rank
        for rank in records.ranks
        if rank.rank.is_on_gpu and (not machines or rank.rank.hostname in machines)
    ]


def _steps_on_gpu(
    ranks: Sequence[RankRecords], complete: Mapping[int, RankSteps], table: StepTable | None
) -> Callable[[str], Stretches]:
    """Returns a function from a GPU's UUID to the time in which analyzed steps ran on it.

    A rank that does not report its GPU counts for every GPU.
    """
    first = 0 if table is None else int(table.numbers[0]) - 1
    on_gpu = {rank.rank.rank: rank for rank in ranks}

    @cache
    def ran(number: int) -> Stretches:
        each = on_gpu[number]
        return step_stretches(each.rank, complete[number], each.blocks, first)

    @cache
    def any_ran(numbers: tuple[int, ...]) -> Stretches:
        return together([ran(number) for number in numbers])

    def ran_on(uuid: str) -> Stretches:
        known = (each.rank for each in ranks)
        return any_ran(
            tuple(rank.rank for rank in known if not rank.device_uuid or rank.trains_on(uuid))
        )

    return ran_on


def _steps_of_rank(
    ranks: Sequence[RankRecords], complete: Mapping[int, RankSteps]
) -> Callable[[int], Stretches]:
    """When a rank took steps; one without records took none."""
    known = {rank.rank.rank: rank for rank in ranks}

    def steps_of(number: int) -> Stretches:
        rank = known.get(number)
        return (
            NO_STRETCHES
            if rank is None
            else step_stretches(rank.rank, complete[number], rank.blocks)
        )

    return steps_of


def _measure_steps(table: StepTable | None, steps_taken: int) -> _Steps:
    if table is None:
        return _Steps(StepWindow(steps_taken=steps_taken))
    rank_sums, block_sums = add_up(table)
    by_rank = times_by_rank(rank_sums, table)
    over_ranks = table.over_ranks()
    seen = np.isfinite(over_ranks)
    series = None
    if seen.any():
        series = describe_series(over_ranks[seen], parts_by_block(block_sums, table.clock))
    return _Steps(
        window=_window(table, steps_taken),
        times=dict(zip(table.ranks, by_rank, strict=True)),
        job=job_of(table, by_rank),
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


def _window(table: StepTable, steps_taken: int) -> StepWindow:
    older = min(
        (
            int(blocks["complete_steps"].sum()) + len(steps.index)
            for blocks, steps in zip(table.blocks, table.older, strict=False)
        ),
        default=0,
    )
    return StepWindow(
        steps_analyzed=older + len(table.numbers),
        first_step=1 if older else int(table.numbers[0]),
        last_step=int(table.numbers[-1]),
        warmup_steps=table.warmup,
        steps_taken=steps_taken,
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


def _training_time(ranks: Sequence[RankRecords]) -> tuple[float, float]:
    """Returns when the first step began and the last one ended, in wall-clock seconds."""
    first, last = float("inf"), float("-inf")
    for rank in ranks:
        if len(rank.steps):
            starts, wall_ns = rank.steps["start_ns"], rank.steps["wall_ns"][-1]
            start_ns = rank.blocks[0]["start_ns"] if len(rank.blocks) else starts[0]
            first = min(first, rank.rank.unix_s(int(start_ns)))
            last = max(last, rank.rank.unix_s(int(starts[-1] + max(wall_ns, 0))))
    return first, last


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
