"""The tables of step time: median and worst of each phase, and every rank's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceml.figures.page import Row, Table
from traceml.figures.step_shares import own_ms
from traceml.figures.words import cell, measured_value, rank_cell, skew
from traceml.model.phase import MEASURED, PHASES
from traceml.model.quantities import NOT_MEASURED, count, milliseconds, percent
from traceml.summaries.record import Global, RankValue, SectionSummary

MAX_RANKS = 16

WAIT = "wait_ms"
COLUMNS = {
    **{PHASES[phase].table: PHASES[phase].metric for phase in MEASURED},
    "Step Time": "step_time_ms",
    "Wait*": WAIT,
}
_WHERE_MEASURED = {
    PHASES[phase].metric for phase in MEASURED if not PHASES[phase].is_always_a_column
}
"""Columns that are left out where nothing was measured for them."""
_WAIT = (
    "Wait* is what a step takes besides waiting for data and besides forward, backward and "
    "optimizer: copies, communication and the rest."
)

_OVER_RANKS = "Median and Worst are over the ranks, each by the mean of its steps."
_ALONE = "One rank: Median and Worst are both the mean of its steps, with no other to compare."


def step_table(section: SectionSummary) -> Table | None:
    """Returns the median and the worst rank of every phase; `None` where no step was measured."""
    found = section.global_
    if not any(measured_value(found.median, key) is not None for key in COLUMNS.values()):
        return None
    shown = _shown([found.median, found.worst])
    is_alone = len(section.groups.rows) < 2
    rows = (
        Row(("Median", *(_ms(found.median, key) for key in shown.values()))),
        Row(("Worst", *(_ms(found.worst, key) for key in shown.values()))),
        Row(("Worst Rank", *(rank_cell(found.worst, key) for key in shown.values()))),
        Row(("Skew %", *(_skew(found, key, is_alone) for key in shown.values()))),
        Row(("WAIT Share %", *(_wait_share(found, key) for key in shown.values()))),
    )
    compared = _ALONE if is_alone else _OVER_RANKS
    return Table("step-time-table", "Step time", ("", *shown), rows, note=f"{compared} {_WAIT}")


def rank_table(section: SectionSummary) -> Table | None:
    """Returns every rank's own numbers, the slowest rank first; `None` for one rank."""
    ranks = section.groups.rows
    if len(ranks) < 2:
        return None
    slowest = sorted(
        ((name, row.metrics) for name, row in ranks.items()),
        key=lambda rank: -(own_ms(rank[1]) or 0.0),
    )
    shown = {
        title: key
        for title, key in COLUMNS.items()
        if any(metrics.get(key) is not None for _, metrics in slowest)
    }
    rows = tuple(
        Row((f"rank {cell(name)}", *(milliseconds(metrics.get(key)) for key in shown.values())))
        for name, metrics in slowest[:MAX_RANKS]
    )
    hidden = len(ranks) > MAX_RANKS
    note = f"The slowest {MAX_RANKS} of {count(len(ranks))} ranks." if hidden else None
    return Table("rank-table", "Ranks, the slowest first", ("Rank", *shown), rows, note)


def wait_share(found: Global) -> float | None:
    """Returns the share of a mean step that is waiting (Wait*), as a mean over all ranks.

    The median rank would mislead: of two ranks that wait for each other it is the one that waits
    less.
    """
    wait_ms, step_ms = (found.average.get(key) for key in ("wait_ms", "step_time_ms"))
    return None if wait_ms is None or not step_ms else wait_ms / step_ms


def _shown(sides: Sequence[Mapping[str, RankValue]]) -> dict[str, str]:
    return {
        title: key
        for title, key in COLUMNS.items()
        if key not in _WHERE_MEASURED
        or any(measured_value(side, key) is not None for side in sides)
    }


def _ms(side: Mapping[str, RankValue], key: str) -> str:
    return milliseconds(measured_value(side, key))


def _skew(found: Global, key: str, is_alone: bool) -> str:
    return NOT_MEASURED if is_alone else percent(skew(found, key))


def _wait_share(found: Global, key: str) -> str:
    return percent(wait_share(found)) if key == WAIT else ""
