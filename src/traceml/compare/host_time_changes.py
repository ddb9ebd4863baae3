"""Which of the user's functions take a larger or smaller share of a phase from A to B.

Shares are of stack samples, so that chance moves them: of one run per side a change counts where
the difference of two shares is beyond what the numbers of samples explain; of several, the run is
the unit. All functions of all phases are corrected for together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from traceml.compare.measured import delta_of
from traceml.compare.record import Delta, HostTimeChange, HostTimeComparison
from traceml.compare.sides import Sides
from traceml.compare.statistics import holm
from traceml.summaries.host_time_record import HostPhaseSummary, HostTimeSummary

MIN_LOOKS = 30
"""Samples of a phase in every run: with fewer, nothing is said of its functions."""
MIN_CHANGE = 0.05
"""Of the phase: equal runs on a busy machine differ by less than this, but not by much less."""
SIGNIFICANT_P = 0.05
MAX_LISTED = 50

_Function = tuple[str, str]
_Runs = Sequence["HostTimeSummary | None"]


def host_time_changes(sides: Sides) -> HostTimeComparison | None:
    """Returns which functions moved; `None` where a side has no run with sampled stacks."""
    a, b = ([run.host_time for run in side] for side in (sides.a, sides.b))
    sampled = [[run for run in side if run is not None and run.phases] for side in (a, b)]
    if not all(sampled):
        return None
    in_both = [
        phase
        for phase in sampled[1][-1].phases
        if all(_is_enough(run, phase) for side in sampled for run in side)
    ]
    compared: dict[tuple[str, _Function], Delta] = {}
    for phase in in_both:
        for function in _functions_of((*sampled[0], *sampled[1]), phase):
            compared[phase, function] = _change(a, b, phase, function, sides)
    corrected = holm({key: each.p for key, each in compared.items() if each.p is not None})
    moved = [
        HostTimeChange(
            phase=phase,
            function=function,
            file=file,
            change=structs.replace(each, p=corrected[phase, (function, file)], significant=True),
        )
        for (phase, (function, file)), each in compared.items()
        if abs(each.delta or 0.0) >= MIN_CHANGE
        and corrected.get((phase, (function, file)), 1.0) < SIGNIFICANT_P
    ]
    moved.sort(key=lambda each: (-abs(each.change.delta or 0.0), each.phase, each.function))
    return HostTimeComparison(
        phases=tuple(in_both),
        compared=len(compared),
        moved=tuple(moved[:MAX_LISTED]),
        moved_in_all=len(moved),
    )


def _is_enough(run: HostTimeSummary, phase: str) -> bool:
    return phase in run.phases and run.phases[phase].looks >= MIN_LOOKS


def _functions_of(runs: Sequence[HostTimeSummary], phase: str) -> list[_Function]:
    """Returns the functions that make up enough of a phase in one of the runs to have moved."""
    found: dict[_Function, None] = {}
    for run in runs:
        looks = user_looks(run.phases[phase])
        found |= dict.fromkeys(
            name for name, seen in looks.items() if seen >= MIN_CHANGE * run.phases[phase].looks
        )
    return list(found)


def user_looks(phase: HostPhaseSummary) -> Counter[_Function]:
    """Returns the samples of each of the user's functions, with what it called in packages.

    A sample counts for the innermost function of the user's alone.
    """
    looks: Counter[_Function] = Counter()
    owners: list[_Function | None] = []
    for call in phase.calls:
        above = owners[call.parent] if 0 <= call.parent < len(owners) else None
        owner = (call.function, call.file) if call.is_users else above
        owners.append(owner)
        if owner is not None:
            looks[owner] += max(0, call.own_looks)
    return looks


def _change(a: _Runs, b: _Runs, phase: str, function: _Function, sides: Sides) -> Delta:
    """Returns the change of a function's share of a phase, 0–1."""
    counted = [[_counts(run, phase, function) for run in side] for side in (a, b)]
    shares = [[None if each is None else each[0] / each[1] for each in side] for side in counted]
    if sides.several:
        return delta_of(shares[0], shares[1], sides)
    lhs, rhs = counted[0][0], counted[1][0]
    if lhs is None or rhs is None:
        return Delta()
    return two_shares(lhs, rhs)


def _counts(
    run: HostTimeSummary | None, phase: str, function: _Function
) -> tuple[float, float] | None:
    """Returns how many samples of a phase are of a function, and of how many: as many as they are
    worth, since successive ones are not independent."""
    if run is None or phase not in run.phases:
        return None
    found = run.phases[phase]
    worth = found.independent_looks or found.looks
    return min(user_looks(found)[function] / found.looks, 1.0) * worth, worth


def two_shares(lhs: tuple[float, float], rhs: tuple[float, float]) -> Delta:
    """Returns the change between two shares, each given as a number and of how many.

    The interval is Newcombe's, made of Wilson's of both; the p-value that of the pooled test of two
    proportions.
    """
    plain = Delta.between(lhs[0] / lhs[1], rhs[0] / rhs[1])
    from traceml.facts.user_time import share_interval  # it needs numpy, which two files do not

    left, right = share_interval(*lhs), share_interval(*rhs)
    before, after = plain.lhs or 0.0, plain.rhs or 0.0
    low = math.hypot(after - right[0], left[1] - before)
    high = math.hypot(right[1] - after, before - left[0])
    pooled = (lhs[0] + rhs[0]) / (lhs[1] + rhs[1])
    error = math.sqrt(pooled * (1 - pooled) * (1 / lhs[1] + 1 / rhs[1]))
    change = after - before
    p = math.erfc(abs(change) / error / math.sqrt(2)) if error else 1.0
    return structs.replace(plain, interval=(change - low, change + high), p=p)
