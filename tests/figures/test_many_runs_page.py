"""The page of many runs has the facts of their comparison, each run against the first."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from compared_runs import run
from traceml.compare.many_runs import Candidate, compare_many, labels_of
from traceml.facts.metric_history import thinned
from traceml.figures.code_difference import CodeDifference
from traceml.figures.compared_run import ComparedRun
from traceml.figures.many_runs_page import MAX_RUNS, ManyRuns, many_runs_page
from traceml.figures.page import ManyRunsPage, Part, WideGrid
from traceml.figures.run_overlays import overlays
from traceml.summaries.record import Summary
from traceml.text.many_runs import many_text

HOSTILE = "</script><b>\x1b[31m" + "x" * 300


def trained(name: str, loss: float | None, step_ms: float = 100.0, **fields: Any) -> Candidate:
    document: dict[str, Any] = {
        "metrics": {"val/loss": {"count": 3, "last": loss, "last_step": 9}},
        "params": {"lr": 0.1, "width": 8},
        "duration_s": 60.0,
        "primary_diagnosis": {"status": "BALANCED"},
        **fields,
    }
    return Candidate(name, run({"step_time_ms": step_ms}, **document))


SWEEP = (
    trained("base", 1.0),
    trained("fast", 0.9, 50.0, params={"lr": 0.2, "width": 8}, duration_s=30.0),
    trained("wide", 0.8, 200.0, params={"lr": 0.1, "width": 16}, duration_s=120.0),
)


def page_of(candidates: tuple[Candidate, ...], **more: Any) -> ManyRunsPage:
    letters = labels_of([each.summary for each in candidates])
    runs = tuple(
        ComparedRun(letter, each.name, each.summary, is_served=True)
        for letter, each in zip(letters, candidates, strict=True)
    )
    first = {each.label: each for each in reversed(runs)}
    found = compare_many(candidates)
    entries = tuple(first[entry.label] for entry in found.entries)
    return many_runs_page(ManyRuns(found=found, entries=entries, runs=runs, **more))


def part(page: ManyRunsPage, name: str) -> Part:
    (found,) = [each for each in page.parts if each.id == name]
    return found


def grid(page: ManyRunsPage, name: str) -> WideGrid:
    (found,) = part(page, name).grids
    return found


def rows(found: WideGrid) -> dict[str, list[str]]:
    return {row.name: [cell.text for cell in row.cells] for row in found.rows if row.differs}


def test_the_verdict_counts_and_names_the_best_as_the_text_does() -> None:
    page = page_of(SWEEP)
    assert page.title == "base and 2 more"
    assert page.verdict.status == "1 × REGRESSION · 1 × IMPROVEMENT"
    assert page.verdict.severity == "crit"
    assert page.verdict.why.startswith("Best val/loss: 0.8 with lr 0.1, width 16 (C)")
    said = " ".join(many_text(compare_many(SWEEP)).split())
    assert page.verdict.why in said


def test_every_run_has_a_row_and_each_other_one_its_verdict() -> None:
    runs, verdicts = part(page_of(SWEEP), "runs").tables
    assert [row.cells[:3] for row in runs.rows] == [
        ("A: base", "baseline", "100.0 ms"),
        ("B: fast", "IMPROVEMENT", "50.0 ms"),
        ("C: wide", "REGRESSION", "200.0 ms"),
    ]
    assert [row.link for row in runs.rows] == ["/runs/base", "/runs/fast", "/runs/wide"]
    assert [row.tone for row in runs.rows] == [None, "good", "crit"]
    assert [row.link for row in verdicts.rows] == [
        "/compare?a=base&b=fast",
        "/compare?a=base&b=wide",
    ]
    assert verdicts.rows[0].cells[0] == "A → B"


def test_parameters_that_differ_come_first_and_the_others_wait() -> None:
    found = grid(page_of(SWEEP), "parameters")
    assert rows(found) == {"lr": ["0.1", "0.2", "0.1"], "width": ["8", "8", "16"]}
    same = trained("base", 1.0, params={"lr": 0.1, "width": 8, "amp": True})
    found = grid(page_of((same, *SWEEP[1:])), "parameters")
    assert rows(found)["amp"] == ["True", "–", "–"]


def test_a_metric_has_its_value_and_below_it_the_change() -> None:
    found = grid(page_of(SWEEP), "metrics")
    assert rows(found)["val/loss"] == ["1", "0.9", "0.8"]
    (row,) = [row for row in found.rows if row.name == "val/loss"]
    assert [cell.note for cell in row.cells] == [None, "-10.0% better", "-20.0% better"]
    assert [cell.tone for cell in row.cells] == [None, None, None]  # one run each shows nothing


def test_phases_of_all_runs_have_one_scale() -> None:
    def phased(name: str, forward_ms: float) -> Candidate:
        times = {
            "step_time_ms": forward_ms + 3,
            "input_wait_ms": 1.0,
            "forward_ms": forward_ms,
            "backward_ms": 1.0,
            "optimizer_ms": 1.0,
            "compute_ms": forward_ms + 2,
            "traced_step_time_ms": forward_ms + 2,
            "residual_ms": 0.0,
        }
        return Candidate(name, run(dict(times), params={"name": name}))

    page = page_of((phased("a", 1.0), phased("b", 5.0), Candidate("none", Summary())))
    (bars,) = part(page, "phases").figures
    assert bars.categories == ("A: a", "B: b")
    assert part(page, "phases").note == "No step was measured in C."


def test_quality_against_cost_marks_the_best_trade_offs() -> None:
    (points,) = part(page_of(SWEEP), "trade-offs").figures
    assert [(point.label, point.is_filled) for point in points.points] == [
        ("A", False),
        ("B", True),
        ("C", True),
    ]


def test_a_value_that_no_chart_has_a_place_for_is_left_out() -> None:
    (points,) = part(
        page_of((*SWEEP, trained("huge", 1e305, duration_s=1.0))), "trade-offs"
    ).figures
    assert [point.label for point in points.points] == ["A", "B", "C"]


def test_one_parameter_at_a_time() -> None:
    found = grid(page_of(SWEEP), "effects")
    assert [column.label for column in found.columns] == ["val/loss", "Step time"]
    assert rows(found) == {
        "lr: 0.1 → 0.2 (1 pair)": ["1 → 0.9", "100.0 ms → 50.0 ms"],
        "width: 8 → 16 (1 pair)": ["1 → 0.8", "100.0 ms → 200.0 ms"],
    }


def test_findings_are_beside_each_other() -> None:
    issue = {"kind": "INPUT_BOUND", "status": "INPUT-BOUND", "severity": "warn", "summary": "slow"}
    section = {"diagnosis": issue, "issues": [issue]}
    slow = trained("slow", 1.0, step_time=section)
    found = grid(page_of((SWEEP[0], slow, SWEEP[1])), "findings")
    assert rows(found)["INPUT-BOUND (step time)"] == ["–", "warning", "–"]


def test_runs_that_share_the_code_are_named_and_each_other_code_has_its_difference() -> None:
    diff = "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n--- old\n+new\n"
    code = (CodeDifference(("B",), ""), CodeDifference(("C",), diff))
    found = part(page_of(SWEEP, code=code), "code")
    assert found.note == "The same code as A: B."
    (shown,) = found.diffs
    assert shown.title == "A → C"
    assert [line.op for line in shown.lines] == ["head"] * 4 + ["removed", "added"]


def test_curves_of_runs_of_different_length_stand_in_one_chart() -> None:
    def curve(name: str, steps: int, loss: float) -> ComparedRun:
        at = np.arange(1, steps + 1)
        values = np.full(steps, loss)
        values[:1] = math.nan
        return ComparedRun(name.upper(), name, Summary(), (thinned("loss", at, values),))

    (lines,) = overlays([curve("a", 50, 1.0), curve("b", 80, 2.0), curve("c", 0, 1.0)], ["loss"])
    assert [series.name for series in lines.series] == ["A: a", "B: b"]
    assert [len(series.at or ()) for series in lines.series] == [50, 80]
    assert (lines.x.low, lines.x.high) == (1.0, 80.0)
    assert [mark.label for mark in lines.marks] == ["A: NaN", "B: NaN"]
    assert lines.caption == "Not logged in C."


def test_metrics_that_are_not_drawn_can_be_asked_for() -> None:
    found = part(page_of(SWEEP, further=("acc", "bleu")), "curves")
    assert found.further_curves == ("acc", "bleu")
    assert found.note == "2 more logged metrics are not drawn."


@pytest.mark.parametrize("loss", [None, math.nan, math.inf, 1e308, -0.0])
def test_whatever_a_run_is_called_or_logged_there_is_a_page(loss: float | None) -> None:
    hostile = trained(HOSTILE, loss, params={HOSTILE: HOSTILE, "lr": math.nan})
    page = page_of((*SWEEP, hostile))
    grids = [each for one in page.parts for each in one.grids]
    cells = [cell.text for each in grids for row in each.rows for cell in row.cells]
    cells += [row.name for each in grids for row in each.rows]
    tables = [each for one in page.parts for each in one.tables]
    cells += [cell for each in tables for row in each.rows for cell in row.cells[:1]]
    assert any("</script>" in cell for cell in cells)
    assert all("\x1b" not in cell and len(cell) <= 160 for cell in cells)
    assert all(len(row.cells) == len(each.columns) for each in grids for row in each.rows)
    msgspec.json.decode(msgspec.json.encode(page))


def test_twenty_runs_with_two_hundred_parameters_and_metrics_stay_small() -> None:
    def large(place: int) -> Candidate:
        metrics = {f"m/{n}": {"count": 3, "last": float(n + place)} for n in range(200)}
        params = {f"p.{n}": (place if n < 3 else n) for n in range(200)}
        return trained(f"run-{place}", 1.0, metrics=metrics, params=params)

    page = page_of(tuple(large(place) for place in range(MAX_RUNS)))
    found = grid(page, "parameters")
    assert (len(found.columns), len(found.rows)) == (20, 200)
    assert sum(row.differs for row in found.rows) == 3
    assert len(msgspec.json.encode(page)) < 2 << 20
