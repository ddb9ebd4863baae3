"""Computes the facts of a run from its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from statistics import fmean

import numpy as np

from traceml.facts.attempts import find_attempts
from traceml.facts.facts import Facts, RankFacts, StepWindow
from traceml.facts.goodput import goodput_of
from traceml.facts.job import Job, ddp_facts, job_of
from traceml.facts.layers import (
    NORMS_OF_PARTS,
    LayerProfile,
    layer_profile,
    sharding_of,
    why_no_layers,
)
from traceml.facts.loader import (
    flags_of_complete,
    loader_facts,
    queue_dry_share,
    syncs_per_step,
)
from traceml.facts.memory import RankMemory, processes_by_rank, rank_memory
from traceml.facts.nodes import node_facts, thinned
from traceml.facts.pipeline import pipeline_of
from traceml.facts.sensors import (
    HostFacts,
    ProcessFacts,
    during,
    host_facts,
    oom_kills,
    process_facts,
    with_gpu_use,
)
from traceml.facts.series import Slowdown, StepTimeSeries, describe_series, find_slowdown
from traceml.facts.settings import settings_of, uneven_settings
from traceml.facts.stability import stability
from traceml.facts.step_stretches import (
    NO_STRETCHES,
    StepStretches,
    Stretches,
    step_stretches,
    together,
)
from traceml.facts.step_table import (
    RankSteps,
    StepTable,
    complete_steps,
    mean_over_ranks,
    step_table,
)
from traceml.facts.step_traces import recorded_steps, step_trace_facts, without_recorded
from traceml.facts.stragglers import find_stragglers
from traceml.facts.sums import add_up
from traceml.facts.thread_time import thread_times
from traceml.facts.times import NO_TIMES, StepTimes, mean_times, parts_by_block, times_by_rank
from traceml.facts.uneven_work import UnevenWork, uneven_work
from traceml.facts.user_time import user_time
from traceml.model import record_layout
from traceml.model.environment import DEEP
from traceml.model.parallel_place import ParallelPlace
from traceml.model.phase import Phase
from traceml.model.rank import Region
from traceml.model.sample import Sample
from traceml.model.settings import Settings
from traceml.store.records import NodeRecords, RankRecords, RunRecords

MAX_RANKS_KEPT = 64
"""Ranks of which it is kept when they took steps: those of one machine, and more."""


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
    every = complete
    if records.step_traces:
        complete = without_recorded(complete, records)
    used = [rank for rank in records.ranks if taken[rank.rank.rank]]
    table = step_table(used, [complete[rank.rank.rank] for rank in used], max_warmup)
    places = [rank.place for rank in used]
    steps = _measure_steps(table, max(taken.values(), default=0), places)
    times = steps.times or {}
    mean = mean_times(tuple(times.values()))
    span = _training_time(records.ranks)
    training = during(records.samples, *span)
    samples = during(records.samples_of_all_nodes, *span) or records.samples_of_all_nodes
    stretches_of = _stretches_of_rank(records.ranks, complete, table)
    host = with_gpu_use(
        host_facts(records.samples, training),
        records.samples,
        _steps_on_gpu(_on_sampled_gpus(records), stretches_of),
        mean.wall_s or 0.0,
    )
    hosts, processes = _machines(records, span, stretches_of, mean.wall_s or 0.0)
    threads = thread_times(samples, {rank: each.wall_s for rank, each in times.items()})
    flags = flags_of_complete(records.ranks)
    ended = stability(records)
    attempts = find_attempts(records, ended)
    memory = _memory(records, samples, complete)
    settings = settings_of(records.ranks)
    return Facts(
        ranks=tuple(
            _rank_facts(rank, every[rank.rank.rank], times, memory) for rank in records.ranks
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
        slowdown=_with_core_wait(steps.slowdown, table, used, samples),
        regions=_sum_regions(records.ranks),
        loader=loader_facts(records.ranks, mean, table, flags),
        ddp=ddp_facts(records.ranks),
        queue_dry_share=queue_dry_share(flags),
        syncs_per_step=syncs_per_step(records.ranks),
        # A kill for want of memory comes after the last step.
        host=replace(host, oom_kills=oom_kills(records.samples)),
        processes=processes,
        user_time=user_time(records.stack_bursts, used, steps.window.warmup_steps),
        reason_without_steps=_reason_without_steps(records, taken),
        stability=ended,
        attempts=attempts,
        goodput=goodput_of(records, attempts),
        settings=settings,
        uneven_settings=uneven_settings(records.ranks),
        layers=_layers(records, used, settings, mean, steps.window.steps_taken),
        step_traces=step_trace_facts(records.step_traces, table),
        nodes=node_facts(
            records.nodes,
            {rank.rank.rank: rank.rank for rank in records.ranks},
            times,
            table,
            hosts,
            is_over=records.ending is not None,
        ),
    )


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


def _layers(
    records: RunRecords,
    used: Sequence[RankRecords],
    settings: Settings,
    mean: StepTimes,
    steps_taken: int,
) -> LayerProfile:
    """Returns the layers of the run; a deep profile without any says why, and one of parameters
    that are spread over ranks what its gradient norms are of."""
    found = layer_profile(
        records.layers,
        {rank.rank.pid: rank.rank.rank for rank in records.ranks},
        next((rank.rank.device_name for rank in used), None),
        settings,
    )
    is_sliced = any(rank.place.tensor_slice for rank in used)
    spread_by = sharding_of(settings) or ("tensor parallelism" if is_sliced else "")
    if spread_by and len(used) > 1 and found.gradients.steps:
        found = replace(found, notes=(*found.notes, NORMS_OF_PARTS.format(how=spread_by)))
    if records.manifest.profile != DEEP or found.layers or found.notes or not steps_taken:
        return found
    return replace(found, notes=(why_no_layers(mean.phase(Phase.FORWARD), steps_taken),))


def _memory(
    records: RunRecords, samples: Sequence[Sample], complete: Mapping[int, RankSteps]
) -> dict[int, RankMemory]:
    """Returns the memory of each rank, without what our own recordings took."""
    sampled, recorded = processes_by_rank(samples), recorded_steps(records)
    return {
        number: rank_memory(rank, sampled.get(number, ()), steps, recorded.get(number, ()))
        for rank in records.ranks
        for number, steps in [(rank.rank.rank, complete[rank.rank.rank])]
    }


def _machines(
    records: RunRecords,
    span: tuple[float, float],
    stretches_of: Callable[[int], StepStretches],
    wall_s: float,
) -> tuple[dict[str, HostFacts], tuple[ProcessFacts, ...]]:
    """Returns what the samples of each machine of several say about it, by its name, and about the
    ranks' processes, by rank; `wall_s` is the mean step.

    Machine by machine: when ranks took steps is needed for both, and is not kept of all ranks.
    """

    def processes_in(samples: Sequence[Sample]) -> tuple[ProcessFacts, ...]:
        during_span = during(samples, *span) or samples
        return process_facts(during_span, lambda rank: stretches_of(rank).every)

    if not records.nodes:
        return {}, processes_in(records.samples)
    ranks = {rank.rank.rank: rank for rank in records.ranks}
    hosts: dict[str, HostFacts] = {}
    processes: list[ProcessFacts] = []
    for node in records.nodes:
        on_gpus = [ranks[rank] for rank in node.ranks if ranks[rank].rank.is_on_gpu]
        ran_on = _steps_on_gpu(on_gpus, stretches_of)
        hosts[node.state.name] = _host_of(node, len(records.nodes), span, ran_on, wall_s)
        processes += processes_in(node.samples)
    return hosts, tuple(sorted(processes, key=attrgetter("rank")))


def _host_of(
    node: NodeRecords,
    nodes: int,
    span: tuple[float, float],
    ran_on: Callable[[str], Stretches],
    wall_s: float,
) -> HostFacts:
    """Returns one of so many machines; `ran_on` maps a GPU's UUID to when steps ran on it."""
    samples = thinned(node.samples, nodes)
    host = host_facts(samples, during(samples, *span))
    # A kill for want of memory comes after the last step.
    return replace(with_gpu_use(host, samples, ran_on, wall_s), oom_kills=oom_kills(node.samples))


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
    ranks: Sequence[RankRecords], stretches_of: Callable[[int], StepStretches]
) -> Callable[[str], Stretches]:
    """Returns a function from a GPU's UUID to the time in which analyzed steps ran on it.

    A rank that does not report its GPU counts for every GPU.
    """

    @cache
    def any_ran(numbers: tuple[int, ...]) -> Stretches:
        return together([stretches_of(number).analyzed for number in numbers])

    def ran_on(uuid: str) -> Stretches:
        known = (each.rank for each in ranks)
        return any_ran(
            tuple(rank.rank for rank in known if not rank.device_uuid or rank.trains_on(uuid))
        )

    return ran_on


def _stretches_of_rank(
    ranks: Sequence[RankRecords], complete: Mapping[int, RankSteps], table: StepTable | None
) -> Callable[[int], StepStretches]:
    """Returns a function from a rank to when it took steps; one without records took none."""
    known = {rank.rank.rank: rank for rank in ranks}
    first = 0 if table is None else int(table.numbers[0]) - 1

    @lru_cache(MAX_RANKS_KEPT)
    def stretches_of(number: int) -> StepStretches:
        rank = known.get(number)
        if rank is None:
            return StepStretches(NO_STRETCHES, NO_STRETCHES)
        return step_stretches(rank.rank, complete[number], rank.blocks, first)

    return stretches_of


def _measure_steps(
    table: StepTable | None, steps_taken: int, places: Sequence[ParallelPlace]
) -> _Steps:
    if table is None:
        return _Steps(StepWindow(steps_taken=steps_taken))
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
        window=_window(table, steps_taken),
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
