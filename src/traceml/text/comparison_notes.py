"""What every form of a comparison says besides its table: noise, gate, and differences of the
runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from traceml.compare.lineage import RECORDED, Group, LineageComparison
from traceml.compare.logged_words import directions_guessed, segments_sentence
from traceml.compare.record import BenchStop, Comparison, DiagnosisChange
from traceml.compare.terms import Terms
from traceml.compare.verdict import fails_on
from traceml.compare.verdict_words import moved_words, noise_words, rank_words, reach_words
from traceml.model.printable import one_line
from traceml.model.quantities import NOT_MEASURED, count, duration
from traceml.text.changes import (
    MAX_SEGMENTED,
    SIGNIFICANT,
    ChangeLine,
    logged_changes,
    logged_shown,
    statuses,
)

NAME_WIDTH = 72
VALUE_WIDTH = 60
MAX_PER_GROUP = 12
SIGNIFICANCE = f"{SIGNIFICANT} shown by the runs: p < 0.05, corrected for all that was compared"


def legend(name: str, runs: tuple[str, ...]) -> str:
    """Returns a side's name, and with several runs how many and which."""
    shown = one_line(name, NAME_WIDTH)
    return shown if len(runs) < 2 else f"{shown} ({count(len(runs), 'run')})"


def diagnosis(change: DiagnosisChange) -> str:
    """Returns the diagnoses of A and B in words."""
    lhs, rhs = statuses(change)
    return f"{lhs} -> {rhs}" + (" (unchanged)" if change.changed is False else "")


def noise(comparison: Comparison) -> str:
    """Returns how much such runs vary by chance, and how that is known."""
    verdict = comparison.verdict
    if verdict.identical:
        return "none: both sides hold the same measurements."
    if verdict.allowance_from != "runs":
        return f"{_one_run_each(comparison)}."
    said = f"over {len(comparison.a_runs)} + {len(comparison.b_runs)} runs"
    two = "two runs of one side"
    if comparison.paired_by:
        said += f", paired by {one_line(comparison.paired_by, NAME_WIDTH)}"
        two = "the two runs of a pair"
    reach = reach_words(verdict.allowance_pct / 100)
    said += f", {two} may differ by up to {reach} by chance alone"  # their means by much less
    if verdict.method and verdict.p is not None:
        said += f"; {verdict.method}, p {_p(verdict.p)}"
    if verdict.rank_test and verdict.rank_test_p is not None:
        said += f"; {verdict.rank_test} test, p {_p(verdict.rank_test_p)}"
    return f"{said}."


def _one_run_each(comparison: Comparison) -> str:
    """Returns the assumed noise for one run per side, and what widened it."""
    verdict = comparison.verdict
    known = "one run per side"
    if _has_intervals(comparison):
        known += ": the intervals show step-to-step variation only"
    sources = verdict.noise.sources if verdict.noise else ()
    by_history, share = verdict.allowance_from == "history", verdict.allowance_pct / 100
    if not sources:
        if by_history:
            return f"{known}; earlier runs of the same command differ by up to {reach_words(share)}"
        return f"{known}; assuming {noise_words(share)}"
    base = reach_words(verdict.noise.base_share if verdict.noise else share)
    usual = f"the {base} of earlier runs of the same command" if by_history else base
    reasons = "; ".join(source.summary for source in sources)
    return f"{known}; assuming {noise_words(share)} instead of {usual}, because {reasons}"


def _has_intervals(comparison: Comparison) -> bool:
    section = comparison.sections.get("step_time")
    return any(change.interval for change in section.metrics.values()) if section else False


def _p(p: float) -> str:
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}"


def gate(comparison: Comparison) -> str | None:
    """Returns whether the comparison passed its gate; `None` without one."""
    if comparison.gate is None:
        return None
    words = " or ".join(comparison.gate.fail_on)
    verdict = comparison.verdict
    allowed = ""
    if verdict.max_regression_pct is not None:
        allowed = f"; up to {verdict.max_regression_pct:g}% worse is allowed"
    if comparison.gate.unmeasured:
        missing = " and ".join(comparison.gate.unmeasured)
        return f"FAILED ({missing} not measured on both sides; fails on {words}{allowed})"
    state = "FAILED" if comparison.gate.failed else "passed"
    return f"{state} ({verdict.metric}; fails on {words}{allowed})"


_STOPPED = {
    BenchStop.CLEAR.value: "stopped there because the answer is clear",
    BenchStop.MAX_RUNS.value: "the most that it was allowed",
    BenchStop.MAX_MINUTES.value: "all that the time allowed",
    BenchStop.INTERRUPTED.value: "all there was when it was interrupted",
}


