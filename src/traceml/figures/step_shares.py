"""Charts of a mean step: the tree of its phases, and the median rank beside the worst."""

from __future__ import annotations

from collections.abc import Mapping

from traceml.figures.colours import STEP
from traceml.figures.findings import leading
from traceml.figures.page import Axis, Bars, Branch, Series, Tree
from traceml.figures.units import scaled, time_unit
from traceml.figures.words import line
from traceml.model.phase import BETWEEN, COMPUTE, COMPUTE_PART, PHASE_METRICS, PHASES
from traceml.model.quantities import count, milliseconds, percent
from traceml.summaries.own_time import own_ms
from traceml.summaries.record import SectionSummary, Window
from traceml.summaries.step_parts import step_parts
from traceml.text import phases as text_phases
from traceml.text.goodput import analysed_words

STRAGGLER = "STRAGGLER"

PARTS = {
    **{phase.value: entry.label for phase, entry in PHASES.items()},
    COMPUTE_PART: "Compute",
}
"""The label of each part of a bar, by the name of its colour."""

Metrics = Mapping[str, "float | None"]


def phase_tree(section: SectionSummary, times: Metrics, whose: str) -> Tree | None:
    """Returns where the time of a mean step goes; `None` where no step was measured.

    `times` are the means over all ranks or those of one of them; `whose` says so.
    """
    if not times.get("step_time_ms"):
        return None
    step = text_phases.step_tree(times)
    between = text_phases.between_tree(times)
    whole = step
    if between is not None:
        wall = step.ms + between.ms
        whole = text_phases.TreeLine("wall time per step", wall, STEP, (step, between))
    said = (text_phases.gpu_idle_words(times), analysed_words(section))
    caption = " ".join((_covers(section.global_.window), *(f"{each}." for each in said if each)))
    return Tree(
        id="phase-tree",
        title=titled("Where a mean step goes", whose),
        root=_branch(whole, whole.ms, STEP),
        caption=caption,
    )


def titled(title: str, whose: str) -> str:
    """Returns a figure's title with whose steps it shows, for several ranks."""
    return f"{title}: {whose}" if whose else title


def median_and_worst(section: SectionSummary) -> Bars | None:
    """Returns the phases of the median rank beside those of the worst; `None` for one rank."""
    chosen = typical_and_worst(section)
    if chosen is None:
        return None
    typical, worst = chosen
    rows = section.groups.rows
    opening = "Median: rank" if len(rows) > 2 else "Rank"  # of two ranks neither is typical
    return stacked_bars(
        "median-worst",
        "Median rank against worst rank",
        {
            f"{opening} {line(typical)}": rows[typical].metrics,
            f"Worst: rank {line(worst)}": rows[worst].metrics,
        },
    )


def typical_and_worst(section: SectionSummary) -> tuple[str, str] | None:
    """Returns the names of the median rank and of the worst, by their own time; `None` for one
    rank. Where a rule found a straggler, that is the worst."""
    rows = section.groups.rows
    own = {name: time for name, row in rows.items() if (time := own_ms(row.metrics)) is not None}
    if len(own) < 2:
        return None
    ordered = sorted(own, key=lambda name: own[name])
    straggler = straggling(section)
    worst = straggler if straggler in own else ordered[-1]
    others = [name for name in ordered if name != worst]
    typical = ordered[(len(ordered) - 1) // 2]
    return (others[(len(others) - 1) // 2] if typical == worst else typical), str(worst)


def straggling(section: SectionSummary) -> str | None:
    """Returns the rank that the others wait for, where a rule found one."""
    lead = leading(section)
    if lead is None or not (lead.kind or "").endswith(STRAGGLER) or not lead.ranks:
        return None
    return str(lead.ranks[0])


def has_phases(metrics: Metrics) -> bool:
    """Returns whether forward, backward and optimizer were each measured."""
    return all(metrics.get(PHASE_METRICS[phase]) is not None for phase in COMPUTE)


def stacked_bars(name: str, title: str, bars: Mapping[str, Metrics]) -> Bars | None:
    """Returns one bar per step, its phases end to end; `None` where no phase was measured."""
    told_apart = all(has_phases(metrics) for metrics in bars.values())
    sides = [step_parts(metrics, told_apart) for metrics in bars.values()]
    if not any(sides):
        return None
    unit = time_unit(*(sum(side.values()) / 1e3 for side in sides))
    return Bars(
        id=name,
        title=title,
        categories=tuple(bars),
        x=Axis("per step", unit.symbol, low=0.0),
        series=tuple(
            Series(words, colour, scaled([_seconds(side.get(colour)) for side in sides], unit))
            for colour, words in PARTS.items()
            if any(side.get(colour) for side in sides)
        ),
    )


def _seconds(value_ms: float | None) -> float:
    return float("nan") if value_ms is None else value_ms / 1e3


def _branch(branch: text_phases.TreeLine, whole_ms: float, colour: str) -> Branch:
    return Branch(
        name=branch.name,
        text=f"{milliseconds(branch.ms)}, {percent(branch.ms / whole_ms)}",
        share=round(min(max(branch.ms / whole_ms, 0.0), 1.0), 4),
        colour=colour,
        parts=tuple(_branch(part, whole_ms, _colour(part)) for part in branch.parts),
    )


def _colour(branch: text_phases.TreeLine) -> str:
    if branch.phase is not None:
        return branch.phase
    return STEP if branch.name == "step time" else BETWEEN


def _covers(window: Window) -> str:
    """Returns in words which steps the mean covers, and on which clock."""
    warmup = f" after {count(window.warmup_steps, 'warm-up step')}" if window.warmup_steps else ""
    clock = f", {line(window.diagnosis_clock).upper()} clock" if window.diagnosis_clock else ""
    return f"Mean of {count(window.steps_analyzed, 'step')}{warmup}{clock}."
