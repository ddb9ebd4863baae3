"""What every surface shows of a run that measured each phase and metric of the catalogues.

`python tests/catalogue_surfaces.py` prints it as JSON: `tests/test_catalogue.py` asks so what a
package shows in whose catalogues something was planted.
"""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from drawn_runs import page_of, step_history
from factories import count_gpus, make_rank, make_run, make_steps
from traceml.compare.pair import compare
from traceml.compare.record import Comparison
from traceml.compare.terms import ENDPOINTS
from traceml.diagnose.time_account import held_s
from traceml.facts.gather import gather
from traceml.figures.page import Bars, Figure, Lines, RunPage, Tree
from traceml.model import record_layout
from traceml.model.phase import MEASURED
from traceml.steps import events
from traceml.steps.step_machine import StepMachine
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.text.changes import rows
from traceml.text.summary import summary_text
from traceml.tui.charts import chart
from traceml.tui.palette import Ink
from traceml.web.typescript import typescript

DOCS = Path(__file__).parents[1] / "docs"


def measured_run(times: float = 1.0, steps: int = 60) -> RunRecords:
    """Two ranks with a GPU each that measure every phase; `times` says how long they take."""
    parts: dict[str, float | None] = {
        phase.value: times * (4.0 + place) for place, phase in enumerate(MEASURED)
    }
    run = make_run(ranks=2, steps=steps, gpu=True, sampled_s=30)
    made = make_steps(parts, np.ones(steps), rest_ms=times * 3.0, between_ms=1.0, gpu=True)
    ranks = tuple(make_rank(made, rank, 2, gpu=True) for rank in range(2))
    return count_gpus(replace(run, ranks=ranks), busy_share=0.9 / times)


def surfaces() -> dict[str, Any]:
    """By surface, the names, keys or words that it has; what JSON knows no better is a list."""
    run, slower = measured_run(), measured_run(2.0)
    summary, page = build(run, 0.0, "0"), page_of(run)
    assert summary.step_time is not None and summary.steps is not None
    compared = compare(summary, build(slower, 0.0, "0"), ("a", "b"))
    history = step_history(run)
    assert history is not None
    average = summary.step_time.global_.average
    found = {
        "record": [name for name, _ in (*record_layout.STEP, *record_layout.BLOCK)],
        "step of events": _of_events(),
        "summary": [key for key, value in average.items() if value is not None],
        "summary, rank": [
            key for key, value in summary.step_time.groups.rows["1"].metrics.items() if value
        ],
        "summary, blocks": list(summary.steps.part_block_means_ms),
        "summary, system": list(summary.system.global_.average) if summary.system else [],
        "account of lost time": [stage.value for stage in held_s(gather(run).mean)],
        "browser's history": [phase.value for phase in history.phase_s],
        "text": summary_text(summary),
        **_of_page(page),
        "colours of the viewer": typescript(),
        "words of --metric": list(ENDPOINTS),
        **_of_comparison(compared),
        **_of_docs(),
    }
    as_json: dict[str, Any] = json.loads(json.dumps(found))
    return as_json


def _of_events() -> list[str]:
    """The fields that are measured in a step whose events name each phase, on both clocks."""
    machine = StepMachine()
    machine.is_timed = events.TIMED
    noted = [(events.ENTER_STEP, 0)]
    noted += [
        (kind, place)
        for place in events.PHASE_PLACES.values()
        for kind in (events.BEGIN, events.END)
    ]
    noted += [(events.EXIT_STEP, events.step_ended(1, False))]
    for mark, (kind, argument) in enumerate(noted, start=1):
        machine.handlers[kind](argument, 10 * mark, mark, events.TIMED)
    for mark in range(1, len(noted) + 1):
        machine.handlers[events.REACH_MARK](10, 0, mark, 0)
    (row,) = machine.rows.done
    return [name for (name, _), value in zip(record_layout.STEP, row, strict=True) if value > 0]


def _of_page(page: RunPage) -> dict[str, Any]:
    figures: list[Figure] = [figure for part in page.parts for figure in part.figures]
    tables = {table.id: table.columns for part in page.parts for table in part.tables}
    stack = next(each for each in figures if isinstance(each, Lines) and each.id == "step-time")
    tree = next(each for each in figures if isinstance(each, Tree))
    bars = next(each for each in figures if isinstance(each, Bars))
    drawn = chart(stack, 200, Ink(is_dark=True), has_colours=True)
    return {
        "page, stack": [(series.name, series.colour) for series in stack.series],
        "page, tree": msgspec.json.encode(tree).decode(),
        "page, bars": [(series.name, series.colour) for series in bars.series],
        "page, step table": tables["step-time-table"],
        "page, rank table": tables["rank-table"],
        "terminal": "" if drawn is None else drawn.plain,
    }


def _of_comparison(compared: Comparison) -> dict[str, Any]:
    return {
        "comparison, metrics": list(compared.sections["step_time"].metrics),
        "comparison, waterfall": list(compared.waterfall_ms or {}),
        "comparison, rows": [row.label.strip() for row in rows(compared)],
    }


def _of_docs() -> dict[str, str]:
    """The generated pages as they would be written."""
    sys.path.insert(0, str(DOCS))
    try:
        pages = runpy.run_path(str(DOCS / "write_catalogues.py"))["pages"]()
    finally:
        sys.path.remove(str(DOCS))
    return {f"docs/{path.name}": text for path, text in pages.items()}


if __name__ == "__main__":
    print(json.dumps(surfaces()))
