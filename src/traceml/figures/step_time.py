"""The part of the page on step time: how long a step takes, where it goes, and on which rank."""

from __future__ import annotations

from collections.abc import Iterator

from traceml.facts.history import StepHistory
from traceml.figures import charts_over_steps, step_shares
from traceml.figures.findings import lead_card, leading, tone
from traceml.figures.page import Figure, Part, Tile, Tone
from traceml.figures.rank_lens import RankLens
from traceml.figures.step_shares import (
    PARTS,
    straggling,
    typical_and_worst,
)
from traceml.figures.step_table import many_ranks_table, mesh_table, rank_table, step_table
from traceml.figures.words import cell, joined, rank_words
from traceml.model.finding import Section
from traceml.model.phase import Phase
from traceml.model.quantities import MIN_TIMES, count, excess, milliseconds, percent, rate
from traceml.summaries.own_time import own_ms, waits_are_known
from traceml.summaries.record import SectionSummary, Summary
from traceml.summaries.step_parts import step_parts


def step_time_part(
    summary: Summary | None, history: StepHistory | None, lens: RankLens
) -> Part | None:
    """Returns tiles, charts and tables of the step; `None` where no step was measured."""
    section = None if summary is None else summary.step_time
    figures = tuple(_figures(summary, section, history, lens))
    if section is None:
        return Part("step-time", "Step time", figures=figures, is_wide=True) if figures else None
    every = (
        step_table(section),
        many_ranks_table(section),
        rank_table(section),
        mesh_table(section),
    )
    tables = tuple(table for table in every if table)
    if not figures and not tables:
        return None
    return Part(
        id="step-time",
        title="Step time",
        note=_window(section),
        finding=None if summary is None else lead_card(summary, Section.STEP_TIME.value),
        tiles=tuple(_tiles(section, lens)),
        figures=figures,
        tables=tables,
        is_wide=True,
        has_lens=len(section.groups.rows) > 1,
    )


def _figures(
    summary: Summary | None,
    section: SectionSummary | None,
    history: StepHistory | None,
    lens: RankLens,
) -> Iterator[Figure]:
    drawn: list[Figure | None] = []
    if history is not None:
        drawn.append(charts_over_steps.stacked_phases(lens.history(history), summary, lens.words))
    if section is not None:
        drawn += [
            step_shares.phase_tree(section, lens.metrics(section), lens.words),
            step_shares.median_and_worst(section),
        ]
    if history is not None:
        drawn += [charts_over_steps.rank_spread(history), charts_over_steps.rank_heat(history)]
    yield from (figure for figure in drawn if figure is not None)


def _window(section: SectionSummary) -> str | None:
    """Returns in words which steps the numbers cover; for a run in progress its last steps."""
    window = section.global_.window
    if window.steps_analyzed is None:
        return None
    reach = ""
    if window.start_step is not None and window.end_step is not None:
        reach = f" ({count(window.start_step)} to {count(window.end_step)})"
    return joined(
        (
            count(window.steps_analyzed, "aligned step") + reach,
            f"{cell(window.diagnosis_clock).upper()} clock" if window.diagnosis_clock else None,
            count(len(section.groups.rows), "rank") if section.groups.rows else None,
        )
    )


def _tiles(section: SectionSummary, lens: RankLens) -> Iterator[Tile]:
    average = section.global_.average
    if len(section.groups.rows) > 1:
        yield from _of_ranks(section)
    elif average.get("step_time_ms") is not None:
        yield Tile("Mean step", milliseconds(average["step_time_ms"]))
        for point, words in (("p50", "Median step"), ("p95", "Slow steps")):
            value = average.get(f"step_time_{point}_ms")
            if value is not None:
                p99 = average.get("step_time_p99_ms")
                slower = f", p99 {milliseconds(p99)}" if point == "p95" and p99 is not None else ""
                yield Tile(words, milliseconds(value), note=f"{point}{slower}")
    yield from _shares(section, lens)
    steps, samples = (average.get(f"{noun}_per_s") for noun in ("steps", "samples"))
    if steps is not None:
        several = " per rank" if len(section.groups.rows) > 1 else ""
        note = None if samples is None else rate(samples, "samples") + several
        yield Tile("Throughput", rate(steps, "steps"), note=note)


def _of_ranks(section: SectionSummary) -> Iterator[Tile]:
    """Yields tiles of the median rank and of the worst, by their own work where waiting is
    known."""
    rows = section.groups.rows
    chosen = typical_and_worst(section)
    if chosen is None:
        return
    typical_ms, worst_ms = (own_ms(rows[name].metrics) for name in chosen)
    is_own = waits_are_known(rows.values())
    notes = [
        rank_words(name, rows[name]) + (f", own work {milliseconds(time)}" if is_own else "")
        for name, time in zip(chosen, (typical_ms, worst_ms), strict=True)
    ]
    steps = [milliseconds(rows[name].metrics.get("step_time_ms")) for name in chosen]
    yield Tile("Median step", steps[0], note=notes[0])
    yield Tile("Worst step", steps[1], note=notes[1])
    if typical_ms and worst_ms is not None:
        gap_ms = worst_ms - typical_ms
        yield Tile(
            "Gap",
            milliseconds(gap_ms),
            note=_gap_words(gap_ms / typical_ms, "own work" if is_own else "step"),
            tone=_late_tone(section),
        )
    is_late = straggling(section) == chosen[1]
    by = "by own work" if is_own else "by step time"
    note = "the others wait for it" if is_late else by
    yield Tile("Worst rank", cell(chosen[1]), note=note, tone=_late_tone(section))


def _gap_words(share: float, what: str) -> str:
    if share < MIN_TIMES:
        return f"{percent(share)} of the median {what}"
    return f"{excess(share)} the median {what}"


def _late_tone(section: SectionSummary) -> Tone | None:
    """Returns the tone of a late rank's tile; `None` unless a rule found a straggler."""
    lead = leading(section)
    return None if lead is None or not straggling(section) else tone(lead.kind, lead.severity)


def _shares(section: SectionSummary, lens: RankLens) -> Iterator[Tile]:
    """Yields tiles of the largest phase and of the rest, both of the same step."""
    metrics = lens.metrics(section)
    step_ms, parts = metrics.get("step_time_ms"), step_parts(metrics)
    if not step_ms or not parts:
        return
    largest = max(parts, key=lambda part: parts[part])
    shown = {"Largest phase": largest, "Rest": Phase.RESIDUAL.value}
    for label, part in shown.items():
        note = joined((PARTS[part].lower() if label != "Rest" else None, lens.words))
        yield Tile(label, percent(parts[part] / step_ms), note=note or "of a mean step")
