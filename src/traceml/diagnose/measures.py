"""What a rule judges by, measured also where the rule finds nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from traceml.diagnose.account import outside_steps_s, unexplained_s
from traceml.diagnose.explain import STRAGGLERS
from traceml.diagnose.host_time import Part
from traceml.diagnose.rules import comm_bound, gc_pauses, host_sync, logging_heavy, recompiling
from traceml.facts.facts import Facts, share
from traceml.facts.stragglers import excess_share
from traceml.model.finding import Finding, Kind
from traceml.model.phase import Phase

Measure = Callable[[Facts, Finding], "float | None"]


def share_now(finding: Finding, facts: Facts) -> float | None:
    """The finding's `share` in these facts, whether its rule finds it there or not.

    `None` where it cannot be measured, or where the finding is not about a part of the step.
    """
    measure = MEASURES.get(finding.kind)
    return None if measure is None else measure(facts, finding)


def _phase(phase: Phase) -> Measure:
    return lambda facts, _: facts.typical_share(phase)


def _rest(facts: Facts, finding: Finding) -> float | None:
    if finding.is_between_steps:
        return share(outside_steps_s(facts.mean), facts.mean.wall_s)
    return share(unexplained_s(facts.mean), facts.mean.step_s)


def _transfer(facts: Facts, _: Finding) -> float | None:
    return share(comm_bound.exposed_transfer_s(facts), facts.mean.step_s)


def _compute(facts: Facts, _: Finding) -> float | None:
    return share(facts.mean.compute_at_least_s, facts.mean.step_s)


def _host_time(part_of: Callable[[Facts], Part | None]) -> Measure:
    """What the host does besides the model's work; steps without any of it are measured too."""

    def measure(facts: Facts, _: Finding) -> float | None:
        part = part_of(facts)
        return share(0.0 if part is None else part.spent.lost_s, facts.mean.step_s)

    return measure


def _excess(facts: Facts, finding: Finding) -> float | None:
    if facts.job is None:
        return None
    times = {rank.rank.rank: rank.times for rank in facts.ranks}
    by_row = [times[rank] for rank in facts.job.parts.ranks]
    return excess_share(facts.job, by_row, finding.ranks)


MEASURES: Mapping[Kind, Measure] = {
    Kind.INPUT_BOUND: _phase(Phase.INPUT),
    Kind.H2D_BOUND: _phase(Phase.H2D),
    Kind.WAIT_HEAVY: _rest,
    Kind.COMM_BOUND: _transfer,
    Kind.COMPUTE_BOUND: _compute,
    Kind.GC_PAUSES: _host_time(gc_pauses.part),
    Kind.LOGGING_HEAVY: _host_time(logging_heavy.part),
    Kind.RECOMPILING: _host_time(recompiling.part),
    Kind.HOST_SYNC: _host_time(host_sync.part),
    **dict.fromkeys(sorted(STRAGGLERS), _excess),
}
"""By kind; a finding of another kind has no measure that would say how near its line it is."""
