"""The part of a comparison's page about layers; there where both sides have a deep profile."""

from __future__ import annotations

from collections.abc import Sequence

from traceml.compare.many_record import LayerOfRuns, ManyLayers
from traceml.compare.record import Delta, LayerChange, LayerComparison, LayerMemoryChange
from traceml.figures.compared_run import ComparedRun
from traceml.figures.page import GridCell, GridRow, Part, Row, Table, Tone, WideGrid
from traceml.figures.words import cell, line
from traceml.model.quantities import count, memory, milliseconds, percent
from traceml.text.layer_changes import (
    HELD,
    interval_words,
    layer_notes,
    names_told,
    none_moved,
    none_moved_in_runs,
    row_change,
    row_names,
    row_value,
    signed_memory,
    unit_name,
)

MAX_ROWS = 40
"""Of each table; the JSON file has more of them."""


def layer_changes_part(found: LayerComparison | None) -> Part | None:
    """Returns the layers that moved; `None` where a side has no layers."""
    if found is None:
        return None
    tables = [table for table in (_times(found), _memory(found)) if table is not None]
    return Part(
        id="layers",
        title="Layers",
        note=" ".join(_told(found)),
        tables=tuple(tables),
        is_wide=bool(tables),
    )


def layer_grid_part(found: ManyLayers | None, runs: Sequence[ComparedRun]) -> Part | None:
    """Returns the layers that moved in some of many runs, with a column per run; `None` where no
    two runs have layers."""
    if found is None:
        return None
    notes = " ".join(line(note, 300) for note in layer_notes(found))
    said = none_moved_in_runs(found, "the baseline")
    if said:
        return Part(id="layers", title="Layers", note=f"{said} {notes}".strip())
    whole = tuple(
        GridCell(
            milliseconds(found.time_ms.get(run.label, Delta()).rhs),
            note=row_change(found.time_ms.get(run.label, Delta())) or None,
        )
        for run in runs
    )
    shown = found.rows[:MAX_ROWS]
    rows = tuple(
        GridRow(name, tuple(_grid_cell(row, run.label) for run in runs))
        for name, row in zip(row_names(shown), shown, strict=True)
    )
    grid = WideGrid(
        id="layer-grid",
        title="Layers that moved",
        columns=tuple(run.column for run in runs),
        rows=(GridRow("All layers", whole), *rows),
        note=_hidden(
            found.rows_in_all - len(rows),
            "Own time per step, without the layers below. Coloured: p < 0.05, corrected for all "
            "layers and runs; of memory, every change.",
        ),
    )
    return Part(id="layers", title="Layers", note=notes or None, grids=(grid,), is_wide=True)


def _grid_cell(row: LayerOfRuns, label: str) -> GridCell:
    change = row.changes.get(label, Delta())
    is_shown = change.significant or (row.what != "time" and change.delta)
    tone: Tone | None = None
    if is_shown:
        tone = "crit" if (change.delta or 0.0) > 0 else "good"
    return GridCell(row_value(row, change.rhs), note=row_change(change) or None, tone=tone)


def _told(found: LayerComparison) -> list[str]:
    whole = found.time_ms
    words = f"{count(found.compared, 'layer')} compared"
    if whole.lhs is not None and whole.rhs is not None:
        words += f", {milliseconds(whole.lhs)} → {milliseconds(whole.rhs)} in all"
    none = none_moved(found)
    return [
        f"{words}.",
        *filter(None, (none,)),
        *map(line, names_told(found)),
        *map(line, found.notes),
    ]


def _times(found: LayerComparison) -> Table | None:
    if not found.moved:
        return None
    rows = tuple(_time_row(each) for each in found.moved[:MAX_ROWS])
    return Table(
        id="layer-times-table",
        title="Layers that take more or less time",
        columns=("Layer", "Class", "A", "B", "Delta", "", "95% CI"),
        rows=rows,
        note=_hidden(
            found.moved_in_all - len(rows),
            "Own time per step, without the layers below; p < 0.05, corrected for all layers.",
        ),
    )


def _time_row(each: LayerChange) -> Row:
    change = each.change
    tone: Tone = "crit" if (change.delta or 0.0) > 0 else "good"
    share = "" if change.pct_change is None else percent(change.pct_change / 100, signed=True)
    cells = (
        unit_name(each),
        cell(each.kind),
        milliseconds(change.lhs),
        milliseconds(change.rhs),
        milliseconds(change.delta, signed=True),
        share,
        interval_words(each),
    )
    return Row(cells, tone)


def _memory(found: LayerComparison) -> Table | None:
    if not found.memory:
        return None
    rows = tuple(_memory_row(each) for each in found.memory[:MAX_ROWS])
    return Table(
        id="layer-memory-table",
        title="Layers that hold more or less memory",
        columns=("Layer", "Class", "What", "A", "B", "Delta"),
        rows=rows,
        note=_hidden(found.memory_in_all - len(rows), ""),
    )


def _memory_row(each: LayerMemoryChange) -> Row:
    change = each.change
    cells = (
        unit_name(each),
        cell(each.kind),
        HELD[each.what],
        memory(change.lhs),
        memory(change.rhs),
        signed_memory(change.delta),
    )
    return Row(cells)


def _hidden(number: int, words: str) -> str | None:
    more = f"{count(number)} more, in the JSON file." if number > 0 else ""
    return f"{words} {more}".strip() or None
