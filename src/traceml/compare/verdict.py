"""The verdict on two runs or groups of runs: step time decides, then peak memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from traceml.compare.allowance import Allowance, allowance_for
from traceml.compare.measured import Observed
from traceml.compare.record import Gate, Status
from traceml.compare.sides import Sides
from traceml.compare.statistics import runs_needed
from traceml.compare.terms import Terms
from traceml.model.finding import Section
from traceml.summaries.record import SectionSummary, Summary

MEMORY_BYTES = 8 * 2**20
"""Peaks move by a few blocks of the caching allocator (2 MiB each) from run to run."""

REGRESSION, INCONCLUSIVE = "regression", "inconclusive"
_FAILS = {
    REGRESSION: (Status.REGRESSION, Status.MIXED),  # mixed: one of the two got worse
    INCONCLUSIVE: (Status.INCONCLUSIVE,),
}
FAIL_ON = tuple(_FAILS)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A status, and everything the sentences about it need."""

    status: Status
    main: Observed
    main_status: Status | None
    """What the endpoint alone says; `None` where a side has none."""
    allowance: Allowance
    memory: Observed | None
    """Peak memory, where it counts and moved."""
    identical: bool
    further_runs: int | None


def judge(main: Observed, memory: Observed | None, sides: Sides, terms: Terms) -> Judgement:
    """The verdict, given how the endpoint moved, and peak memory where that counts too."""
    allowance = allowance_for(main, sides, terms)
    main_status = _status(main, allowance, sides, terms)
    memory_status = Status.NO_CHANGE
    if memory is not None:
        memory_status = _memory_status(memory, allowance_for(memory, sides, terms), sides)
    identical = [_measured(run) for run in sides.a] == [_measured(run) for run in sides.b]
    status = Status.NO_CHANGE if identical else _combine(main_status, memory_status)
    return Judgement(
        status=status,
        main=main,
        main_status=main_status,
        allowance=allowance,
        memory=None if memory_status is Status.NO_CHANGE or identical else memory,
        identical=identical,
        further_runs=_further_runs(main, allowance, sides, terms)
        if status is Status.INCONCLUSIVE
        else None,
    )


def gate(status: Status, terms: Terms) -> Gate | None:
    """Whether the comparison fails, where it was to fail on something."""
    if not terms.fail_on:
        return None
    return Gate(terms.fail_on, any(status in _FAILS[word] for word in terms.fail_on))


def _measured(summary: Summary) -> tuple[SectionSummary | None, ...]:
    return (summary.step_time, summary.step_memory, summary.process, summary.system)


def _status(found: Observed, allowance: Allowance, sides: Sides, terms: Terms) -> Status | None:
    if found.delta.delta is None:
        return None
    change = found.change
    if change is not None and change.lies_between(*_no_change(found, terms)):
        return Status.NO_CHANGE
    if not _is_real(found, allowance, sides):
        return Status.INCONCLUSIVE
    if not found.got_worse:
        return Status.IMPROVEMENT
    allowed_pct = 100 * (terms.max_regression or 0.0)
    worse_by_pct = abs(found.delta.pct_change or 0.0)
    return Status.REGRESSION if worse_by_pct > allowed_pct else Status.INCONCLUSIVE


def _no_change(found: Observed, terms: Terms) -> tuple[float, float]:
    """The ratios that count as none; what is allowed for the worse takes the tolerance's place."""
    better = 1 + terms.tolerance
    worse = better if terms.max_regression is None else 1 + terms.max_regression
    if found.endpoint.more_is_better:
        return 1 / worse, better
    return 1 / better, worse


def _is_real(found: Observed, allowance: Allowance, sides: Sides) -> bool:
    """Beyond what chance does: by the runs, or by the steps and what runs alike may differ."""
    change, pct_change = found.change, found.delta.pct_change
    if pct_change is None or (change is not None and not change.excludes_none):
        return False
    if sides.several:
        return change is not None
    return abs(pct_change) > 100 * allowance.share


def _memory_status(found: Observed, allowance: Allowance, sides: Sides) -> Status:
    moved = found.delta.delta
    large = moved is not None and abs(moved) > MEMORY_BYTES
    pct_change = found.delta.pct_change
    if pct_change is not None and abs(pct_change) <= 100 * allowance.share:
        large = False
    if moved is None or not large:
        return Status.NO_CHANGE
    if sides.several and not _is_shown(found):
        return Status.NO_CHANGE
    return Status.REGRESSION if found.got_worse else Status.IMPROVEMENT


def _is_shown(found: Observed) -> bool:
    """By the runs, all questions asked at once considered where they were."""
    if found.delta.significant is not None:
        return found.delta.significant
    return found.change is not None and found.change.excludes_none


def _combine(main: Status | None, memory: Status) -> Status:
    if main is None:
        return Status.INCONCLUSIVE
    if main in (Status.NO_CHANGE, Status.INCONCLUSIVE):
        return main if memory is Status.NO_CHANGE else memory
    return main if memory in (main, Status.NO_CHANGE) else Status.MIXED


def _further_runs(found: Observed, allowance: Allowance, sides: Sides, terms: Terms) -> int | None:
    """Until the interval shows either a change as large as this one, or that there is none."""
    lhs, rhs = found.delta.lhs, found.delta.rhs
    if not lhs or not rhs or min(lhs, rhs) <= 0 or found.endpoint.section is Section.STEP_MEMORY:
        return None
    seen = abs(math.log(rhs) - math.log(lhs))
    to_show_none = math.log1p(terms.tolerance) - seen
    needed = runs_needed(allowance.log_spread, max(seen, to_show_none))
    if needed is None:
        return None
    return max(1, needed - min(len(sides.a), len(sides.b)))
