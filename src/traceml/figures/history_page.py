"""The page of a command's history: the series, where it changed, and earlier predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from msgspec import structs

from traceml.compare.change_points import MIN_RUNS
from traceml.compare.history_record import HistoryChange, HistoryRun, RunHistory
from traceml.figures.compared_run import run_link
from traceml.figures.exploration import offered_column
from traceml.figures.explored_columns import numbers_of, unit_of
from traceml.figures.history_page_record import (
    ChangeCard,
    ChangeFact,
    HistoryPage,
    HistoryPoint,
    LevelLine,
    OfferedSeries,
    RunOrder,
)
from traceml.figures.page import Axis, Fact, Row, Table, Tone, Verdict
from traceml.figures.run_columns import FACTS
from traceml.figures.units import DIGITS, Unit, fitted, next_round, rounded
from traceml.figures.words import cell, line
from traceml.model.quantities import count, milliseconds, percent, significant
from traceml.text.run_history import (
    FIRST_RUN,
    SAME_COMMIT,
    change_facts,
    change_interval,
    change_size,
    commit_words,
    effect_words,
    is_same_commit,
    left_out_words,
    level_ends,
    other_words,
    value_words,
    verdict_words,
)
from traceml.text.summary import past_words

MAX_SERIES = 50
"""Other series that can be chosen."""
MAX_COMPARED = 5
"""Runs on each side of a change that its comparison is of."""
MAX_SCORES = 40
_LABEL_CHARS = 7
"""Of a commit beside its mark."""
_TONES: dict[str | None, Tone] = {"worse": "crit", "better": "good", None: "warn"}
_DOTS = "A dot is a run; the line is the mean of a level"
_WHISKERS = (
    "; the bar through a dot is the 95 % interval of the mean over the run's own steps, which does "
    "not hold what runs differ by"
)
_MARKS = (
    " A dashed line is a change, before the first run after it; the band is the 95 % interval of "
    "its place."
)


def history_page(
    history: RunHistory, metrics: Sequence[str], params: Sequence[str], run_count: int
) -> HistoryPage:
    """Returns the page; `metrics` and `params` are the keys that can be chosen."""
    order: RunOrder = "commit" if history.order == "commit" else "time"
    unit = _unit(history)
    has_intervals = any(run.interval for run in history.runs)
    return HistoryPage(
        found=count(run_count, "run"),
        verdict=_verdict(history, run_count),
        metric=history.metric,
        order=order,
        y=_axis(history, unit),
        points=tuple(_point(history, run, unit) for run in history.runs),
        levels=tuple(_levels(history, unit)),
        changes=tuple(_change(history, change) for change in history.changes),
        caption=_DOTS
        + (_WHISKERS if has_intervals else "")
        + "."
        + (_MARKS if history.changes else ""),
        series=tuple(_series(history)),
        choices=tuple(map(offered_column, metrics)),
        params=tuple(map(offered_column, params)),
        held_equal=tuple(
            Fact(line(name, 60), cell(value))
            for name, value in history.held_equal.items()
            if value is not None
        ),
        tables=tuple(table for table in _tables(history) if table.rows),
        notes=(
            *(f"Left out: {left_out_words(left)}" for left in history.left_out),
            *(line(note) for note in history.notes),
        ),
    )


def _unit(history: RunHistory) -> Unit:
    key = f"facts.{history.metric}" if history.metric in FACTS else history.metric
    return unit_of(key, numbers_of([run.value for run in history.runs]))


def _axis(history: RunHistory, unit: Unit) -> Axis:
    """Returns the axis of the metric, from its first to its last label."""
    ends = [end for run in history.runs for end in (run.value, *(run.interval or ()))]
    axis = fitted(line(history.metric, 60), unit, numbers_of(ends))
    if axis.high is not None or not ends or axis.low is None:
        return axis
    return structs.replace(axis, high=next_round(max(ends) / unit.size) if max(ends) > 0 else 1.0)


def _verdict(history: RunHistory, run_count: int) -> Verdict:
    runs, metric = len(history.runs), line(history.metric, 60)
    where = "along commits" if history.order == "commit" else "in time"
    status = verdict_words(history)
    if not runs and history.others:
        why = (
            f"No run of this command, with these parameters and on this machine, has {metric} yet."
        )
        steps = "Let one end well, or choose another of the series above."
        return Verdict("muted", status, why, next=steps)
    if not runs:
        why = f"No run that ended well, of {count(run_count, 'run')}, has {metric}."
        steps = "Run your training under traceml run, or choose another metric or filter."
        return Verdict("muted", status, why, next=steps)
    if not history.is_judged:
        why = f"{metric} of {count(runs, 'run')} {where}."
        more = count(MIN_RUNS - history.units, f"more {history.unit}")
        of = "of" if history.unit == "run" else "with runs of"
        return Verdict(
            "muted",
            status,
            why,
            next=f"It takes {more} {of} this command to tell a change from noise.",
        )
    if not history.changes:
        return Verdict("good", status, f"{metric} of {runs} runs {where} has one level.")
    newest = history.changes[-1]
    named = f" ({line(newest.first_subject, 80)})" if newest.first_subject else ""
    at = (
        f"since {line(newest.first_run, 80)}"
        if newest.first_commit is None
        else f"since commit {commit_words(newest.first_commit)}{named}"
    )
    values = " → ".join(value_words(history, value) for value in (newest.before, newest.after))
    return Verdict(
        _TONES[newest.effect],
        status,
        f"{metric} of {runs} runs {where}: {values} ({change_size(history, newest)}) {at}.",
    )


def _scaled(values: Sequence[float], unit: Unit) -> list[float | None]:
    return list(rounded(numbers_of(list(values)) / unit.size, DIGITS + 2))


def _point(history: RunHistory, run: HistoryRun, unit: Unit) -> HistoryPoint:
    value, low, high = _scaled((run.value, *(run.interval or (run.value, run.value))), unit)
    interval = None
    if run.interval is not None:
        interval = " to ".join(value_words(history, end) for end in run.interval)
    return HistoryPoint(
        run=run.run,
        value=value or 0.0,
        text=value_words(history, run.value),
        low=low if interval else None,
        high=high if interval else None,
        interval=interval,
        started_unix_s=run.started_unix_s,
        commit=commit_words(run.commit) if run.commit else None,
        subject=line(run.subject, 200) if run.subject else None,
        is_dirty=bool(run.dirty),
    )


def _levels(history: RunHistory, unit: Unit) -> Iterator[LevelLine]:
    first = 0
    for level in history.levels:
        (value,) = _scaled((level.mean,), unit)
        text = value_words(history, level.mean)
        yield LevelLine(first, first + level.runs - 1, value or 0.0, text)
        first += level.runs


def _change(history: RunHistory, change: HistoryChange) -> ChangeCard:
    names = [run.run for run in history.runs]
    place = names.index(change.first_run)
    before, after = (value_words(history, value) for value in (change.before, change.after))
    size = change_size(history, change)
    commit = "" if change.first_commit is None else f"{change.first_commit[:_LABEL_CHARS]} "
    return ChangeCard(
        place=place,
        earliest=names.index(change.earliest_run),
        latest=names.index(change.latest_run),
        tone=_TONES[change.effect],
        status=effect_words(change),
        label=line(f"{commit}{size}"),
        short_label=size,
        title=f"{before} → {after} ({size})",
        note=f"{change_interval(history, change)}, p = {significant(change.p)}",
        facts=tuple(_facts(change)),
        comparison=_comparison(history, place),
    )


def _facts(change: HistoryChange) -> Iterator[ChangeFact]:
    for label, words in change_facts(change):
        is_run = label == FIRST_RUN
        yield ChangeFact(
            f"{label[0].upper()}{label[1:]}",
            words.replace(" -> ", " → "),
            run_link(change.first_run) if is_run else None,
        )
    if is_same_commit(change):
        yield ChangeFact("Note", SAME_COMMIT)


def _comparison(history: RunHistory, place: int) -> str:
    """Returns where the runs next to a change are compared: those of its two levels."""
    ends = [0]
    for level in history.levels:
        ends.append(ends[-1] + level.runs)
    begin, end = max(each for each in ends if each < place), min(x for x in ends if x > place)
    a = history.runs[max(begin, place - MAX_COMPARED) : place]
    b = history.runs[place : min(end, place + MAX_COMPARED)]
    sides = [*(("a", run) for run in a), *(("b", run) for run in b)]
    query = (f"{side}={quote(run.run, safe='', errors='replace')}" for side, run in sides)
    return f"/compare?{'&'.join(query)}"


def _series(history: RunHistory) -> Iterator[OfferedSeries]:
    command = history.held_equal.get("command")
    yield OfferedSeries("", line(f"{count(len(history.runs), 'run')}: {command or 'none'}", 160))
    for other in history.others:
        yield OfferedSeries(other.newest_run, line(other_words(other), 160))


def _tables(history: RunHistory) -> Iterator[Table]:
    levels = [
        Row((value_words(history, level.mean), count(level.runs), " to ".join(level_ends(level))))
        for level in history.levels
    ]
    if len(levels) > 1:
        where = "Commits" if history.order == "commit" else "Runs or commits"
        yield Table("levels", "Levels", ("Mean", "Number of runs", where), tuple(levels))
    scores = history.scores[-MAX_SCORES:]
    yield Table(
        "scores",
        "Earlier predictions, and what happened",
        ("Finding", "Before", "Predicted", "Measured", "Of the saving", "Runs"),
        tuple(
            Row(
                (
                    line(" + ".join(score.kinds), 120),
                    milliseconds(score.step_ms),
                    milliseconds(score.predicted_ms) + (" or less" if score.is_upper_bound else ""),
                    milliseconds(score.actual_ms),
                    percent(score.saved_share),
                    f"{line(score.before_run, 60)} → {line(score.after_run, 60)}",
                ),
                link=run_link(score.after_run),
            )
            for score in scores
        ),
        note="Where a finding of all runs of one version is gone in the next. What else was "
        "changed at the same time is in the measured time too.",
    )
    yield Table(
        "predictions",
        "What the newest run predicts",
        ("Finding", "If fixed", "Earlier predictions of this kind"),
        tuple(
            Row((line(found.kind, 60), line(found.summary or "", 300), past_words(found.score)))
            for found in history.predictions
        ),
    )
