"""The verdict on two runs or groups of runs: step time decides, then peak memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from traceml.compare.allowance import MAX_REACH_LOG, Allowance, allowance_for
from traceml.compare.further_runs import FurtherRuns, Seen, further_runs
from traceml.compare.logged_metrics import logged_status, not_finite
from traceml.compare.measured import Observed
from traceml.compare.record import Gate, Status
from traceml.compare.sides import Sides
from traceml.compare.statistics import RatioEstimate
from traceml.compare.terms import Terms
from traceml.summaries.record import Summary

MEMORY_BYTES = 8 * 2**20
"""Peaks vary by a few blocks of the caching allocator (2 MiB each) from run to run."""

REGRESSION, INCONCLUSIVE = "regression", "inconclusive"
_FAILS = {
    REGRESSION: (Status.REGRESSION, Status.MIXED),  # mixed: one of the two got worse
    INCONCLUSIVE: (Status.INCONCLUSIVE,),
}
FAIL_ON = tuple(_FAILS)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A status, and everything that the sentences about it need."""

    status: Status
    main: Observed
    main_status: Status | None
    """The status by the endpoint alone; `None` where a side has no value."""
    allowance: Allowance
    memory: Observed | None
    """Peak memory, where it counts and changed."""
    identical: bool
    further_runs: FurtherRuns | None
    """Runs until the status would change; `None` where unknown, or too many to advise."""
    too_noisy: bool
    """Whether they are too many to advise."""
    unmeasured: tuple[str, ...]
    """The names of the metrics to judge by that are missing on a side."""
    nothing_measured: bool
    """Whether no such metric is there on both sides."""


def judge(main: Observed, memory: Observed | None, sides: Sides, terms: Terms) -> Judgement:
    """Returns the verdict from the change of the endpoint, and of peak memory where that counts
    too."""
    allowance = allowance_for(main, sides, terms)
    if main.endpoint.section is None:
        main_status = logged_status(main, sides, terms)
    else:
        main_status = _status(main, allowance, sides, terms)
    memory_status = Status.NO_CHANGE
    if memory is not None:
        memory_status = _memory_status(memory, allowance_for(memory, sides, terms), sides, terms)
    identical = are_identical(sides)
    status = Status.NO_CHANGE if identical else _combine(main_status, memory_status)
    further, too_noisy = None, False
    if status is Status.INCONCLUSIVE:
        further, too_noisy = _further_runs(main, allowance, sides, terms)
    judged = [main] if memory is None or not _is_anywhere(memory) else [main, memory]
    unmeasured = [found.endpoint.word for found in judged if found.delta.delta is None]
    nothing_measured = len(unmeasured) == len(judged)
    if main.endpoint.section is None and not unmeasured and not_finite(main.metric, sides):
        unmeasured = [main.endpoint.word]  # of a run whose loss became NaN, nothing else is known
    return Judgement(
        status=status,
        main=main,
        main_status=main_status,
        allowance=allowance,
        memory=None if memory_status is Status.NO_CHANGE or identical else memory,
        identical=identical,
        further_runs=further,
        too_noisy=too_noisy,
        unmeasured=tuple(unmeasured),
        nothing_measured=nothing_measured,
    )


def _is_anywhere(found: Observed) -> bool:
    return found.delta.lhs is not None or found.delta.rhs is not None


def gate(found: Judgement, terms: Terms) -> Gate | None:
    """Returns whether the comparison fails its gate; `None` without a gate.

    A metric that is missing on a side fails the gate too, because it could hide a regression.
    """
    if not terms.fail_on:
        return None
    failed = fails_on(found.status, terms)
    return Gate(
        fail_on=terms.fail_on,
        failed=failed or bool(found.unmeasured),
        unmeasured=found.unmeasured,
        nothing_measured=found.nothing_measured,
    )


def fails_on(status: str, terms: Terms) -> bool:
    """Returns whether a verdict is one that the gate fails on."""
    return any(status in _FAILS[word] for word in terms.fail_on)


def are_identical(sides: Sides) -> bool:
    """Returns whether both sides hold the same measurements, as a run and itself do."""
    return [_measured(run) for run in sides.a] == [_measured(run) for run in sides.b]


