"""The page of one run: a part for everything that was measured."""

from __future__ import annotations

from collections.abc import Sequence

from traceml.facts.history import History
from traceml.figures import charts_over_steps
from traceml.figures.failure import failure_part
from traceml.figures.findings import rail
from traceml.figures.goodput import goodput_part
from traceml.figures.head import RunStanding, run_head
from traceml.figures.host_time import host_time_part
from traceml.figures.layers import layers_part
from traceml.figures.logged_files import logged_files_part
from traceml.figures.metrics import metric_figures, metrics_part
from traceml.figures.nodes import nodes_part
from traceml.figures.origin import origin_part, tracer_part
from traceml.figures.page import Figure, Part, Picture, RunPage
from traceml.figures.process import process_part
from traceml.figures.rank_lens import choose_lens, lens_choices
from traceml.figures.step_memory import memory_lines, step_memory_part
from traceml.figures.step_time import step_time_part
from traceml.figures.step_traces import step_traces_part
from traceml.figures.system import gpu_part, system_part
from traceml.figures.verdict import run_verdict
from traceml.figures.words import line, output_line
from traceml.summaries.record import Summary

_NO_HISTORY = History()


def run_page(
    summary: Summary | None,
    standing: RunStanding,
    history: History,
    lens_id: str | None = None,
    pictures: Sequence[Picture] = (),
    layers: Part | None = None,
    host_time: Part | None = None,
) -> RunPage:
    """Returns the whole page; what was not measured is left out.

    `lens_id` is whose step is shown (`figures/rank_lens.py`); `None` for the usual choice.
    `pictures` are the images that the script logged. `layers` and `host_time` are
    parts of a run in progress, whose summary has none.
    """
    section = None if summary is None else summary.step_time
    lens = choose_lens(section, lens_id)
    steps, sensors = history.steps, history.sensors
    parts = (
        failure_part(summary),
        step_time_part(summary, steps, lens),
        nodes_part(summary),
        layers or layers_part(None if summary is None else summary.layers),
        step_traces_part(None if summary is None else summary.kineto, standing.manifest.run_name),
        host_time or host_time_part(None if summary is None else summary.host_time),
        goodput_part(summary, standing.state == "live"),
        step_memory_part(summary, history),
        metrics_part(summary, history),
        process_part(summary, sensors),
        system_part(summary, sensors),
        gpu_part(summary, sensors),
        logged_files_part(summary, standing.manifest.run_name, pictures),
        origin_part(summary, standing),
        tracer_part(summary),
    )
    return RunPage(
        head=run_head(summary, standing, history),
        verdict=run_verdict(summary, standing, history),
        rail=() if summary is None else rail(summary),
        parts=tuple(part for part in parts if part is not None),
        lens=lens.id,
        lenses=lens_choices(section),
        output=None if standing.output is None else tuple(map(output_line, standing.output)),
        notes=tuple(map(line, standing.notes)),
    )


def step_figures(
    history: History,
    summary: Summary | None,
    whole: History | None = None,
    lens_id: str | None = None,
) -> tuple[Figure, ...]:
    """Returns the charts that can be zoomed, for the given steps; with the same ids as on the page.

    `whole` is the history of the whole run, which decides what there is to draw.
    """
    steps = history.steps
    lens = choose_lens(None if summary is None else summary.step_time, lens_id)
    drawn: list[Figure | None] = []
    if steps is not None:
        drawn += [
            charts_over_steps.stacked_phases(lens.history(steps), summary, lens.words),
            charts_over_steps.rank_spread(steps),
            charts_over_steps.rank_heat(steps),
            *memory_lines(steps, summary),
        ]
    drawn += metric_figures(summary, history, whole)
    return tuple(figure for figure in drawn if figure is not None)