def bench(comparison: Comparison) -> str | None:
    """Returns how the runs were made and how certain a verdict of several looks is; `None` where
    no benchmark made them."""
    found = comparison.bench
    if found is None:
        return None
    runs = f"{len(comparison.a_runs)} + {len(comparison.b_runs)} runs in turn"
    stopped = _STOPPED.get(found.stopped, found.stopped)
    if len(found.looks) == 1 and found.stopped in (BenchStop.CLEAR.value, BenchStop.MAX_RUNS.value):
        stopped = "as many as were planned"
    said = f"{runs}, in {duration(found.duration_s)}: {stopped}"
    level = comparison.verdict.confidence
    is_one_run_each = len(comparison.a_runs) + len(comparison.b_runs) == 2
    if len(found.looks) == 1 or level is None or is_one_run_each:
        return f"{said}."
    return (
        f"{said}. {len(found.looks)} looks were planned (after {_listed(found.looks)} runs per "
        f"side) and each is judged by its {100 * level:.3g}% interval, so that all of them "
        "together find a change in equal runs in at most 5 of 100 cases."
    )


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def gate_line(statuses: Mapping[str, str], terms: Terms) -> list[str]:
    """Returns the line about a gate on several verdicts, by the name of what each is about; empty
    where there is no gate, or nothing to judge."""
    if not terms.fail_on or not statuses:
        return []
    failed = [name for name, status in statuses.items() if fails_on(status, terms)]
    named = ", ".join(one_line(name, NAME_WIDTH) for name in failed or statuses)
    allowed = ""
    if terms.max_regression is not None:
        allowed = f"; up to {100 * terms.max_regression:g}% worse is allowed"
    state = "FAILED" if failed else "passed"
    return [f"Gate: {state} ({named}; fails on {' or '.join(terms.fail_on)}{allowed})"]


def significance(listed: Sequence[ChangeLine]) -> str | None:
    """Returns what the significance mark means; `None` where no line has it."""
    return SIGNIFICANCE if any(row.delta.endswith(SIGNIFICANT) for row in listed) else None


def observations(comparison: Comparison) -> Iterator[str]:
    """Yields what the table does not show: work that moved, ranks that changed."""
    moved = moved_words(comparison.moved)
    if moved:
        yield moved
    yield from rank_words(comparison.ranks)
    for metric, found in list(comparison.segments.items())[:MAX_SEGMENTED]:
        yield segments_sentence(metric, found)
    guessed = directions_guessed(logged_changes(comparison), logged_shown(comparison))
    if guessed:
        yield guessed


def different(comparison: Comparison) -> Iterator[str]:
    """Yields the differences between the runs themselves, one line each."""
    yield from comparison.warnings
    lineage = comparison.lineage
    if lineage is None:
        return
    for group, listed in lineage.told.items():
        if group == Group.ARTIFACTS.value and comparison.artifacts:
            continue  # they have a part of their own
        for found in listed[:MAX_PER_GROUP]:
            lhs, rhs = _told_apart(_text(found.lhs), _text(found.rhs))
            yield f"{group}: {one_line(found.name, NAME_WIDTH)}: {lhs} -> {rhs}"
        if len(listed) > MAX_PER_GROUP:
            yield f"{group}: {len(listed) - MAX_PER_GROUP} more, in the JSON file"
    for side in ("A", "B"):
        groups = [group for group, sides in lineage.not_recorded.items() if sides == (side,)]
        if groups:
            yield f"Not recorded in {side}: {', '.join(groups)}."
    yield from _same(lineage, bool(comparison.warnings))


def _same(lineage: LineageComparison, is_warned: bool) -> Iterator[str]:
    """Yields what neither side recorded, and what is the same on both where nothing differs."""
    known = [group for group in lineage.same if group in RECORDED]
    either = [group for group, sides in lineage.not_recorded.items() if len(sides) == 2]
    one_sided = len(either) < len(lineage.not_recorded)
    if known and not is_warned and not lineage.differences and not one_sided:
        yield f"No recorded differences; the same in both: {', '.join(known)}."
    if either and len(either) < len(RECORDED):
        yield f"Not recorded in either: {', '.join(either)}."


def _text(value: object) -> str:
    return NOT_MEASURED if value is None else str(value)


def _told_apart(lhs: str, rhs: str) -> tuple[str, str]:
    """Returns two values cut to a width, without the beginning that long ones share."""
    if max(len(lhs), len(rhs)) > VALUE_WIDTH:
        words = zip(lhs.split(" "), rhs.split(" "), strict=False)
        alike = takewhile(lambda pair: pair[0] == pair[1], words)
        skipped = sum(len(word) + 1 for word, _ in alike)
        if skipped:
            lhs, rhs = (f"… {value[skipped:]}" for value in (lhs, rhs))
    return one_line(lhs, VALUE_WIDTH), one_line(rhs, VALUE_WIDTH)
