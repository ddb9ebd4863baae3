"""The part of the page on the machines of a run over several: their times, sensors, clocks, and a
cell for each of their ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from traceml.figures.charts_over_steps import OWN, heat_range
from traceml.figures.page import Axis, Part, RankGrid, Row, Table, Tile
from traceml.figures.units import scaled_one, time_unit
from traceml.figures.words import cell
from traceml.model.quantities import count, duration, memory, milliseconds, percent
from traceml.summaries.own_time import own_ms, waits_are_known
from traceml.summaries.record import NodeSummary, SectionSummary, Summary
from traceml.text.nodes import WAYS, clock_words, rank_range, slowest_first

MAX_NODES = 16
LATE_TIMES = 1.05
"""Times the median node's own work: ranks of a healthy job differ by less."""


def nodes_part(summary: Summary | None) -> Part | None:
    """Returns the machines of a run over several; `None` for one machine."""
    if summary is None or not summary.nodes:
        return None
    grid = None if summary.step_time is None else _grid(summary.nodes, summary.step_time)
    spread = _spread(summary.nodes)
    return Part(
        id="nodes",
        title="Nodes",
        note=_note(summary.nodes),
        tiles=tuple(_tiles(summary.nodes)),
        figures=() if grid is None else (grid,),
        tables=(*(() if spread is None else (spread,)), _table(summary)),
        is_wide=True,
    )


def _note(nodes: Sequence[NodeSummary]) -> str:
    ranks = sum(len(node.ranks) for node in nodes)
    return f"{count(ranks, 'rank')} on {count(len(nodes), 'machine')}"


def _tiles(nodes: Sequence[NodeSummary]) -> Iterator[Tile]:
    timed = [node for node in nodes if node.metrics.get("own_time_ms") is not None]
    if timed:
        slowest = slowest_first(timed)[0]
        own, typical = slowest.metrics["own_time_ms"], _median(timed, "own_time_ms")
        is_late = bool(own and typical and len(timed) > 1 and own > LATE_TIMES * typical)
        yield Tile(
            "Slowest node" if is_late else "Own work by node",
            cell(slowest.name) if is_late else milliseconds(typical),
            note=f"{milliseconds(own)} of own work, median {milliseconds(typical)}"
            if is_late
            else "the median; no node is slower",
            tone="warn" if is_late else None,
        )
    uncertain = [node.clock_uncertainty_s for node in nodes if node.clock_uncertainty_s]
    if uncertain:
        words = "moments of nodes are known no better"
        yield Tile("Clocks within", duration(max(uncertain)), note=words)
    lacking = sum(bool(node.missing) for node in nodes)
    if lacking:
        yield Tile("Incomplete", count(lacking, "node"), note="see the table", tone="warn")


