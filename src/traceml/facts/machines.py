"""What the samples say about the machines and the ranks' processes while steps were taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import attrgetter

from traceml.facts.nodes import thinned
from traceml.facts.sensors import (
    HostFacts,
    ProcessFacts,
    during,
    host_facts,
    oom_kills,
    process_facts,
    with_gpu_use,
)
from traceml.facts.step_stretches import (
    NO_STEPS,
    StepStretches,
    Stretches,
    step_stretches,
    together,
)
from traceml.facts.step_table import RankSteps, StepTable
from traceml.model.sample import Sample
from traceml.store.records import RankRecords, RunRecords

MAX_RANKS_KEPT = 64
"""For how many ranks the times of their steps are kept: at least as many as one machine has."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What the samples say."""

    samples: Sequence[Sample]
    """Those of all machines, while steps were taken; all of them where none was taken then."""
    host: HostFacts
    """The machine of the run's own folder."""
    hosts: Mapping[str, HostFacts]
    """Each machine of several, by its name."""
    processes: tuple[ProcessFacts, ...]
    """The ranks' processes, by rank."""


def machine_facts(
    records: RunRecords, steps: Mapping[int, RankSteps], table: StepTable | None, wall_s: float
) -> MachineFacts:
    """Returns what the samples of a run say; `steps` are by rank, `wall_s` is the mean step."""
    span = _training_time(records.ranks)
    stretches_of = _stretches_of_rank(records.ranks, steps, table)
    ran_on = _steps_on_gpu(_on_sampled_gpus(records), stretches_of)
    hosts, processes = _each_machine(records, span, stretches_of, wall_s)
    return MachineFacts(
        samples=during(records.samples_of_all_nodes, *span) or records.samples_of_all_nodes,
        host=_host_of(records.samples, records.samples, span, ran_on, wall_s),
        hosts=hosts,
        processes=processes,
    )


def _each_machine(
    records: RunRecords,
    span: tuple[float, float],
    stretches_of: Callable[[int], StepStretches],
    wall_s: float,
) -> tuple[dict[str, HostFacts], tuple[ProcessFacts, ...]]:
    """Returns the host facts of each machine by its name, and the facts of the ranks' processes in
    the order of ranks; `wall_s` is the mean step.

    Both need the times of steps, which are too many to keep for all ranks at once: so this goes
    machine by machine.
    """

    def processes_in(samples: Sequence[Sample]) -> tuple[ProcessFacts, ...]:
        during_span = during(samples, *span) or samples
        return process_facts(during_span, stretches_of)

    if not records.nodes:
        return {}, processes_in(records.samples)
    ranks = {rank.rank.rank: rank for rank in records.ranks}
    hosts: dict[str, HostFacts] = {}
    processes: list[ProcessFacts] = []
    for node in records.nodes:
        on_gpus = [ranks[rank] for rank in node.ranks if ranks[rank].rank.is_on_gpu]
        ran_on = _steps_on_gpu(on_gpus, stretches_of)
        some = thinned(node.samples, len(records.nodes))
        hosts[node.state.name] = _host_of(some, node.samples, span, ran_on, wall_s)
        processes += processes_in(node.samples)
    return hosts, tuple(sorted(processes, key=attrgetter("rank")))


def _host_of(
    samples: Sequence[Sample],
    all_samples: Sequence[Sample],
    span: tuple[float, float],
    ran_on: Callable[[str], Stretches],
    wall_s: float,
) -> HostFacts:
    """Returns the facts of one machine by a part of its samples; the kills for want of memory are
    counted in all of them. `ran_on` maps a GPU's UUID to when steps ran on it."""
    host = host_facts(samples, during(samples, *span))
    # A kill for want of memory comes after the last step.
    return replace(with_gpu_use(host, samples, ran_on, wall_s), oom_kills=oom_kills(all_samples))


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
            return NO_STEPS
        return step_stretches(rank.rank, complete[number], rank.blocks, first)

    return stretches_of


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
