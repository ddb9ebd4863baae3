"""The list of runs as a page: its columns, and runs or groups of runs as rows of cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from traceml.compare.parameter_groups import ALL_BUT, is_repetition
from traceml.compare.run_groups import RunGroup
from traceml.figures.page import ColumnKind, Grouping, GroupRow, ListColumn, ListRow, RunState, Tone
from traceml.figures.run_columns import FACTS
from traceml.model.printable import one_line, printable, shorten
from traceml.model.run_values import RunValue
from traceml.store.query_language import quoted
from traceml.store.query_names import BEST, MOMENTS, written_key
from traceml.text.run_list import column_label, format_value, group_cells

ROW_FACTS = ("facts.status", "facts.severity", "facts.why", "facts.tags", "facts.note")
"""What a row needs besides its cells."""
MAX_CELL_CHARS = 200
MAX_LABEL_CHARS = 60
MAX_GROUP_NAMES = 1000

Values = Sequence[RunValue | None]

_KINDS: Mapping[str, ColumnKind] = {
    "facts.name": "name",
    "facts.status": "status",
    "facts.verdict": "verdict",
    "facts.tags": "tags",
    **{f"facts.{name}": "moment" for name in MOMENTS},
}
_LABELS = {
    "facts.name": "Run",
    "facts.status": "State",
    "facts.verdict": "Diagnosis",
    "facts.step_time_ms": "Step time",
    "facts.duration_s": "Duration",
    "facts.peak_memory_bytes": "Peak memory",
    "facts.world_size": "Ranks",
}
_STATISTIC_WORDS = {
    "metrics": "the last value of the metric",
    "min": "the smallest value of the metric",
    "max": "the largest value of the metric",
    "mean": "the mean of the metric",
    BEST: "the best value of the metric",
}


def list_columns(
    keys: Sequence[str], examples: Iterable[Iterable[RunValue | None]]
) -> tuple[ListColumn, ...]:
    """Returns the heads of columns; those that would be called the same have their whole keys.

    `examples` are values of each column, of every type that it has.
    """
    labels = [_label(key) for key in keys]
    often = Counter(labels)
    return tuple(
        ListColumn(
            key=written_key(key),
            label=label if often[label] == 1 else _full_label(key),
            kind=_kind(key, values),
            title=describe_column(key),
        )
        for key, label, values in zip(keys, labels, examples, strict=True)
    )


def _label(key: str) -> str:
    known = _LABELS.get(key)
    if known is not None:
        return known
    label = shorten(column_label(key), MAX_LABEL_CHARS)
    if not key.startswith("facts."):
        return label
    return f"{label[:1].upper()}{label[1:]}".replace("_", " ")


def _full_label(key: str) -> str:
    return shorten(printable(written_key(key)), MAX_LABEL_CHARS)


def _kind(key: str, examples: Iterable[RunValue | None]) -> ColumnKind:
    if key in _KINDS:
        return _KINDS[key]
    is_text = any(isinstance(value, str | bool | tuple) for value in examples)
    return "text" if is_text else "number"


def describe_column(key: str) -> str:
    """Returns what a column holds, in words."""
    section, _, name = key.partition(".")
    if section == "facts":
        known = FACTS.get(name)
        return "" if known is None else known.doc.replace("`", "")
    shown = printable(shorten(name, 2 * MAX_LABEL_CHARS))
    if section == "params":
        return f"the parameter {shown}"
    return f"{_STATISTIC_WORDS.get(section, section)} {shown}"


def list_rows(
    names: Sequence[str],
    keys: Sequence[str],
    columns: Sequence[Values],
    facts: Mapping[str, Values],
) -> tuple[ListRow, ...]:
    """Returns a row per run; `facts` are `ROW_FACTS`, by key."""
    cells = [
        [_cell(key, value) for value in values] for key, values in zip(keys, columns, strict=True)
    ]
    said = zip(*(facts[key] for key in ROW_FACTS), strict=True)
    return tuple(
        ListRow(
            name=name,
            state=_state(status),
            severity=_tone(severity),
            why=one_line(why, MAX_CELL_CHARS) if isinstance(why, str) else "",
            cells=tuple(column[place] for column in cells),
            tags=tuple(map(printable, tags)) if isinstance(tags, tuple) else (),
            note=note if isinstance(note, str) else None,
        )
        for place, (name, (status, severity, why, tags, note)) in enumerate(
            zip(names, said, strict=True)
        )
    )


def _cell(key: str, value: RunValue | None) -> str | float | None:
    if value is None:
        return None
    if _KINDS.get(key) == "moment":
        number = float(value) if isinstance(value, int | float) else math.nan
        return number if math.isfinite(number) else None
    if isinstance(value, str):
        return one_line(value[:12] if key == "facts.commit" else value, MAX_CELL_CHARS)
    return format_value(key, value, 0.0)


def _state(value: RunValue | None) -> RunState:
    for known in get_args(RunState):
        if value == known:
            return known  # type: ignore[no-any-return]
    return "lost"


def _tone(value: RunValue | None) -> Tone:
    for known in get_args(Tone):
        if value == known:
            return known  # type: ignore[no-any-return]
    return "muted"


def groupings(params: Sequence[str], facts: Sequence[str]) -> tuple[Grouping, ...]:
    """Returns ways to group runs: by the parameters in which they differ, by all of those but the
    ones that only repeat a run, and by facts."""
    repeating = [key for key in params if is_repetition(key)]
    found = []
    if len(params) > 1:
        names = ", ".join(column_label(key) for key in repeating)
        left_out = ",".join(map(written_key, repeating))
        words = f"All parameters but {names}" if repeating else "All parameters"
        found.append(Grouping(f"{ALL_BUT}{left_out}", shorten(words, MAX_LABEL_CHARS)))
    return (*found, *(Grouping(written_key(key), _label(key)) for key in (*params, *facts)))


def group_columns(
    by: Sequence[str], columns: Sequence[str], groups: Sequence[RunGroup]
) -> tuple[ListColumn, ...]:
    """Returns the heads of the columns of groups: what they have in common, the number of runs,
    and each column's mean and best value."""
    common = list_columns(by, [[group.values[key] for group in groups] for key in by])
    heads = [*common, ListColumn("runs", "Runs", "number", "runs in the group", can_sort=False)]
    for head in list_columns(columns, [()] * len(columns)):
        mean = f"{head.label}, mean ± 95% CI"
        heads.append(ListColumn(head.key, mean, "number", f"the mean over the runs: {head.title}"))
        best = f"the best of the runs: {head.title}"
        heads.append(ListColumn(f"{head.key} best", "Best", "number", best, can_sort=False))
    return tuple(heads)


