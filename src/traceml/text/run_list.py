"""A list of runs, or of groups of runs, as text: a table for a terminal, markdown, or CSV."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from traceml.compare.run_groups import Aggregate, RunGroup
from traceml.model.printable import (
    one_line,
    pad_left,
    pad_right,
    printable,
    shorten,
    terminal_width,
)
from traceml.model.quantities import duration, memory, milliseconds, percent, significant
from traceml.model.run_values import RunValue
from traceml.store.query_names import MOMENTS, written_key

MAX_CELL_CHARS = 40
_GAP = "  "
_MISSING = ""
_LABELS = {
    "facts.name": "run",
    "facts.started": "started",
    "facts.step_time_ms": "step time",
    "facts.duration_s": "duration",
    "facts.peak_memory_bytes": "peak memory",
}
_RECENT_S = 24 * 3600
_FORMULA_SIGNS = ("=", "+", "-", "@")
"""With which a cell begins that a spreadsheet computes."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of cells that are ready to be shown."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    are_numbers: tuple[bool, ...]
    """Which columns are aligned at their right."""


def run_table(
    keys: Sequence[str], columns: Sequence[Sequence[RunValue | None]], now_unix_s: float
) -> TextTable:
    """Returns a row per run; each column belongs to the key in its place."""
    shown = [
        [format_value(key, value, now_unix_s) for value in values]
        for key, values in zip(keys, columns, strict=True)
    ]
    return TextTable(
        head=tuple(map(_label, keys)),
        rows=tuple(zip(*shown, strict=True)),
        are_numbers=tuple(map(_are_numbers, keys, columns)),
    )


def group_table(
    groups: Sequence[RunGroup], by: Sequence[str], columns: Sequence[str], now_unix_s: float
) -> TextTable:
    """Returns a row per group: what it has in common, its runs, and each column's mean and best."""
    head = [*map(_label, by), "runs"]
    for key in columns:
        head += [f"{_label(key)} (mean ± 95% CI)", "best"]
    rows = []
    for group in groups:
        cells = [format_value(key, group.values[key], now_unix_s) or "–" for key in by]
        rows.append((*cells, *group_cells(group, columns)))
    numbers = [_are_numbers(key, [group.values[key] for group in groups]) for key in by]
    are_numbers = (*numbers, True, *([True] * (2 * len(columns))))
    return TextTable(tuple(head), tuple(rows), are_numbers)


