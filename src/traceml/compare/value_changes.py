"""What changed between two JSON documents, or two tables, value by value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from traceml.compare.artifact_details import (
    MAX_LISTED,
    ColumnChange,
    JsonChange,
    Scalar,
    TableChange,
    ValueChange,
)

MAX_DEPTH = 64
MAX_TEXT = 300
"""Characters of a value that are kept."""


def compare_json(a: object, b: object) -> JsonChange:
    """Returns the values that differ, by their dotted paths."""
    lhs, rhs = dict(_flat(a)), dict(_flat(b))
    changes = list(_changes(lhs, rhs))
    return JsonChange(
        same=sum(path in rhs and _is_equal(value, rhs[path]) for path, value in lhs.items()),
        changed=sum(change.op == "changed" for change in changes),
        added=sum(change.op == "added" for change in changes),
        removed=sum(change.op == "removed" for change in changes),
        values=tuple(changes[:MAX_LISTED]),
    )


def _flat(value: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, Scalar]]:
    """Yields the values of a document; an empty list or object is a value too."""
    if isinstance(value, Mapping) and value and depth < MAX_DEPTH:
        for key, part in value.items():
            yield from _flat(part, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, (list, tuple)) and value and depth < MAX_DEPTH:
        for number, part in enumerate(value):
            yield from _flat(part, f"{path}[{number}]", depth + 1)
    elif value is None or isinstance(value, (str, int, float)):
        yield path or "(value)", value
    else:
        yield path or "(value)", "{}" if isinstance(value, Mapping) else "[]"


def _changes(lhs: Mapping[str, Scalar], rhs: Mapping[str, Scalar]) -> Iterator[ValueChange]:
    for path in dict.fromkeys((*lhs, *rhs)):
        if path not in rhs:
            yield ValueChange(path, "removed", lhs=listed_value(lhs[path]))
        elif path not in lhs:
            yield ValueChange(path, "added", rhs=listed_value(rhs[path]))
        elif not _is_equal(lhs[path], rhs[path]):
            yield ValueChange(path, "changed", listed_value(lhs[path]), listed_value(rhs[path]))


def _is_equal(lhs: Scalar, rhs: Scalar) -> bool:
    """Returns whether two values are the same; `1` is not `true`, and NaN equals NaN."""
    if isinstance(lhs, bool) is not isinstance(rhs, bool):
        return False
    if isinstance(lhs, float) and isinstance(rhs, float) and math.isnan(lhs) and math.isnan(rhs):
        return True
    return lhs == rhs


def listed_value(value: Scalar) -> Scalar:
    """Returns a value that strict JSON can hold, and not too long a one."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 63:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return value[: MAX_TEXT - 1] + "…"
    return value


def compare_tables(a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]) -> TableChange:
    """Returns the columns, rows and cells that differ; the first row of each names the columns."""
    lhs_names, rhs_names = _names(a), _names(b)
    common = [name for name in lhs_names if name in rhs_names]
    key = _key(common, a, b)
    lhs, rhs = _rows(a, lhs_names, key), _rows(b, rhs_names, key)
    both = [row for row in lhs if row in rhs]
    cells: list[ValueChange] = []
    changed = dict.fromkeys(common, 0)
    for row in both:
        for name in common:
            left, right = lhs[row].get(name, ""), rhs[row].get(name, "")
            if not _is_same_cell(left, right):
                changed[name] += 1
                if len(cells) < MAX_LISTED:
                    path = f"{key or 'row'} {row}, {name}"
                    cells.append(
                        ValueChange(path, "changed", listed_value(left), listed_value(right))
                    )
    return TableChange(
        lhs_rows=len(lhs),
        rhs_rows=len(rhs),
        paired_by=key or "row",
        added_rows=len(rhs) - len(both),
        removed_rows=len(lhs) - len(both),
        added_columns=tuple(name for name in rhs_names if name not in lhs_names),
        removed_columns=tuple(name for name in lhs_names if name not in rhs_names),
        changed_cells=sum(changed.values()),
        columns=tuple(
            ColumnChange(name, number, _mean(lhs, name), _mean(rhs, name))
            for name, number in changed.items()
            if number
        ),
        cells=tuple(cells),
    )


def _names(table: Sequence[Sequence[str]]) -> list[str]:
    """Returns the names of the columns, each once."""
    found: list[str] = []
    for number, name in enumerate(table[0] if table else (), 1):
        plain = name.strip() or f"column {number}"
        found.append(plain if plain not in found else f"{plain} ({number})")
    return found


def _key(
    names: Sequence[str], a: Sequence[Sequence[str]], b: Sequence[Sequence[str]]
) -> str | None:
    """Returns the first column whose values are unique in both tables, and no plain measurements.

    A column of fractions is none: two runs would have no row in common.
    """
    for name in names[:1]:
        sides = [
            [row[place] for row in table[1:] if place < len(row)]
            for table, place in ((a, _names(a).index(name)), (b, _names(b).index(name)))
        ]
        is_unique = all(len(set(values)) == len(values) for values in sides)
        is_complete = all(
            len(values) == len(table) - 1 for values, table in zip(sides, (a, b), strict=True)
        )
        if is_unique and is_complete and not any(_is_fraction(each) for each in sides[0]):
            return name
    return None


def _rows(
    table: Sequence[Sequence[str]], names: Sequence[str], key: str | None
) -> dict[str, dict[str, str]]:
    found = {}
    for number, row in enumerate(table[1:], 1):
        cells = dict(zip(names, row, strict=False))
        found[str(number) if key is None else cells[key]] = cells
    return found


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _is_fraction(cell: str) -> bool:
    number = _number(cell)
    return number is not None and not number.is_integer()


def _is_same_cell(lhs: str, rhs: str) -> bool:
    if lhs.strip() == rhs.strip():
        return True
    left, right = _number(lhs), _number(rhs)
    return left is not None and left == right


def _mean(rows: Mapping[str, Mapping[str, str]], name: str) -> float | None:
    """Returns the mean of a column; `None` where a cell is no finite number."""
    numbers = [_number(row.get(name, "")) for row in rows.values()]
    known = [number for number in numbers if number is not None and math.isfinite(number)]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None
