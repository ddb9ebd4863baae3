"""A section's numbers: rank by rank or node by node, and over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from traceml.summaries.record import Global, Groups, Identity, RankRow, RankValue, Window

Metrics = Mapping[str, "float | None"]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One rank's or node's numbers before they are written down."""

    index: int
    identity: Identity
    metrics: Metrics


def number(value: float | None) -> float | None:
    """As it is written: a millionth of the unit is finer than any clock or sensor here.

    A number of numpy's looks like one of Python's, and no JSON encoder takes it.
    """
    return None if value is None else round(float(value), 6)


def groups(by: str, rows: Sequence[TableRow]) -> Groups:
    """The numbers of each."""
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
    """Average, median and worst over the rows; `average` where the mean of the rows is not it."""
    ranked = {name: _ranked(name, rows) for name in names}
    means = average or {
        name: fmean(value for value, _ in found) if found else None
        for name, found in ranked.items()
    }
    return Global(
        index_by=by,
        window=window,
        average={name: number(means.get(name)) for name in names},
        median={name: _place(found, (len(found) - 1) // 2) for name, found in ranked.items()},
        worst={name: _place(found, len(found) - 1) for name, found in ranked.items()},
    )


def _ranked(name: str, rows: Sequence[TableRow]) -> list[tuple[float, int]]:
    """From the smallest value to the largest; of equal ones the lowest index is the largest."""
    measured = ((row.metrics[name], row.index) for row in rows)
    return sorted(
        ((value, index) for value, index in measured if value is not None),
        key=lambda found: (found[0], -found[1]),
    )


def _place(ranked: Sequence[tuple[float, int]], position: int) -> RankValue:
    if not ranked:
        return RankValue()
    value, index = ranked[position]
    return RankValue(value=number(value), idx=str(index))
