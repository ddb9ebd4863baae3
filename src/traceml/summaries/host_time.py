"""Summarises where the host's time goes."""

from __future__ import annotations

from collections.abc import Callable

from traceml.diagnose.user_code import host_s
from traceml.facts.facts import Facts
from traceml.facts.host_time import HostCall, HostPhase, HostPlace, HostTime, host_time
from traceml.model.phase import BETWEEN, Phase
from traceml.model.sample import LOADER_WORKERS, OTHER_THREADS
from traceml.store.records import RunRecords
from traceml.summaries.host_time_record import (
    HostCallSummary,
    HostPhaseSummary,
    HostPlaceSummary,
    HostTimeSummary,
)

_IN_STEPS = frozenset((BETWEEN, *(phase.value for phase in Phase)))


def host_time_summary(records: RunRecords, facts: Facts) -> HostTimeSummary | None:
    """Returns what the sampled stacks of a run say; `None` where none was kept."""
    with_steps = {rank.rank.pid for rank in facts.ranks if rank.steps_taken}
    ranks = [rank for rank in records.ranks if rank.rank.pid in with_steps]
    found = host_time(records.stack_bursts, ranks, facts.window.warmup_steps)
    if not found.phases:
        return None
    return _summary(found, lambda phase: host_s(facts, phase))


def _summary(found: HostTime, mean_s: Callable[[str], float | None]) -> HostTimeSummary:
    return HostTimeSummary(
        looks=found.looks,
        outside=found.outside,
        torn=found.torn,
        by=found.way,
        rate_hz=None if found.rate_hz is None else round(found.rate_hz, 3),
        core_share=None if found.core_share is None else round(found.core_share, 6),
        phases={
            name: _phase(
                phase,
                None if name in (LOADER_WORKERS, OTHER_THREADS) else found.looks,
                mean_s(name) if name in _IN_STEPS else None,
            )
            for name, phase in found.phases.items()
        },
    )


def _phase(found: HostPhase, of: int | None, mean_s: float | None) -> HostPhaseSummary:
    return HostPhaseSummary(
        looks=found.looks,
        independent_looks=round(found.independent_looks, 3),
        share=round(found.looks / of, 6) if of else None,
        per_step_ms=None if mean_s is None else round(mean_s * 1e3, 6),
        places=tuple(map(_place, found.places)),
        calls=tuple(map(_call, found.calls)),
    )


def _place(place: HostPlace) -> HostPlaceSummary:
    return HostPlaceSummary(
        function=place.function,
        file=place.file,
        line=place.line,
        looks=place.looks,
        share=round(place.share, 6),
        share_low=round(place.low, 6),
        share_high=round(place.high, 6),
        inside=place.inside,
        called_by=place.called_by,
    )


def _call(call: HostCall) -> HostCallSummary:
    return HostCallSummary(
        function=call.function,
        file=call.file,
        line=call.line,
        is_users=call.is_users,
        parent=call.parent,
        looks=call.looks,
        own_looks=call.own,
    )
