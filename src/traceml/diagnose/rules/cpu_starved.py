"""CPU starved: the training process wants to run and gets no core, or waits for swapped memory.

*Meaning.* The training process wants to run and does not get to: a CPU quota stops it, its
training thread waits for a core, or its memory comes back from swap. A rank that is late only
because it waits longer for a core than the others is named here, and is no straggler.

*Evidence.* `cpu_throttled_share`, `runqueue_share` (of the worst rank), `swap_bytes_per_s`,
`cores_used` (what ranks and workers kept busy), `cores` (what the job may use).

*Thresholds.* Stopped by the quota 10 % of the time, or runnable without a core 20 % of the time,
or 10 MiB swapped per second, or a rank late by as much as makes a [straggler](#straggler) of
which 50 % or more is waiting for a core; in three samples or more. Critical where that was more
than 50 % of the time, on the host's clock: then it stands before what it explains, since every
other number of the step is longer for it. Only a remark where nothing else is wrong with the step
and it waited less than half of the time.

*What to do.* Fewer workers, `OMP_NUM_THREADS` so that ranks × threads fit the cores, more cores,
fewer neighbours; with swap, less memory first.

*Silent* while a busy GPU hides it.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceml.diagnose import settings_advice
from traceml.diagnose.finding_order import STRAGGLERS
from traceml.diagnose.host_time import host_delays_count
from traceml.diagnose.late_ranks import held_up
from traceml.diagnose.rule import (
    GPU_IDLE,
    HOST_DELAYS,
    Doc,
    Remedy,
    Rule,
    RuleRole,
    Symptom,
    Turn,
    Where,
    lost,
)
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share, in_bytes_per_s
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, duration, memory, percent

KIND = Kind.CPU_STARVED

THROTTLED_SHARE = 0.10  # of the time, by the control group's quota: a tenth is felt in every step
RUNQUEUE_SHARE = 0.20  # of the main thread's time; a shared machine makes it wait for less anyway
SWAP_BYTES_PER_S = 10 << 20  # a machine at rest moves pages by the kibibyte
MIN_SAMPLES = 3  # one second's bad luck is none
OUTWEIGHS = 0.5  # of the time: a shared machine takes a share; beyond half, that is the story


@dataclass(frozen=True, slots=True)
class _Shortage:
    """One way in which the CPU was short."""

    claim: str
    share: float | None
    ranks: tuple[int, ...]


def check(facts: Facts) -> Finding | None:
    """Fires when the host could not give the training process what it asked for."""
    if not facts.ranks_used or facts.host.samples < MIN_SAMPLES:
        return None
    if not host_delays_count(facts):
        return None
    shortages = (_quota(facts), _late_rank(facts) or _run_queue(facts), _swap(facts))
    found = [short for short in shortages if short]
    if not found:
        return None
    share = max((short.share for short in found if short.share is not None), default=None)
    lost_s = _lost_s(facts, share)
    is_most = lost_s is not None and share is not None and share > OUTWEIGHS
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.CRITICAL if is_most else Severity.WARNING,
        claim="; ".join(short.claim for short in found) + ".",
        action=_next_step(facts),
        share=share,
        ranks=tuple(sorted({rank for short in found for rank in short.ranks})),
        lost_s_per_step=lost_s,
        evidence=Evidence(
            as_share("cpu_throttled_share", facts.host.cpu_throttled_share.mean),
            as_share("runqueue_share", _worst_runqueue(facts)[0]),
            in_bytes_per_s("swap_bytes_per_s", facts.host.swap_bytes_per_s.mean),
            as_number("cores_used", _cores_used(facts)),
            as_number("cores", facts.host.cores),
        ),
    )


def _lost_s(facts: Facts, share: float | None) -> float | None:
    """Returns the lost time; `None` on the GPU's clock, because the GPU may have been busy
    meanwhile."""
    if share is None or facts.mean.step_s is None or facts.clock != "cpu":
        return None
    return share * facts.mean.step_s


def _quota(facts: Facts) -> _Shortage | None:
    share = facts.host.cpu_throttled_share.mean
    if share is None or share < THROTTLED_SHARE:
        return None
    cores = facts.host.cores
    limit = "" if cores is None else f" of {cores:.3g} cores"
    claim = f"The CPU quota{limit} stopped this job for {percent(share)} of the time"
    return _Shortage(claim, share, ())


def _run_queue(facts: Facts) -> _Shortage | None:
    share, ranks = _worst_runqueue(facts)
    if share is None or share < RUNQUEUE_SHARE:
        return None
    claim = (
        f"The training thread of rank {ranks[0]} was ready to run but waited for a CPU core "
        f"{percent(share)} of the time"
    )
    return _Shortage(claim, share, ranks)


def _late_rank(facts: Facts) -> _Shortage | None:
    """Returns the shortage where one rank waits longer for a core than the others, which then wait
    for it."""
    for late in held_up(facts):
        waited, typical_s = late.core_wait, facts.mean.wall_s
        if waited is None or not typical_s:
            continue
        claim = (
            f"Rank {late.rank} is {duration(late.own.excess_s)} per step later than the others "
            f"because its training thread waits for a CPU core: {duration(waited.rank_s)} per step "
            f"against {duration(waited.others_s)}"
        )
        starved = {late.rank, *_worst_runqueue(facts)[1]}
        return _Shortage(claim, min(1.0, waited.rank_s / typical_s), tuple(sorted(starved)))
    return None


def _swap(facts: Facts) -> _Shortage | None:
    per_s = facts.host.swap_bytes_per_s.mean
    if per_s is None or per_s < SWAP_BYTES_PER_S:
        return None
    return _Shortage(f"The machine swapped {memory(per_s)} per second", None, ())


def _worst_runqueue(facts: Facts) -> tuple[float | None, tuple[int, ...]]:
    """Returns the longest mean wait of any rank, and the ranks that wait too long, the worst
    first."""
    waits = sorted(
        (-process.runqueue_share.mean, process.rank)
        for process in facts.processes
        if process.runqueue_share.mean is not None and process.samples >= MIN_SAMPLES
    )
    if not waits:
        return None, ()
    return -waits[0][0], tuple(rank for wait, rank in waits if -wait >= RUNQUEUE_SHARE)


def _cores_used(facts: Facts) -> float | None:
    """Returns how many cores the ranks and their workers kept busy together."""
    means = [
        level.mean
        for process in facts.processes
        for level in (process.cpu_cores, process.workers_cpu_cores)
        if level.mean is not None
    ]
    return sum(means) if means else None


def _next_step(facts: Facts) -> str:
    """Compares the requested threads and workers with the cores, and recommends how to use
    fewer."""
    workers = facts.loader.workers or 0
    fewer = f"fewer workers than {workers}, " if workers > 1 else ""
    if _swap(facts) is not None:
        ahead = settings_advice.less_prefetching(facts)
        return (
            f"Free memory first: {fewer}{f'{ahead}, ' if ahead else ''}less data held in memory; "
            "then look at the cores."
        )
    ranks = len(facts.processes) or len(facts.ranks_used)
    asked = count(ranks, "rank")
    if workers:
        asked += f" with {count(workers, 'worker')}{' each' if ranks > 1 else ''}"
    there = "" if facts.host.cores is None else f" on {facts.host.cores:.3g} cores"
    used = _cores_used(facts)
    got = "" if used is None else f" got {used:.1f} cores' worth of work done"
    return (
        f"{asked}{there}{got}: try {fewer}{_fewer_threads(facts, ranks)}more cores, or other jobs "
        "kept off them."
    )


def _fewer_threads(facts: Facts, ranks: int) -> str:
    """Recommends fewer threads for torch; empty where all of them fit the cores already."""
    threads, cores = facts.settings.cpu_threads, facts.host.cores
    if threads is None:
        return "OMP_NUM_THREADS so that ranks × threads fit the cores, "
    if threads == 1 or cores is None or ranks * threads <= cores:
        return ""
    fair = max(1, int(cores // ranks))
    return f"OMP_NUM_THREADS={fair} instead of {threads}, "


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    asks_each_node=True,
    role=RuleRole.CAUSE,
    explains=(
        Kind.INPUT_BOUND,
        *HOST_DELAYS,
        *sorted(STRAGGLERS),
        Kind.COMPUTE_BOUND,
        Kind.COMM_BOUND,
        Kind.BALANCED,
        *GPU_IDLE,
    ),
    usual_below=OUTWEIGHS,
    where=Where.ANYWHERE,
    turn=Turn.SHARE_OF_ALL,
    what_if=Remedy("with enough CPU", lost),
    doc=Doc(
        "warn, crit",
        "the training process gets too little CPU",
        __doc__,
        symptoms=(
            Symptom.IDLE_GPU,
            Symptom.SLOW_CPU,
        ),
    ),
)
