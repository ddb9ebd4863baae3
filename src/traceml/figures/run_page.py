"""The page of one run: head, verdict, findings, and a part for everything that was measured."""

from __future__ import annotations

from traceml.facts.history import History, StepHistory
from traceml.figures import over_steps
from traceml.figures.failure import failure_part
from traceml.figures.findings import rail
from traceml.figures.head import run_head
from traceml.figures.metrics import loss_lines, metrics_part
from traceml.figures.origin import origin_part, tracer_part
from traceml.figures.page import Figure, RunPage
from traceml.figures.process import process_part
from traceml.figures.standing import RunStanding
from traceml.figures.step_memory import memory_lines, step_memory_part
from traceml.figures.step_time import step_time_part
from traceml.figures.system import gpu_part, system_part
from traceml.figures.verdict import run_verdict
from traceml.figures.words import line, output_line
from traceml.summaries.record import Summary

__all__ = ["RunStanding", "run_page", "step_figures"]


def run_page(summary: Summary | None, standing: RunStanding, history: History) -> RunPage:
    """Returns the whole page; what was not measured is left out."""
    steps, sensors = history.steps, history.sensors
    parts = (
        failure_part(summary),
        step_time_part(summary, steps),
        step_memory_part(summary, history),
        metrics_part(summary, history),
        process_part(summary, sensors),
        system_part(summary, sensors),
        gpu_part(summary, sensors),
        origin_part(summary, standing),
        tracer_part(summary),
    )
    return RunPage(
        head=run_head(summary, standing, history),
        verdict=run_verdict(summary, standing, history),
        rail=() if summary is None else rail(summary),
        parts=tuple(part for part in parts if part is not None),
        output=None if standing.output is None else tuple(map(output_line, standing.output)),
        notes=tuple(map(line, standing.notes)),
    )


def step_figures(history: StepHistory, summary: Summary | None) -> tuple[Figure, ...]:
    """Returns the charts that can be zoomed, for the given steps; with the same ids as on the
    page."""
    drawn = (
        over_steps.stacked_phases(history, summary),
        over_steps.rank_spread(history),
        over_steps.rank_heat(history),
        *memory_lines(history, summary),
        loss_lines(history, summary),
    )
    return tuple(figure for figure in drawn if figure is not None)
