"""Arms of live traffic as text: each arm against the first, and what was known day by day."""

from __future__ import annotations

import textwrap

from traceml.compare.live_arms import (
    EMPIRICAL_BERNSTEIN,
    MIN_OUTCOMES,
    ArmDifference,
    ArmsComparison,
)
from traceml.compare.logged_words import number
from traceml.compare.record import Status
from traceml.model.printable import one_line, shorten_middle
from traceml.model.quantities import count

WIDTH = 100
MAX_DAYS = 14
_NAME_WIDTH = 40


def arms_text(found: ArmsComparison) -> str:
    """Returns the whole report, at most `WIDTH` columns wide."""
    outcome = one_line(found.outcome, _NAME_WIDTH)
    first = found.arms[0]
    lines = [f"{outcome} of {count(len(found.arms), 'arm')}, compared with {_name(first.name)}:"]
    for arm in found.arms:
        lines.append(f"  {_name(arm.name)}: {number(arm.mean)} ({count(arm.count, 'outcome')})")
    blocks = [lines]
    for name, difference in found.differences.items():
        blocks.append([*_wrapped(_difference(name, difference, found)), *_days(difference)])
    blocks.append(_wrapped(_method(found)))
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _name(name: str) -> str:
    return shorten_middle(one_line(name), _NAME_WIDTH)


def _difference(name: str, found: ArmDifference, whole: ArmsComparison) -> str:
    if found.delta is None:
        return f"{_name(name)}: no outcomes to compare."
    share = "" if found.pct_change is None else f", {found.pct_change:+,.1f}%"
    said = f"{_name(name)}: {found.delta:+,.3g}{share}"
    if found.interval is None:
        return f"{said}; an interval needs {MIN_OUTCOMES} outcomes of each arm."
    low, high = found.interval
    said += f", between {low:+,.3g} and {high:+,.3g} at any look (95%)"
    if found.status == Status.NO_CHANGE.value:
        return f"{said}: less than what counts as a change. {found.status}."
    if low <= 0 <= high:
        return f"{said}: not decided yet. {found.status}."
    if whole.higher_is_better is None:
        word = "higher" if low > 0 else "lower"
    else:
        word = "better" if (low > 0) is whole.higher_is_better else "worse"
    if word == "worse" and found.status == Status.INCONCLUSIVE.value:
        word = "worse, perhaps by more than is allowed"
    since = f", shown since {found.decided_on}" if found.decided_on else ""
    return f"{said}: it is {word}{since}. {found.status}."


def _days(found: ArmDifference) -> list[str]:
    lines = []
    for look in found.looks[-MAX_DAYS:]:
        interval = "" if look.interval is None else "{:+,.3g} … {:+,.3g}".format(*look.interval)
        delta = "n/a" if look.delta is None else f"{look.delta:+,.3g}"
        counts = " + ".join(f"{each:,}" for each in look.counts)
        lines.append(f"  until {one_line(look.day, 20):<10}  {counts:>20}  {delta:>10}  {interval}")
    return lines


def _method(found: ArmsComparison) -> str:
    if found.method == EMPIRICAL_BERNSTEIN and found.bounds is not None:
        low, high = found.bounds
        how = (
            f"an empirical Bernstein confidence sequence for outcomes between {low:g} and {high:g}"
        )
    else:
        how = (
            "an asymptotic confidence sequence, since the range of the outcomes is not known "
            "(--range LOW HIGH makes it exact)"
        )
    outcome = one_line(found.outcome, _NAME_WIDTH)
    guessed = ""
    if found.direction_from == "name":
        guessed = f" Better or worse is guessed from the name of {outcome}."
    elif found.higher_is_better is None:
        guessed = f" Whether more of {outcome} is better is not known: add --better."
    return (
        f"By {how}: it holds at all looks at once, so that one may look daily and stop when it "
        f"excludes zero.{guessed}"
    )


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(
        one_line(sentence, 1000), WIDTH, subsequent_indent="  ", break_on_hyphens=False
    )
