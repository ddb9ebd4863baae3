"""Compares tables of outcomes: two models on one test set, and arms of live traffic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from traceml.api.compare import refuse_folder
from traceml.compare.comparison_names import FOLDER, default_base, run_names
from traceml.compare.live_arms import Arm, ArmsComparison, compare_arms
from traceml.compare.paired_samples import compare_samples
from traceml.compare.sample_record import SampleComparison
from traceml.compare.terms import Terms
from traceml.model.errors import UsageError
from traceml.model.metric_direction import unknown_direction
from traceml.store.logged_samples import as_numbers, named_column, read_sample_file, read_table
from traceml.text.comparison_notes import gate_line
from traceml.text.live_arms import arms_text
from traceml.text.samples import samples_text

ARM_COLUMNS = ("arm", "variant", "treatment", "group")
TIME_COLUMNS = ("time", "timestamp", "datetime", "date", "day")
CONTROL_ARMS = ("control", "baseline")
"""Arms to compare with by their names, the surest first."""
OUTCOME_COLUMNS = ("outcome", "converted", "success", "value", "score")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_MILLISECONDS = 1e11
"""A larger number of seconds is after the year 5000: these are milliseconds."""
_SAY_WHICH_WAY = ": add --better, and --metric where there are several scores"
_DAY = 10
"""Characters of a date: 2026-11-16."""


def compare_sample_files(
    a: str, b: str, output: str | None, terms: Terms
) -> tuple[SampleComparison, str, Path]:
    """Compares two models on one test set, each a file of scores by example; returns the result
    with its text and the base name of the files to write."""
    refuse_folder(output)
    first, second = Path(a).absolute(), Path(b).absolute()
    left, right = read_sample_file(first), read_sample_file(second)
    terms = _about_one_score(terms, [name for name in left.scores if name in right.scores])
    found = compare_samples(left, right, terms)
    judged = [terms.metric] if terms.metric else list(found.scores)
    if terms.fail_on and judged:
        _refuse_without_direction(found, judged)
    names = run_names(first, second)
    legend = [f"- A: {names[0]}", f"- B: {names[1]}", ""]
    known = {name: found.scores[name] for name in judged}
    statuses = {name: each.status for name, each in known.items() if each.whole.delta is not None}
    gate = gate_line(statuses, terms)
    text = "\n".join([*legend, *samples_text("test set", found, _SAY_WHICH_WAY), *gate]) + "\n"
    return found, text, Path(output or default_base(names))


def _about_one_score(terms: Terms, scores: Sequence[str]) -> Terms:
    """Returns the terms, naming the only score where `--better` is said without a name.

    Raises UsageError where both files lack the score that is named, or where `--better` could be
    about any of several.
    """
    listed = ", ".join(scores) or "none"
    if terms.metric is not None:
        if terms.metric not in scores:
            raise UsageError(
                f"there is no score {terms.metric!r} in both files; both have {listed}"
            )
        return terms
    if terms.higher_is_better is None:
        return terms
    if len(scores) != 1:
        raise UsageError(
            f"--better is about one score: name it with --metric; both files have {listed}"
        )
    return replace(terms, metric=scores[0])


def _refuse_without_direction(found: SampleComparison, judged: Sequence[str]) -> None:
    """Raises UsageError where a gate has no score of which it is known what a regression is."""
    if all(found.scores[name].higher_is_better is None for name in judged):
        raise UsageError(unknown_direction(judged[0]))


def compare_arm_files(
    files: Sequence[str],
    bounds: tuple[float, float] | None,
    output: str | None,
    terms: Terms,
) -> tuple[ArmsComparison, str, Path]:
    """Compares arms of live traffic, in one file with a column that names the arm or in a file
    each; returns the result with its text and the base name of the files to write."""
    refuse_folder(output)
    paths = [Path(word) for word in files]
    outcome, arms = read_arms(paths, terms.metric)
    found = compare_arms(arms, outcome, bounds, terms)
    base = Path(output or FOLDER / f"{paths[0].stem}_arms")
    known = {
        name: each.status for name, each in found.differences.items() if each.delta is not None
    }
    text = arms_text(found) + "".join(f"\n{line}\n" for line in gate_line(known, terms))
    return found, text, base


def read_arms(paths: Sequence[Path], outcome: str | None) -> tuple[str, list[Arm]]:
    """Returns the name of the outcome and the arms, in the order in which they are first named."""
    tables = [(path, read_table(path)) for path in paths]
    name = outcome or _outcome_column(*tables[0])
    arms: dict[str, list[tuple[str, float]]] = {}
    for path, columns in tables:
        for arm, day, value in _rows(path, columns, name, alone=len(paths) > 1):
            arms.setdefault(arm, []).append((day, value))
    if len(arms) < 2:
        raise UsageError(
            f"there is only one arm ({', '.join(arms) or 'none'}): pass a file with a column "
            "'arm', or a file for each arm"
        )
    return name, [_arm(arm, arms[arm]) for arm in sorted(arms, key=_control_first)]


def _control_first(arm: str) -> int:
    """Returns the place of an arm: first the one called control, else baseline, else the first."""
    word = arm.lower()
    return CONTROL_ARMS.index(word) if word in CONTROL_ARMS else len(CONTROL_ARMS)


def _arm(name: str, rows: list[tuple[str, float]]) -> Arm:
    """Returns an arm in the order of time, where all outcomes have a date; else as they came."""
    if not all(moment for moment, _ in rows):
        return Arm(name, [value for _, value in rows])
    rows = sorted(rows, key=lambda row: row[0])
    return Arm(name, [value for _, value in rows], [moment[:_DAY] for moment, _ in rows])


def _moment(value: object) -> str:
    """Returns a date and time as ISO 8601 has it, also of seconds or milliseconds since 1970; empty
    where it is neither, because other forms do not say which number is the month."""
    text = "" if value is None else str(value).strip()
    if _ISO_DATE.match(text):
        return text
    try:
        number = float(text)
        seconds = number / 1000 if abs(number) > _MILLISECONDS else number
        return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def _outcome_column(path: Path, columns: dict[str, list[Any]]) -> str:
    named = named_column(columns, OUTCOME_COLUMNS)
    if named is not None:
        return named
    others = {named_column(columns, ARM_COLUMNS), named_column(columns, TIME_COLUMNS)}
    numbers = [
        name
        for name, values in columns.items()
        if name not in others and as_numbers(values) is not None
    ]
    if len(numbers) != 1:
        raise UsageError(
            f"{path} does not say which column is the outcome (found: {', '.join(columns)}); name "
            "it with --metric, or call it 'outcome'"
        )
    return numbers[0]


def _rows(
    path: Path, columns: dict[str, list[Any]], outcome: str, alone: bool
) -> list[tuple[str, str, float]]:
    """Returns arm, moment and outcome of every row; rows without an outcome are left out."""
    values = as_numbers(columns.get(outcome, []))
    if values is None:
        raise UsageError(
            f"{path} has no column {outcome!r} of numbers (found: {', '.join(columns)}); name the "
            "outcome with --metric"
        )
    arm_in, time_in = named_column(columns, ARM_COLUMNS), named_column(columns, TIME_COLUMNS)
    names = [path.stem] * len(values) if alone or arm_in is None else columns[arm_in]
    times = [""] * len(values) if time_in is None else columns[time_in]
    return [
        (str(name).strip(), _moment(moment), value)
        for name, moment, value in zip(names, times, values, strict=True)
        if value is not None
    ]