def group_rows(
    groups: Sequence[RunGroup],
    by: Sequence[str],
    columns: Sequence[str],
    names: Sequence[str],
    among: str,
) -> tuple[GroupRow, ...]:
    """Returns a row per group; `names` are those of all runs, which the groups number, and `among`
    is the filter that those passed."""
    among_these = [f"({among.strip()})"] if among.strip() else []
    return tuple(
        GroupRow(
            cells=(
                *(_cell(key, group.values[key]) for key in by),
                *group_cells(group, columns),
            ),
            count=len(group.rows),
            names=tuple(names[row] for row in group.rows[:MAX_GROUP_NAMES]),
            filter=" and ".join([*among_these, group_filter(group.values)]),
        )
        for group in groups
    )


def group_filter(values: Mapping[str, RunValue | None]) -> str:
    """Returns the filter that lets through the runs with these values, and no others."""
    return " and ".join(f"{written_key(key)} {test}" for key, test in _tests(values))


def _tests(values: Mapping[str, RunValue | None]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if value is None:
            yield key, "is missing"
        elif isinstance(value, bool):
            yield key, f"= {str(value).lower()}"
        elif isinstance(value, tuple):
            for each in value:
                yield key, f"contains {quoted(each)}"
        elif isinstance(value, str):
            yield key, f"= {quoted(value)}"
        else:
            yield key, f"= {value!r}"
