"""A section's numbers by rank or node, and over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from traceml.summaries.record import Global, Groups, Identity, RankRow, RankValue, Window

Metrics = Mapping[str, "float | None"]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One rank's or node's numbers before they are written."""

    index: int
    identity: Identity
    metrics: Metrics


def number(value: float | None) -> float | None:
    """Returns the number as it is written, rounded to a millionth of its unit.

    numpy numbers are converted, because no JSON encoder accepts them.
    """
    return None if value is None else round(float(value), 6)


def groups(by: str, rows: Sequence[TableRow]) -> Groups:
    """Returns the numbers of each rank or node."""
    return Groups(
        by=by,
        rows={
            str(row.index): RankRow(
                identity=row.identity,
                metrics={name: number(value) for name, value in row.metrics.items()},
            )
            for row in rows
        },
    )


def over_all(
    by: str,
    names: Sequence[str],
    rows: Sequence[TableRow],
    window: Window,
    average: Metrics | None = None,
) -> Global:
    """Returns average, median and worst over the rows; `average` overrides the mean of the rows."""
    ranked = {name: _ranked(name, rows) for name in names}
    means = average or {
        name: fmean(value for value, _ in found) if found else None
        for name, found in ranked.items()
    }
    return Global(
        index_by=by,
        window=window,
        average={name: number(means.get(name)) for name in names},
        median={name: _value_at(found, (len(found) - 1) // 2) for name, found in ranked.items()},
        worst={name: _value_at(found, len(found) - 1) for name, found in ranked.items()},
    )


def _ranked(name: str, rows: Sequence[TableRow]) -> list[tuple[float, int]]:
    """Returns the rows from the smallest value to the largest; among equals the lowest index is
    last."""
    measured = ((row.metrics[name], row.index) for row in rows)
    return sorted(
        ((value, index) for value, index in measured if value is not None),
        key=lambda found: (found[0], -found[1]),
    )


def _value_at(ranked: Sequence[tuple[float, int]], position: int) -> RankValue:
    if not ranked:
        return RankValue()
    value, index = ranked[position]
    return RankValue(value=number(value), idx=str(index))
