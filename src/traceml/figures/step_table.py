"""The tables of step time: each phase of a mean step, over the ranks, and every rank's numbers."""

from __future__ import annotations

from collections.abc import Mapping

from traceml.figures.page import Row, Table
from traceml.figures.step_shares import PARTS
from traceml.figures.words import cell, rank_words, skew_words
from traceml.model.phase import COMPUTE_PART, PHASES
from traceml.model.quantities import count, milliseconds, percent
from traceml.summaries.own_time import own_ms, own_time_spread
from traceml.summaries.record import SectionSummary
from traceml.summaries.step_parts import step_parts
from traceml.summaries.tables import by_coordinate, mean_metrics

MAX_RANKS = 16
ALIKE = 0.001
"""As a share: ranks that differ by less take equally long."""

STEP = "step"
COLUMNS = {**PARTS, STEP: "Step"}
"""The parts of a step, which add up to it, and the step itself."""
_ALWAYS = {phase.value for phase, entry in PHASES.items() if entry.is_always_a_column} | {STEP}

Parts = Mapping[str, "float | None"]


def step_table(section: SectionSummary) -> Table | None:
    """Returns each phase of a mean step and, for several ranks, its median and its worst rank;
    `None` where no step was measured."""
    mean = _parts(section.global_.average)
    if all(value is None for value in mean.values()):
        return None
    ranks = {name: _parts(row.metrics) for name, row in section.groups.rows.items()}
    shown = _shown(mean, *ranks.values())
    rows = [
        Row(("Mean", *(milliseconds(mean[key]) for key in shown))),
        Row(("Share of step", *(percent(_share(mean, key)) for key in shown))),
    ]
    note = None
    if len(ranks) > 1:
        columns = [_over_ranks(ranks, key) for key in shown]
        rows += [
            Row(("Median rank", *(milliseconds(median) for median, _, _ in columns))),
            Row(("Worst rank", *(milliseconds(worst) for _, worst, _ in columns))),
            Row(("Which rank", *(cell(name) or "–" for _, _, name in columns))),
            Row(("Skew", *(skew_words(median, worst) for median, worst, _ in columns))),
        ]
        note = (
            "Mean and share are over all ranks; the median and the worst rank are found for each "
            "column by the ranks' means. Skew: how much longer the worst takes than the median."
        )
    titles = (COLUMNS[key] for key in shown)
    return Table("step-time-table", "Step time", ("", *titles), tuple(rows), note)


def rank_table(section: SectionSummary) -> Table | None:
    """Returns every rank's own numbers, the slowest rank first; `None` for one rank."""
    ranks = section.groups.rows
    if len(ranks) < 2:
        return None
    slowest = sorted(
        ((name, row.metrics) for name, row in ranks.items()),
        key=lambda rank: -(own_ms(rank[1]) or 0.0),
    )
    parts = [(name, _parts(metrics)) for name, metrics in slowest]
    shown = [key for key in COLUMNS if any(each[key] is not None for _, each in parts)]
    rows = tuple(
        Row((rank_words(name, ranks[name]), *(milliseconds(each[key]) for key in shown)))
        for name, each in parts[:MAX_RANKS]
    )
    hidden = len(ranks) > MAX_RANKS
    note = f"The slowest {MAX_RANKS} of {count(len(ranks))} ranks." if hidden else None
    titles = (COLUMNS[key] for key in shown)
    return Table("rank-table", "Ranks, the slowest first", ("Rank", *titles), rows, note)


def many_ranks_table(section: SectionSummary) -> Table | None:
    """Returns how the ranks' own time is distributed; `None` where every rank has a row."""
    found = own_time_spread(section.groups.rows)
    if found is None or found.ranks <= MAX_RANKS:
        return None
    columns = {
        f"Fastest (rank {cell(found.best_rank)})": found.best_ms,
        **{name.capitalize(): value for name, value in found.quantiles_ms.items()},
        f"Slowest (rank {cell(found.worst_rank)})": found.worst_ms,
    }
    row = Row(("Own work", *map(milliseconds, columns.values())))
    title = f"Own work of {count(found.ranks, 'rank')}"
    return Table("rank-distribution", title, ("", *columns), (row,))


def mesh_table(section: SectionSummary) -> Table | None:
    """Returns the mean of the ranks that share a coordinate of the device mesh; `None` where the
    table of ranks shows every one of them."""
    groups = by_coordinate(section.groups.rows)
    if len(section.groups.rows) <= MAX_RANKS or not groups:
        return None
    parts = {words: _parts(mean_metrics(rows)) for words, rows in groups.items()}
    shown = [key for key in COLUMNS if any(each[key] is not None for each in parts.values())]
    rows = tuple(
        Row((words, count(len(groups[words])), *(milliseconds(each[key]) for key in shown)))
        for words, each in parts.items()
    )
    titles = ("Coordinate", "Ranks", *(COLUMNS[key] for key in shown))
    note = "Means over the ranks that share a coordinate."
    return Table("mesh-table", "By dimension of the device mesh", titles, rows, note)


def _parts(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Returns the parts of a step and the step; `None` where they were not measured."""
    step_ms = metrics.get("step_time_ms")
    parts = step_parts(metrics)
    is_known = step_ms is not None or any(parts.values())
    found: dict[str, float | None] = {key: parts.get(key) if is_known else None for key in PARTS}
    return {**found, STEP: step_ms}


def _share(parts: Parts, key: str) -> float | None:
    part_ms, step_ms = parts[key], parts[STEP]
    return None if part_ms is None or not step_ms else part_ms / step_ms


def _shown(*sides: Parts) -> list[str]:
    return [
        key
        for key in COLUMNS
        if key in _ALWAYS
        or any(value for side in sides if (value := side[key]) is not None)
        or (key != COMPUTE_PART and any(side[key] is not None for side in sides))
    ]


def _over_ranks(
    ranks: Mapping[str, Parts], key: str
) -> tuple[float | None, float | None, str | None]:
    """Returns the median (the lower one of two, as in the summary), the worst and its rank; no rank
    where the worst is no worse than the median."""
    known = sorted(
        (value, name) for name, parts in ranks.items() if (value := parts[key]) is not None
    )
    if not known:
        return None, None, None
    median, (worst, name) = known[(len(known) - 1) // 2][0], known[-1]
    return median, worst, name if worst > (1 + ALIKE) * median else None