def _measured(summary: Summary) -> tuple[object, ...]:
    sections = (summary.step_time, summary.step_memory, summary.process, summary.system)
    return (*sections, summary.metrics)


def _status(found: Observed, allowance: Allowance, sides: Sides, terms: Terms) -> Status | None:
    if found.delta.delta is None:
        return None
    change = found.change
    if change is not None and not sides.several:
        # The steps of one run do not show the next run, and noise may hide a change either way.
        change = change.widened(allowance.either_way_share)
    if change is not None and change.lies_between(*_no_change(found, terms)):
        return Status.NO_CHANGE
    if not _is_real(found, allowance, sides):
        return Status.INCONCLUSIVE
    if not found.got_worse:
        return Status.IMPROVEMENT
    more_than_allowed = is_beyond(found, terms.max_regression or 0.0)
    return Status.REGRESSION if more_than_allowed else Status.INCONCLUSIVE


def is_beyond(found: Observed, share: float) -> bool:
    """Returns whether the larger side exceeds the smaller by more than this share."""
    return found.factor is not None and found.factor > 1 + share


def _no_change(found: Observed, terms: Terms) -> tuple[float, float]:
    """Returns the ratios that count as no change; an allowed regression replaces the tolerance."""
    better = 1 + terms.tolerance
    worse = better if terms.max_regression is None else 1 + terms.max_regression
    if found.endpoint.more_is_better:
        return 1 / worse, better
    return 1 / better, worse


def _is_real(found: Observed, allowance: Allowance, sides: Sides) -> bool:
    """Returns whether the change is more than chance: by the runs, or by the steps and the
    allowance.

    With one run per side, the error of the steps and the run-to-run noise are independent and are
    combined.
    """
    change = found.change
    if sides.several:
        return change is not None and change.excludes_none
    if change is None:
        return is_beyond(found, allowance.share)
    return is_beyond(found, noise_with_steps(change, allowance))


def noise_with_steps(change: RatioEstimate, allowance: Allowance) -> float:
    """Returns the error of the steps and the run-to-run noise combined, as a share."""
    noise_log = math.hypot(math.log1p(allowance.share), change.reach_log)
    return math.expm1(min(noise_log, MAX_REACH_LOG))


def _memory_status(found: Observed, allowance: Allowance, sides: Sides, terms: Terms) -> Status:
    moved = found.delta.delta
    if moved is None or abs(moved) <= MEMORY_BYTES:
        return Status.NO_CHANGE
    if found.factor is not None and not is_beyond(found, allowance.share):
        return Status.NO_CHANGE
    if sides.several and not _is_shown(found, terms):
        return Status.NO_CHANGE
    return Status.REGRESSION if found.got_worse else Status.IMPROVEMENT


def _is_shown(found: Observed, terms: Terms) -> bool:
    """Returns whether the runs show the change, corrected for multiple comparisons."""
    if found.delta.p is not None:
        return found.delta.p < terms.significance
    return found.change is not None and found.change.excludes_none


def _combine(main: Status | None, memory: Status) -> Status:
    if main is None:
        return Status.INCONCLUSIVE
    if main is Status.NO_CHANGE:
        return memory
    if main is Status.INCONCLUSIVE:  # less memory is no improvement while steps may be slower
        return Status.REGRESSION if memory is Status.REGRESSION else main
    return main if memory in (main, Status.NO_CHANGE) else Status.MIXED


def _further_runs(
    found: Observed, allowance: Allowance, sides: Sides, terms: Terms
) -> tuple[FurtherRuns | None, bool]:
    """Returns how many more runs a verdict needs, and whether that is too many.

    Nothing is returned where the spread of such runs is only assumed.
    """
    factor = found.factor
    if factor is None or allowance.freedom is None:
        return None, False
    spread, freedom = allowance.log_spread, allowance.freedom
    if not sides.several and found.change is not None:
        spread = math.hypot(spread, found.change.log_spread or 0.0)
    seen = Seen(
        worse_by=math.log(factor) * (1 if found.got_worse else -1),
        spread=spread,
        freedom=freedom,
        runs=(len(sides.a), len(sides.b)),
        paired=sides.paired_by is not None,
    )
    further = further_runs(seen, terms)
    return further, further is None
