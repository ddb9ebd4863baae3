"""High pressure: memory is nearly full, on a rank's GPU or on the host that the ranks fill.

*Meaning.* Memory is nearly full: a rank's GPU, or the host that the ranks themselves fill. The
next longer batch, evaluation or checkpoint may run out of it.

*Evidence.* `place` (`gpu`, `host`), `pressure`, `median_pressure`, `used_bytes`,
`capacity_bytes`. On the GPU the most that the allocator reserved ÷ the device's memory, worst
rank; on the host the highest sample ÷ the memory of the machine or of the job's control group.

*Thresholds.* 92 % warns, 97 % is critical; on a GPU only if tensors themselves occupied 92 %,
since the allocator gives back what it merely keeps. The host counts when the ranks and their
workers hold at least half of what is used there: else see HIGH_RAM.

*What to do.* GPU: a smaller batch with gradient accumulation, activation checkpointing, bfloat16,
sharded optimizer state. Host: fewer workers, a smaller `prefetch_factor`, the dataset in arrays
or mapped files.

*Silent* where no capacity is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceml.diagnose import settings_advice
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts, RankFacts, share, spread_over_ranks
from traceml.model.evidence import Evidence, as_share, as_words, in_bytes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory, percent
from traceml.model.settings import Settings

KIND = Kind.HIGH_PRESSURE

WARN_SHARE = 0.92  # a longer sequence or an evaluation takes the rest
CRITICAL_SHARE = 0.97  # the next allocation may end the run
OURS_SHARE = 0.5  # of what is used on the host: below that, somebody else fills it


@dataclass(frozen=True, slots=True)
class _Pressure:
    """One memory that is nearly full."""

    place: str
    full_share: float
    severity: Severity
    claim: str
    action: str
    ranks: tuple[int, ...]
    used_bytes: float
    capacity_bytes: float
    median_share: float | None


def check(facts: Facts) -> Finding | None:
    """Fires when the worst rank's GPU, or the host, has next to nothing left."""
    found = [pressure for pressure in (_gpu(facts), _host(facts)) if pressure is not None]
    if not found:
        return None
    worst = max(found, key=lambda one: (one.severity.weight, one.full_share))
    return Finding(
        kind=KIND,
        section=Section.STEP_MEMORY,
        severity=worst.severity,
        claim=worst.claim,
        action=worst.action,
        share=worst.full_share,
        ranks=worst.ranks,
        evidence=Evidence(
            as_words("place", worst.place),
            as_share("pressure", worst.full_share),
            as_share("median_pressure", worst.median_share),
            in_bytes("used_bytes", worst.used_bytes),
            in_bytes("capacity_bytes", worst.capacity_bytes),
        ),
    )


def _gpu(facts: Facts) -> _Pressure | None:
    spread = spread_over_ranks(facts, _reserved_share)
    if spread is None or spread.worst < WARN_SHARE:
        return None
    worst = next(rank for rank in facts.ranks if rank.rank.rank == spread.worst_rank)
    reserved, allocated = worst.memory.peak_reserved_bytes, worst.memory.peak_allocated_bytes
    capacity = worst.rank.device_total_bytes or 0
    # What is reserved and not allocated the allocator gives back before it fails.
    in_use = share(allocated, capacity)
    critical = spread.worst >= CRITICAL_SHARE and (in_use is None or in_use >= WARN_SHARE)
    return _Pressure(
        place="gpu",
        full_share=spread.worst,
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        claim=(
            f"Rank {spread.worst_rank} reserved {percent(spread.worst)} of its GPU's memory "
            f"({memory(reserved)} of {memory(capacity)}, {memory(allocated)} of it in tensors)."
        ),
        action=(f"Take {_smaller(facts.settings)} before a longer batch runs out of memory."),
        ranks=tuple(
            rank.rank.rank for rank in facts.ranks if (_reserved_share(rank) or 0.0) >= WARN_SHARE
        ),
        used_bytes=reserved or 0,
        capacity_bytes=capacity,
        median_share=spread.median,
    )


def _smaller(settings: Settings) -> str:
    """Recommends what needs less memory and is not on already."""
    options = (
        "" if settings.batch_size == 1 else "a smaller batch with gradient accumulation",
        settings_advice.recomputing(settings),
        settings_advice.lower_precision(settings, tf32=False),
        "" if settings_advice.is_sharded(settings) else "sharded optimizer state",
    )
    return settings_advice.listed(options, "or") or "shorter sequences or a smaller model"


def _reserved_share(rank: RankFacts) -> float | None:
    return share(rank.memory.peak_reserved_bytes, rank.rank.device_total_bytes)


def _less_held(facts: Facts) -> str:
    options = settings_advice.listed(
        (settings_advice.fewer_workers(facts), settings_advice.less_prefetching(facts)), "or"
    )
    return f"Take {options}, keep" if options else "Keep"


def _host(facts: Facts) -> _Pressure | None:
    full, used = facts.host.ram_share.peak, facts.host.ram_bytes.peak
    held = {
        process.rank: (process.rss_bytes.peak or 0.0) + (process.workers_rss_bytes.peak or 0.0)
        for process in facts.processes
    }
    if full is None or not used or full < WARN_SHARE or sum(held.values()) < OURS_SHARE * used:
        return None
    largest = max(held, key=lambda rank: (held[rank], -rank))
    return _Pressure(
        place="host",
        full_share=full,
        severity=Severity.CRITICAL if full >= CRITICAL_SHARE else Severity.WARNING,
        claim=(
            f"The host's memory is {percent(full)} full ({memory(used)} of "
            f"{memory(facts.host.ram_total_bytes)}); rank {largest} and its workers hold "
            f"{memory(held[largest])}."
        ),
        action=(
            f"{_less_held(facts)} the dataset in arrays or mapped files, or ask for more memory: "
            "beyond the limit the kernel kills a process."
        ),
        ranks=tuple(sorted(held)),
        used_bytes=used,
        capacity_bytes=facts.host.ram_total_bytes or 0,
        median_share=None,
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_MEMORY,
    check=check,
    doc=Doc("warn, crit", "memory is nearly full", __doc__, symptoms=(Symptom.MEMORY,)),
)
