"""A section's numbers by rank or node, and over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from traceml.model.parallel_place import MeshDimension, ParallelPlace
from traceml.model.printable import printable
from traceml.summaries.record import Global, Groups, Identity, RankRow, RankValue, Window

MAX_COORDINATES = 8
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


def place_words(identity: Identity) -> str:
    """Returns a rank's place in the device mesh in words: `dp 1, tp 0`; empty where none is
    known."""
    dimensions = (identity.mesh or {}).items()
    return ParallelPlace(
        tuple(MeshDimension(printable(name), at, 0) for name, at in dimensions),
        identity.pipeline_stages or (),
    ).label


def by_coordinate(rows: Mapping[str, RankRow]) -> dict[str, list[RankRow]]:
    """Returns the rows of the ranks that share a coordinate of the device mesh, by its words.

    Dimensions along which there are more than `MAX_COORDINATES` are left out: a row for each would
    be as long as the table of ranks itself.
    """
    found: dict[str, dict[int, list[RankRow]]] = {}
    for row in rows.values():
        for name, at in (row.identity.mesh or {}).items():
            found.setdefault(printable(name), {}).setdefault(at, []).append(row)
    return {
        f"{name} {at}": members
        for name, groups in found.items()
        if 1 < len(groups) <= MAX_COORDINATES
        for at, members in sorted(groups.items())
    }


def mean_metrics(rows: Sequence[RankRow]) -> dict[str, float | None]:
    """Returns the mean of each metric over the rows that have it."""
    names = dict.fromkeys(name for row in rows for name in row.metrics)
    return {name: fmean(known) if (known := _known(name, rows)) else None for name in names}


def _known(name: str, rows: Sequence[RankRow]) -> list[float]:
    return [value for row in rows if (value := row.metrics.get(name)) is not None]


def _ranked(name: str, rows: Sequence[TableRow]) -> list[tuple[float, int]]:
    """Returns each row's value with its index, negative so that among equals the lowest is last,
    from the smallest value to the largest."""
    ranked = [(value, -row.index) for row in rows if (value := row.metrics[name]) is not None]
    ranked.sort()
    return ranked


def _value_at(ranked: Sequence[tuple[float, int]], position: int) -> RankValue:
    if not ranked:
        return RankValue()
    value, negative_index = ranked[position]
    return RankValue(value=number(value), idx=str(-negative_index))
