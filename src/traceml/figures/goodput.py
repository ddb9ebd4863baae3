"""The part of the page on the run's wall time: its goodput, and the attempts of a restarted run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from traceml.figures.colours import STEP
from traceml.figures.findings import card
from traceml.figures.page import (
    Axis,
    Bars,
    Branch,
    Figure,
    FindingCard,
    Part,
    Row,
    Series,
    Table,
    Tile,
    Tree,
)
from traceml.figures.units import moment_unit, scaled
from traceml.figures.words import MAX_CHARS, line
from traceml.model.finding import Section
from traceml.model.quantities import NOT_MEASURED, count, duration, percent
from traceml.model.run_time import RUN_PARTS, RunPart
from traceml.summaries.record import AttemptSummary, GoodputSummary, Summary
from traceml.text.goodput import attempt_words, productive_share

RESTARTED = "RESTARTED"
MIN_SHARE = 0.001
"""Of the wall time: a smaller part cannot be seen, and is left out of the bar."""

COLOURS = {
    RunPart.STEPS: "series-3",
    RunPart.START_UP: "series-2",
    RunPart.COMPILATION: "series-5",
    RunPart.EVALUATION: "series-1",
    RunPart.CHECKPOINTS: "series-6",
    RunPart.BETWEEN: "series-8",
    RunPart.REDONE: "warn",
    RunPart.RESTARTS: "series-4",
    RunPart.HANG: "crit",
    RunPart.SHUT_DOWN: "muted",
    RunPart.REST: "series-7",
}
"""Names of the palette."""
FAILED = COLOURS[RunPart.RESTARTS]
MAX_ATTEMPTS = 24
"""Attempts that are drawn one by one; those in the middle of more are one bar."""


def goodput_part(summary: Summary | None, is_live: bool = False) -> Part | None:
    """Returns what the wall time went to; `None` where no step was taken, and for a run that an
    earlier version summarised."""
    goodput = None if summary is None else summary.goodput
    if summary is None or goodput is None or not goodput.wall_s:
        return None
    figures: list[Figure | None] = [
        _wall_time(goodput),
        _attempts_over_time(goodput, summary.attempts),
    ]
    table = _attempt_table(summary.attempts)
    return Part(
        id="goodput",
        title="Goodput",
        note=f"{duration(goodput.wall_s)} of wall time{' so far' if is_live else ''}",
        finding=_restarted(summary),
        tiles=tuple(_tiles(goodput)),
        figures=tuple(figure for figure in figures if figure is not None),
        tables=() if table is None else (table,),
        is_wide=True,
    )


def _restarted(summary: Summary) -> FindingCard | None:
    """Returns the finding that the ranks were started again; `None` where they were not."""
    issues = () if summary.stability is None else summary.stability.issues
    found = next((issue for issue in issues if issue.kind == RESTARTED), None)
    return None if found is None else card(Section.STABILITY.value, found, summary)


def _tiles(goodput: GoodputSummary) -> Iterator[Tile]:
    yield Tile(
        "Goodput",
        NOT_MEASURED if goodput.share is None else percent(goodput.share),
        "of the wall time in productive steps",
    )
    if goodput.gpu_hours is not None:
        share = productive_share(goodput)
        note = "wall time × GPUs" if share is None else f"{percent(share)} in productive steps"
        yield Tile("GPU-hours", f"{goodput.gpu_hours:,.3g}", note)
    if goodput.restarts:
        yield Tile("Restarts", count(goodput.restarts), "after a failure", "warn")
        redone = goodput.redone_steps
        yield Tile("Steps done again", NOT_MEASURED if redone is None else count(redone))


def _wall_time(goodput: GoodputSummary) -> Bars | None:
    wall_s = goodput.wall_s or 0.0
    parts = {
        part: spent_s
        for part in RUN_PARTS
        if (spent_s := goodput.parts_s.get(part.value, 0.0)) >= MIN_SHARE * wall_s
    }
    if not parts:
        return None
    unit = moment_unit([wall_s])
    return Bars(
        id="wall-time",
        title="Where the wall time went",
        categories=("Run",),
        x=Axis("wall time", unit.symbol, low=0.0),
        series=tuple(
            Series(
                f"{RUN_PARTS[part].label} {percent(spent_s / wall_s)}",
                COLOURS[part],
                scaled([spent_s], unit),
            )
            for part, spent_s in parts.items()
        ),
        caption="Mean over ranks; every second is in one part.",
    )


def _attempts_over_time(goodput: GoodputSummary, attempts: Sequence[AttemptSummary]) -> Tree | None:
    """Returns the attempts of a run, each where on its time axis it was."""
    wall_s = goodput.wall_s
    if len(attempts) < 2 or not wall_s:
        return None
    drawn = list(map(_one, attempts))
    if len(drawn) > MAX_ATTEMPTS:
        half = MAX_ATTEMPTS // 2
        hidden = drawn[half:-half]
        middle = _DrawnAttempt(
            f"{count(len(hidden))} more", hidden[-1].until_s, FAILED, f"to {hidden[-1].name}"
        )
        drawn = [*drawn[:half], middle, *drawn[-half:]]
    begins_s = [0.0, *(each.until_s for each in drawn)]
    parts = tuple(
        Branch(
            name=each.name,
            text=each.text,
            share=round(min(max((each.until_s - began_s) / wall_s, 0.0), 1.0), 4),
            colour=each.colour,
        )
        for each, began_s in zip(drawn, begins_s, strict=False)
    )
    run = Branch("Run", duration(wall_s), 1.0, STEP, parts)
    return Tree(
        id="attempts-over-time",
        title="Attempts on the run's time axis",
        root=run,
        caption="Magenta: an attempt that failed, with the time until the next one began.",
    )


class _DrawnAttempt(NamedTuple):
    name: str
    until_s: float
    colour: str
    text: str


def _one(attempt: AttemptSummary) -> _DrawnAttempt:
    began_s, until_s = attempt.began_s or 0.0, attempt.until_s or 0.0
    lasted = duration(max(until_s - began_s, 0.0))
    return _DrawnAttempt(
        f"Attempt {attempt.number}",
        until_s,
        COLOURS[RunPart.STEPS] if attempt.lost_s is None else FAILED,
        f"{count(attempt.steps, 'step')}, {lasted}",
    )


def _attempt_table(attempts: Sequence[AttemptSummary]) -> Table | None:
    if len(attempts) < 2:
        return None
    return Table(
        id="attempts",
        title="Attempts",
        columns=("", "What came of it"),
        rows=tuple(
            Row(
                (f"Attempt {attempt.number}", line(attempt_words(attempt), MAX_CHARS)),
                tone="warn" if attempt.lost_s is not None else None,
            )
            for attempt in attempts
        ),
    )
