"""The part of a run's page about the steps that were recorded with torch's profiler."""

from __future__ import annotations

from traceml.figures.logged_files import file_link
from traceml.figures.page import Part, Row, Table, Tile
from traceml.figures.words import cell, joined, line
from traceml.model.quantities import count, memory, milliseconds
from traceml.summaries.step_traces import KinetoSummary
from traceml.text.step_traces import OPEN_WORDS, choice_words

MAX_ROWS = 64
MAX_NOTES = 5


def step_traces_part(found: KinetoSummary | None, run_name: str) -> Part | None:
    """Returns the recorded steps, each with its file to download; `None` where no traces were
    asked for."""
    if found is None:
        return None
    notes = [line(note) for note in found.notes[:MAX_NOTES]]
    return Part(
        id="traces",
        title="Step traces",
        note=joined(notes) or None,
        tiles=tuple(_tiles(found)),
        tables=(_files(found, run_name),) if found.traces else (),
        is_wide=True,
    )


def _tiles(found: KinetoSummary) -> list[Tile]:
    asked = f"{count(found.asked)} per rank asked for"
    tiles = [Tile("Traces kept", count(len(found.traces)), note=asked)]
    if found.recorded:
        recorded = f"median {milliseconds(found.recorded_median_ms)} while recorded"
        tiles.append(Tile("Steps recorded", count(found.recorded), note=recorded))
        cost = "those steps are in no mean"
        tiles.append(Tile("Taken from training", milliseconds(found.cost_ms), note=cost))
    if found.slowest_step is not None:
        slowest = f"step {count(found.slowest_step)}; the median is {milliseconds(found.median_ms)}"
        tiles.append(Tile("Slowest not recorded", milliseconds(found.slowest_ms), note=slowest))
    return tiles


def _files(found: KinetoSummary, run_name: str) -> Table:
    rows = tuple(
        Row(
            (
                cell(each.file),
                cell(each.chosen_as),
                count(each.rank),
                count(each.step),
                milliseconds(each.time_ms),
                memory(each.size_bytes),
            ),
            link=file_link(run_name, each.file),
        )
        for each in found.traces[:MAX_ROWS]
    )
    hidden = len(found.traces) - len(rows)
    more = f" {count(hidden)} more are in the summary." if hidden > 0 else ""
    return Table(
        id="traces-table",
        title="Files in the run folder",
        columns=("File", "Chosen as", "Rank", "Step", "Time", "Size"),
        rows=rows,
        note=f"{' '.join(choice_words(found))} {OPEN_WORDS}{more}",
    )
