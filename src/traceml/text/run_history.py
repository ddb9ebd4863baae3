"""The history of a command in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from itertools import islice

from traceml.compare.history_record import (
    HistoryChange,
    HistoryLevel,
    LeftOutRuns,
    OpenPrediction,
    OtherSeries,
    PredictionScore,
    RunHistory,
)
from traceml.model.printable import one_line, shorten
from traceml.model.quantities import count, milliseconds, percent, significant
from traceml.model.run_values import RunValue
from traceml.text.run_list import format_value
from traceml.text.summary import past_words

MAX_COMMITS_SHOWN = 8
MAX_PREDICTIONS_SHOWN = 10
MAX_VALUES_SHOWN = 6
"""Of a series; a script may have hundreds of parameters."""
_COMMIT_CHARS = 10
_NAME_CHARS = 60
FIRST_COMMIT, FIRST_RUN, ALSO = "first commit after it", "first run after it", "also different"
SAME_COMMIT = "the commit is the same before and after: look at the machine and the data"
_LABEL_CHARS = len(FIRST_COMMIT) + 1


def history_text(history: RunHistory) -> str:
    """Returns the whole history for a terminal."""
    lines = [headline(history), ""]
    for change in history.changes:
        lines += [*_change_lines(history, change), ""]
    if history.runs:
        lines += [*_level_lines(history), ""]
    scored = [f"  {score_words(score)}" for score in history.scores[-MAX_PREDICTIONS_SHOWN:]]
    if scored:
        lines += ["Earlier predictions, and what happened:", *scored, ""]
    predicted = [*map(_prediction_line, history.predictions[:MAX_PREDICTIONS_SHOWN])]
    if predicted:
        lines += ["What the newest run predicts:", *predicted, ""]
    lines += [*_scope_lines(history)]
    return "\n".join(lines).rstrip("\n") + "\n"


def history_markdown(history: RunHistory) -> str:
    """Returns the same in markdown: a block of code, which no name can format."""
    return f"**TraceML history: {verdict_words(history)}**\n\n" + textwrap.indent(
        history_text(history), "    "
    )


def headline(history: RunHistory) -> str:
    """Returns the first line: the verdict, of which metric, over how many runs."""
    order = "along commits" if history.order == "commit" else "in time"
    runs = count(len(history.runs), "run")
    return f"{verdict_words(history)}: {one_line(history.metric)} of {runs} {order}"


def verdict_words(history: RunHistory) -> str:
    """Returns what was found in two or three words."""
    if not history.runs:
        return "NO DATA"
    if not history.is_judged:
        return f"TOO FEW {history.unit.upper()}S"
    changes = len(history.changes)
    return f"{changes} CHANGE{'S' if changes > 1 else ''}" if changes else "NO CHANGE FOUND"


def _change_lines(history: RunHistory, change: HistoryChange) -> Iterator[str]:
    before, after = value_words(history, change.before), value_words(history, change.after)
    size = f"({change_size(history, change)}; {change_interval(history, change)})"
    yield f"{effect_words(change)}  {before} -> {after}  {size}, p = {significant(change.p)}"
    for label, words in change_facts(change):
        width = 0 if label == ALSO else _LABEL_CHARS
        yield f"  {f'{label}:':<{width}} {words}"
    if is_same_commit(change):
        yield f"  {SAME_COMMIT}"


def effect_words(change: HistoryChange) -> str:
    """Returns whether a change is to the better."""
    return {"worse": "WORSE", "better": "BETTER", None: "CHANGED"}[change.effect]


def change_size(history: RunHistory, change: HistoryChange) -> str:
    """Returns how large a change is: as a percentage, or in the metric's unit where a share of it
    says nothing."""
    if change.ratio is None:
        return value_words(history, change.difference)
    return percent(change.ratio - 1, signed=True)


def change_interval(history: RunHistory, change: HistoryChange) -> str:
    """Returns the interval of that size."""
    if change.ratio_interval is None:
        low, high = (value_words(history, end) for end in change.difference_interval)
    else:
        low, high = (percent(end - 1, signed=True) for end in change.ratio_interval)
    return f"95% interval {low} to {high}"


def change_facts(change: HistoryChange) -> Iterator[tuple[str, str]]:
    """Yields where a change lies and what else was different, each with its label."""
    uncommitted = " with changes that are not committed" if change.dirty else ""
    if change.first_commit is not None:
        subject = shorten(one_line(change.first_subject or ""), _NAME_CHARS)
        named = f"{commit_words(change.first_commit)} {subject}".rstrip()
        yield FIRST_COMMIT, f"{named}{uncommitted}"
        yield "last commit before it", commit_words(change.last_commit_before)
    yield FIRST_RUN, _name(change.first_run)
    if change.earliest_run != change.latest_run:
        span = f"from {_name(change.earliest_run)} to {_name(change.latest_run)}"
        yield "95% interval of that", span
    if change.commits_between:
        shown = [*map(commit_words, change.commits_between[-MAX_COMMITS_SHOWN:])]
        more = len(change.commits_between) - len(shown)
        listed = ", ".join([*([f"{more} more"] if more else []), *shown])
        yield f"or one of {count(len(change.commits_between), 'commit')} in between", listed
    for other in change.also_different:
        yield ALSO, f"{other.name} {_plain(other.before)} -> {_plain(other.after)}"


def is_same_commit(change: HistoryChange) -> bool:
    """Returns whether the code is the same before and after a change."""
    commit = change.first_commit
    return commit is not None and commit == change.last_commit_before and not change.dirty


def _level_lines(history: RunHistory) -> Iterator[str]:
    yield "Levels:"
    for level in history.levels:
        mean = value_words(history, level.mean)
        yield f"  {mean:>12}  {count(level.runs, 'run')}, {' to '.join(level_ends(level))}"


def level_ends(level: HistoryLevel) -> tuple[str, str]:
    """Returns the first and the last commit of a level, or its runs where there is none."""
    begin = commit_words(level.first_commit) if level.first_commit else _name(level.first_run)
    end = commit_words(level.last_commit) if level.last_commit else _name(level.last_run)
    return begin, end


def score_words(score: PredictionScore) -> str:
    """Returns what was predicted, and what happened."""
    more = " or less" if score.is_upper_bound else ""
    where = f"{_name(score.before_run)} -> {_name(score.after_run)}"
    if score.before_commit != score.after_commit:
        where += f", {commit_words(score.before_commit)} -> {commit_words(score.after_commit)}"
    return (
        f"{' + '.join(map(one_line, score.kinds))}: {milliseconds(score.step_ms)} -> "
        f"{milliseconds(score.predicted_ms)}{more} predicted, {milliseconds(score.actual_ms)} "
        f"measured: {percent(score.saved_share)} of the saving ({where})"
    )


def _prediction_line(found: OpenPrediction) -> str:
    return f"  {one_line(found.kind)}: {one_line(found.summary or '')}; {past_words(found.score)}"


def _scope_lines(history: RunHistory) -> Iterator[str]:
    if history.held_equal:
        known = {name: value for name, value in history.held_equal.items() if value is not None}
        yield f"Held equal: {_pairs(known)}"
    for left in history.left_out:
        yield f"Left out: {left_out_words(left)}"
    for other in history.others:
        yield f"Another series: {other_words(other)}"
    if history.others:
        yield (
            "Choose another with --command TEXT, --run NAME or a filter; --ignore NAME puts "
            "series together that differ in a parameter alone, --any-host those that differ in "
            "the host."
        )
    for note in history.notes:
        yield f"Note: {one_line(note)}"


def left_out_words(left: LeftOutRuns) -> str:
    """Returns how many runs are left out, and why."""
    examples = ", ".join(map(_name, left.examples))
    more = ", …" if left.runs > len(left.examples) else ""
    return f"{count(left.runs, 'run')} ({left.why}): {examples}{more}"


def other_words(other: OtherSeries) -> str:
    """Returns what another series is: how many runs of which command, and what else they have."""
    different = f"; {_pairs(other.different)}" if other.different else ""
    command = shorten(one_line(other.command), _NAME_CHARS)
    return f"{count(other.runs, 'run')}: {command}{different}"


def _pairs(values: Mapping[str, RunValue | None]) -> str:
    shown = [
        f"no {one_line(name)}"
        if value is None
        else f"{one_line(name)} = {shorten(_plain(value), _NAME_CHARS)}"
        for name, value in islice(values.items(), MAX_VALUES_SHOWN)
    ]
    hidden = len(values) - len(shown)
    return ", ".join([*shown, f"and {count(hidden)} more"] if hidden else shown)


def value_words(history: RunHistory, value: float) -> str:
    """Returns a value of the metric, in its unit."""
    if history.metric.startswith("metrics."):
        return significant(value)
    return format_value(f"facts.{history.metric}", value, 0.0)


def _plain(value: RunValue | None) -> str:
    if isinstance(value, tuple):
        return one_line(", ".join(value))
    return "none" if value is None else one_line(value)


def commit_words(commit: str | None) -> str:
    """Returns the short name of a commit."""
    return "unknown" if commit is None else one_line(commit[:_COMMIT_CHARS])


def _name(run: str) -> str:
    return shorten(one_line(run), _NAME_CHARS)