def _median(nodes: Sequence[NodeSummary], key: str) -> float | None:
    """Returns the lower one of two medians, as the summary does."""
    known = sorted(value for node in nodes if (value := node.metrics.get(key)) is not None)
    return known[(len(known) - 1) // 2] if known else None


# Tables

_Cell = Callable[["float | None"], str]


def _percent(value: float | None) -> str:
    return percent(None if value is None else value / 100)


_NUMBERS: dict[str, tuple[str, _Cell]] = {
    "Step": ("step_time_ms", milliseconds),
    "Own work": ("own_time_ms", milliseconds),
    "Comm.": ("communication_ms", milliseconds),
    "CPU": ("cpu_percent", _percent),
    "RAM": ("ram_bytes", memory),
    "GPU": ("gpu_util_percent", _percent),
    "GPU memory": ("gpu_mem_bytes", memory),
    "GPU clock": ("gpu_clock_percent", _percent),
}
"""The columns of numbers: key, and how a value is written."""


def _measured(nodes: Sequence[NodeSummary]) -> dict[str, tuple[str, _Cell]]:
    return {
        title: column
        for title, column in _NUMBERS.items()
        if any(node.metrics.get(column[0]) is not None for node in nodes)
    }


def _table(summary: Summary) -> Table:
    """Returns a row for each of the slowest nodes, with those first that a finding names."""
    nodes, shown = summary.nodes, _measured(summary.nodes)
    named = _named_nodes(summary)
    ordered = sorted(slowest_first(nodes), key=lambda node: node.name not in named)
    arrives = any(node.metrics.get("arrival_late_ms") is not None for node in nodes)
    lacks = any(node.missing for node in nodes)
    columns = ("Node", "Ranks", *shown, *(("Arrives",) if arrives else ()), "Clock", "Records")
    rows = tuple(
        Row(
            (
                cell(node.name),
                rank_range(node.ranks),
                *(write(node.metrics.get(key)) for key, write in shown.values()),
                *((_arrival(node),) if arrives else ()),
                clock_words(node),
                WAYS.get(node.way or "", "n/a"),
                *((", ".join(node.missing) or "nothing",) if lacks else ()),
            ),
            tone="warn" if node.name in named else None,
        )
        for node in ordered[:MAX_NODES]
    )
    return Table(
        "node-table",
        "Nodes, the slowest first",
        (*columns, *(("Missing",) if lacks else ())),
        rows,
        note=_table_note(len(nodes), arrives),
    )


def _named_nodes(summary: Summary) -> frozenset[str]:
    """Returns the nodes that warnings name."""
    sections = (summary.step_time, summary.system, summary.process)
    return frozenset(
        name
        for section in sections
        if section is not None
        for issue in section.issues
        if issue.severity in ("warn", "crit")
        for name in issue.nodes
    )


def _table_note(nodes: int, arrives: bool) -> str | None:
    said = [f"The slowest {MAX_NODES} of {count(nodes)} nodes."] if nodes > MAX_NODES else []
    if arrives:
        said.append(
            "Arrives: how much later than the others its ranks are ready to communicate; ± where "
            "the clocks are not known well enough to tell."
        )
    return " ".join(said) or None


def _arrival(node: NodeSummary) -> str:
    late, uncertain = (node.metrics.get(f"arrival_{name}_ms") for name in ("late", "uncertainty"))
    if late is None or uncertain is None:
        return "n/a"
    if abs(late) <= uncertain:
        return f"±{milliseconds(uncertain)}"
    return f"{milliseconds(abs(late))} {'later' if late > 0 else 'earlier'}"


def _spread(nodes: Sequence[NodeSummary]) -> Table | None:
    """Returns the distribution over many nodes; `None` where each has a row."""
    shown = _measured(nodes)
    if len(nodes) <= MAX_NODES or not shown:
        return None
    columns = {
        title: sorted(value for node in nodes if (value := node.metrics.get(key)) is not None)
        for title, (key, _) in shown.items()
    }
    places = {"Lowest": 0.0, "Median": 0.5, "95th percentile": 0.95, "Highest": 1.0}
    rows = tuple(
        Row(
            (
                name,
                *(
                    shown[title][1](known[int(place * (len(known) - 1))])
                    for title, known in columns.items()
                ),
            )
        )
        for name, place in places.items()
    )
    return Table("node-distribution", f"All {count(len(nodes))} nodes", ("", *shown), rows)


# A cell per rank


def _grid(nodes: Sequence[NodeSummary], section: SectionSummary) -> RankGrid | None:
    """Returns every rank's own time by node and place; `None` where no rank was timed."""
    rows = section.groups.rows
    own_s = {
        rank: own / 1e3
        for node in nodes
        for rank in node.ranks
        if (row := rows.get(str(rank))) is not None and (own := own_ms(row.metrics)) is not None
    }
    if len(own_s) < 2:
        return None
    low_s, high_s = heat_range(np.array(list(own_s.values()))[:, None])
    unit, is_own = time_unit(high_s), waits_are_known(rows.values())
    return RankGrid(
        id="rank-grid",
        title=f"{'Own' if is_own else 'Step'} time of every rank by node",
        nodes=tuple(cell(node.name) for node in nodes),
        ranks=tuple(node.ranks for node in nodes),
        values=tuple(
            tuple(
                None if (value := own_s.get(rank)) is None else scaled_one(value, unit)
                for rank in node.ranks
            )
            for node in nodes
        ),
        value=Axis(
            "per step", unit.symbol, low=scaled_one(low_s, unit), high=scaled_one(high_s, unit)
        ),
        caption=f"A column is a node, a cell one of its ranks; {OWN}." if is_own else None,
    )