def group_cells(group: RunGroup, columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the number of a group's runs, then each column's mean and best."""
    cells = [f"{len(group.rows)}"]
    for key in columns:
        found = group.columns[key]
        cells += [_mean(key, found), _number(key, found.best)]
    return tuple(cells)


def format_value(key: str, value: RunValue | None, now_unix_s: float) -> str:
    """Returns a value as people read it, in the unit that the end of its key says; empty where it
    is missing."""
    if value is None:
        return _MISSING
    section, _, name = key.partition(".")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return one_line(", ".join(value), MAX_CELL_CHARS)
    if isinstance(value, str):
        text = value[:12] if key == "facts.commit" else value
        return one_line(text, None if key == "facts.name" else MAX_CELL_CHARS)
    if section == "facts" and name in MOMENTS:
        return moment(float(value), now_unix_s)
    if section == "facts":
        return _quantity(name)(value)
    if isinstance(value, int):
        return str(value)
    return short_power(f"{value:.6g}" if section == "params" else significant(value))


def short_power(number: str) -> str:
    """Returns a number without the zero that leads its exponent: 4e-8 for 4e-08."""
    return re.sub(r"e([+-])0(\d)$", r"e\1\2", number).replace("e+", "e")


def _quantity(name: str) -> Callable[[float], str]:
    if name.endswith("_ms"):
        return milliseconds
    if name.endswith("_per_s"):
        return significant
    if name.endswith("_s"):
        return duration
    if name.endswith("_bytes"):
        return memory
    if name.endswith("_share"):
        return percent
    return lambda value: str(value) if isinstance(value, int) else short_power(significant(value))


def moment(unix_s: float, now_unix_s: float) -> str:
    """Returns when something was: how long ago within a day, else the local date and time."""
    ago_s = now_unix_s - unix_s
    if 0 <= ago_s < _RECENT_S:
        if ago_s < 60:
            return "just now"
        minutes = int(ago_s // 60)
        return f"{minutes} min ago" if minutes < 60 else f"{minutes // 60} h ago"
    try:
        return f"{datetime.fromtimestamp(unix_s):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "n/a"


def aligned(
    table: TextTable, width: int | None, last: int = 0, all_of_last: bool = False
) -> tuple[str, list[str]]:
    """Returns the table in columns, and the heads of the columns that did not fit in a width.

    The `last` columns have half of the width if they need it, or are shown whatever they need; of
    them as of those before, columns at the end are left out. `None` for the width leaves none out.
    """
    cells = [table.head, *table.rows]
    widths = [max(terminal_width(row[place]) for row in cells) for place in range(len(table.head))]
    shown = list(range(len(widths)))
    if width is not None:
        first, rest = shown[: len(shown) - last], shown[len(shown) - last :]
        needed = sum(widths[place] + len(_GAP) for place in rest)
        before = _fitting([widths[place] for place in first], width - min(needed, width // 2))
        used = sum(widths[place] + len(_GAP) for place in first[:before])
        fitting = _fitting([widths[place] for place in rest], width - used)
        shown = [*first[:before], *rest[: None if all_of_last else fitting]]
    lines = []
    for row in cells:
        parts = [
            (pad_left if table.are_numbers[place] else pad_right)(row[place], widths[place])
            for place in shown
        ]
        lines.append(_GAP.join(parts).rstrip())
    lines.insert(1, _GAP.join("-" * widths[place] for place in shown))
    left_out = [head for place, head in enumerate(table.head) if place not in set(shown)]
    return "\n".join(lines), left_out


def _fitting(widths: Sequence[int], width: int) -> int:
    """Returns how many columns fit; at least one does."""
    used, shown = -len(_GAP), 0
    for each in widths:
        used += each + len(_GAP)
        if used > width and shown:
            break
        shown += 1
    return shown


def markdown(table: TextTable) -> str:
    """Returns the table as markdown; no name, tag or value of a run can format it."""
    from traceml.text.markdown import escaped  # late: it loads what words a comparison

    alignment = tuple("---:" if right else "---" for right in table.are_numbers)
    head, *rows = ([escaped(cell) for cell in row] for row in (table.head, *table.rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, alignment, *rows))


def csv_text(head: Sequence[str], rows: Sequence[Sequence[RunValue | None]]) -> str:
    """Returns plain values with commas; a missing one is empty, several are joined by commas.

    A text that a spreadsheet would compute as a formula has an apostrophe before it: names, notes
    and parameters of a shared folder are written by others.
    """
    lines: list[str] = []
    writer = csv.writer(_CsvLines(lines), lineterminator="\n")
    writer.writerow([_no_formula(name) for name in head])
    for row in rows:
        writer.writerow([_plain(value) for value in row])
    return "".join(lines)


class _CsvLines:
    """Takes what a writer of CSV writes."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append


def group_values(group: RunGroup, columns: Sequence[str]) -> dict[str, RunValue | None]:
    """Returns a group as one flat row, for CSV."""
    found: dict[str, RunValue | None] = {
        written_key(key): value for key, value in group.values.items()
    }
    found["runs"] = len(group.rows)
    for key in columns:
        each, name = group.columns[key], written_key(key)
        found |= {f"{name} (mean)": each.mean, f"{name} (low)": each.low}
        found |= {f"{name} (high)": each.high, f"{name} (best)": each.best}
        found[f"{name} (count)"] = each.count
    return found


def json_value(value: RunValue | None) -> object:
    """Returns a value as strict JSON can hold it: NaN and infinity as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def json_aggregate(found: Aggregate) -> Mapping[str, object]:
    """Returns an aggregate as JSON has it; the interval is `null` for a single run."""
    interval = None if found.low is None else [found.low, found.high]
    return {
        "count": found.count,
        "mean": found.mean,
        "interval": interval,
        "min": found.minimum,
        "max": found.maximum,
        "best": found.best,
        "not_finite": found.not_finite,
    }


def _label(key: str) -> str:
    known = _LABELS.get(key)
    return shorten(column_label(key), MAX_CELL_CHARS) if known is None else known


def column_label(key: str) -> str:
    """Returns a column's name without what says that it is a parameter or a metric."""
    short = written_key(key).removeprefix("params.").removeprefix("metrics.")
    return printable(short.strip('"'))


def _are_numbers(key: str, values: Sequence[RunValue | None]) -> bool:
    if key.removeprefix("facts.") in MOMENTS:
        return False
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in known
    )


def _mean(key: str, found: Aggregate) -> str:
    if found.mean is None:
        return f"{found.not_finite} not finite" if found.not_finite else "n/a"
    shown = _number(key, found.mean)
    if found.low is None or found.high is None:
        return shown
    return f"{shown} ± {_number(key, (found.high - found.low) / 2)}"


def _number(key: str, value: float | None) -> str:
    return "n/a" if value is None else format_value(key, value, 0.0)


def _plain(value: RunValue | None) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return _no_formula(", ".join(value))
    return _no_formula(value) if isinstance(value, str) else str(value)


def _no_formula(text: str) -> str:
    shown = printable(text)
    is_formula = shown.lstrip().startswith(_FORMULA_SIGNS) and not _NUMBER.fullmatch(shown.strip())
    return f"'{shown}" if is_formula else shown
