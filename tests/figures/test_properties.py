"""Whatever was measured or not: a page is strict JSON, and its figures are whole."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from drawn_runs import figures, history_of, lengths_agree, standing_of
from factories import make_run, make_waiting
from failing import failed, report
from layer_runs import kernel_step, layer_records, with_layers
from traceml.compare.pair import compare
from traceml.facts.history import History
from traceml.figures.colours import PALETTE
from traceml.figures.comparison_page import comparison_page
from traceml.figures.layer_record import LayerTree
from traceml.figures.page import Branch, Figure, Page, RunPage, Tree, Waterfall
from traceml.figures.run_page import run_page, step_figures
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary

RUNS = {
    "one rank": make_run(steps=40),
    "a straggler": make_waiting(
        make_run(ranks=3, steps=40, gpu=True, communication_ms=2, h2d_ms=1, slow_rank=1)
    ),
    "many ranks": make_run(ranks=20, steps=12),
    "nothing but steps": make_run(
        steps=30, input_ms=None, forward_ms=None, backward_ms=None, optimizer_ms=None, sampled_s=0
    ),
    "no steps": make_run(steps=0),
    "failed": failed(report()),
    "a deep profile": with_layers(
        make_run(steps=40),
        layer_records(
            forward_ms={"": 1.0, "blocks.0": 2.0, "blocks.1": 3.0},
            backward_ms={"": 1.0, "blocks.0": 2.0, "blocks.1": 3.0},
            held={"saved": [0, 1 << 20, 1 << 20]},
            kernels=(kernel_step(9.0, [("gemm", 12, 8_000_000, 0)], (3.0, 3.0, 3.0)),),
            notes=("one is compiled",),
        ),
    ),
}


def colours(drawn: Figure) -> set[str]:
    if isinstance(drawn, Tree):
        return _of_branch(drawn.root)
    if isinstance(drawn, Waterfall):
        return {change.colour for change in drawn.changes}
    if isinstance(drawn, LayerTree):
        return {colour for bar in drawn.bars for colour in bar.colours}
    return {series.colour for series in getattr(drawn, "series", ())}


def _of_branch(branch: Branch) -> set[str]:
    return {branch.colour}.union(*map(_of_branch, branch.parts))


def check(page: Page) -> None:
    encoded = msgspec.json.encode(page)
    assert b"NaN" not in encoded and b"Infinity" not in encoded
    decoded = msgspec.json.decode(encoded, type=type(page))
    assert decoded == page
    for drawn in figures(page):
        assert lengths_agree(drawn), drawn.id
        assert colours(drawn) <= PALETTE.keys()
    if not isinstance(page, RunPage):
        return
    names = [drawn.id for drawn in figures(page)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("state", ["live", "finished", "failed", "lost"])
def test_every_page_is_strict_json_and_whole(name: str, state: str) -> None:
    run = RUNS[name]
    standing = standing_of(state, None if state in ("live", "lost") else 0)
    check(run_page(build(run, 0.0, "0"), standing, history_of(run)))
    check(run_page(None, standing, history_of(run)))
    check(run_page(build(run, 0.0, "0"), standing, History()))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_removing_a_measurement_never_breaks_the_page(data: st.DataObject) -> None:
    run: RunRecords = RUNS[
        data.draw(st.sampled_from(["one rank", "a straggler", "failed", "a deep profile"]))
    ]
    document = msgspec.to_builtins(build(run, 0.0, "0"))
    for _ in range(data.draw(st.integers(1, 6))):
        _forget(document, data)
    try:
        summary = msgspec.convert(document, Summary)
    except msgspec.ValidationError:  # what a series or a region cannot be without
        reject()
    check(run_page(summary, standing_of(), _with_gaps(history_of(run), data)))
    check(comparison_page(compare(summary, build(run, 0.0, "0"), ("a", "b"))))


def _forget(document: dict[str, Any], data: st.DataObject) -> None:
    """Take something away, somewhere."""
    while True:
        name = data.draw(st.sampled_from(sorted(document)))
        below = document[name]
        if isinstance(below, dict) and below and data.draw(st.booleans()):
            document = below
            continue
        del document[name]
        return


def _with_gaps(history: History, data: st.DataObject) -> History:
    if history.steps is None:
        return history
    arrays = [
        field.name
        for field in fields(history.steps)
        if isinstance(getattr(history.steps, field.name), np.ndarray)
    ]
    lost = data.draw(st.sets(st.sampled_from(arrays[2:])))
    gone = {name: np.full_like(getattr(history.steps, name), np.nan) for name in lost}
    kept = data.draw(st.sets(st.sampled_from(sorted(history.steps.phase_s))))
    phases = {phase: history.steps.phase_s[phase] for phase in kept}
    return replace(history, steps=replace(history.steps, phase_s=phases, **gone))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_compared_with_itself_has_a_page_without_a_change(name: str) -> None:
    summary = build(RUNS[name], 0.0, "0")
    page = comparison_page(compare(summary, summary, ("same", "same")))
    check(page)
    assert page.verdict.status == "NO CHANGE"
    drawn = [each for part in page.parts for each in part.figures if isinstance(each, Waterfall)]
    assert all(change.is_total for waterfall in drawn for change in waterfall.changes)


@pytest.mark.parametrize("name", ["slow_input_cpu", "fast_input_cpu"])
def test_a_summary_that_somebody_else_wrote_has_a_page(name: str) -> None:
    summary = read_summary(Path(__file__).parents[1] / "data" / "peer" / f"{name}.json")
    page = run_page(summary, standing_of(), History())
    check(page)
    assert page.verdict.status == "INPUT-BOUND"
    assert page.parts[0].id == "step-time"


def test_an_empty_summary_has_a_page() -> None:
    check(run_page(Summary(), standing_of(), History()))


def test_steps_of_which_nothing_is_known_have_no_figures() -> None:
    history = history_of(make_run(steps=10)).steps
    assert history is not None
    gone = {
        name: np.full_like(getattr(history, name), np.nan)
        for name in ("step_s", "longest_s", "between_s", "rss_bytes", "loss")
    }
    assert step_figures(History(steps=replace(history, phase_s={}, **gone)), None) == ()
