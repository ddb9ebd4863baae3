"""Ranks as lines: one each where they are few; else the median, the highest and the lowest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traceml.figures.colours import LEAST, MEDIAN, SERIES, WORST, series_colour
from traceml.figures.page import Series
from traceml.figures.units import Floats, Unit, scaled

Bools = npt.NDArray[np.bool_]

MAX_LINES = 16
"""More lines cannot be told apart; the heat map has a row for every rank."""


def highest(table: Floats) -> Floats:
    """Returns each column's largest measured value."""
    return _without_infinities(np.where(np.isfinite(table), table, -np.inf).max(axis=0))


def lowest(table: Floats) -> Floats:
    """Returns each column's smallest measured value."""
    return _without_infinities(np.where(np.isfinite(table), table, np.inf).min(axis=0))


def median(table: Floats) -> Floats:
    """Returns each column's median; the lower one of two, as in the summary."""
    known = np.isfinite(table)
    counts = known.sum(axis=0)
    ordered = np.sort(np.where(known, table, np.inf), axis=0)
    middle = np.take_along_axis(ordered, np.maximum((counts - 1) // 2, 0)[None, :], axis=0)[0]
    return _without_infinities(middle)


def mean(table: Floats) -> Floats:
    """Returns each column's mean over the ranks that have a value."""
    known = np.isfinite(table)
    counts = known.sum(axis=0)
    sums = np.where(known, table, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def measured_columns(table: Floats) -> Bools:
    """Returns the columns in which any rank has a value."""
    return np.asarray(np.isfinite(table).any(axis=0))


def held(table: Floats) -> Floats:
    """Returns the table with gaps between two values filled with the earlier one."""
    rows = []
    for row in table:
        places = np.flatnonzero(np.isfinite(row))
        if len(places):
            between = np.arange(places[0], places[-1] + 1)
            row = row.copy()
            row[between] = row[places[np.searchsorted(places, between, side="right") - 1]]
        rows.append(row)
    return np.stack(rows) if rows else table


def is_measured(table: Floats) -> bool:
    """Returns whether any value was measured."""
    return bool(np.isfinite(table).any())


def rank_series(
    table: Floats, names: Sequence[str], unit: Unit, noun: str = "rank"
) -> tuple[Series, ...]:
    """Returns a line per rank (or GPU) that has values, or median, highest and lowest."""
    rows = [place for place in range(len(table)) if is_measured(table[place])]
    if len(rows) <= MAX_LINES:
        return tuple(
            Series(
                names[place],
                series_colour(number),
                scaled(table[place], unit),
                dashed=number >= len(SERIES),
            )
            for number, place in enumerate(rows)
        )
    known = table[rows]
    return (
        Series(f"Highest {noun}", WORST, scaled(highest(known), unit)),
        Series(f"Median {noun}", MEDIAN, scaled(median(known), unit)),
        Series(f"Lowest {noun}", LEAST, scaled(lowest(known), unit), dashed=True),
    )


def rank_names(ranks: Sequence[int]) -> tuple[str, ...]:
    """Returns the names of ranks in a legend."""
    return tuple(f"rank {rank}" for rank in ranks)


def _without_infinities(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)
