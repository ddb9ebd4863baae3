"""What a page holds; the browser, the report and the terminal draw it and add no number.

Texts are ready to be read and numbers are in the unit that stands beside them. The viewer's types
are made from these records (`python -m traceml.web.typescript`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from traceml.figures.layer_record import LayerTree

Tone = Literal["good", "info", "warn", "crit", "muted"]
"""Whether something is good, neutral or a problem; info, warn and crit follow the severity."""
RunState = Literal["live", "finished", "failed", "lost"]
"""`lost`: the run's agent is gone, and how the run ended was not recorded."""


StepAxis = Literal["steps", "logged"]
"""`logged`: the script counts differently from the steps that were traced, for example epochs."""


# Pieces


class Tile(Struct, frozen=True):
    """One number that is worth a place of its own."""

    label: str
    value: str
    note: str | None = None
    tone: Tone | None = None


class Fact(Struct, frozen=True):
    """A short piece of evidence."""

    label: str
    value: str


class Row(Struct, frozen=True):
    """A line of a table; the first cell names it."""

    cells: tuple[str, ...]
    tone: Tone | None = None


class Table(Struct, frozen=True):
    """Cells as they are read."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str | None = None


class FindingCard(Struct, frozen=True):
    """A finding as the rail shows it."""

    section: str
    """Its title: "Step time"."""
    kind: str
    status: str
    severity: Tone
    summary: str
    action: str | None = None
    gain: str | None = None
    """What its removal would bring: "563 → 32 ms, 17.6×"."""
    since: str | None = None
    """"since step 601"."""
    ranks: tuple[int, ...] = ()
    evidence: tuple[Fact, ...] = ()


# Figures


class Axis(Struct, frozen=True):
    """One direction of a figure."""

    label: str
    unit: str = ""
    low: float | None = None
    high: float | None = None


class Series(Struct, frozen=True):
    """One line or one stack of bars; `None` is a gap: not measured."""

    name: str
    colour: str
    """A name in the palette (`figures/colours.py`)."""
    values: tuple[float | None, ...]
    dashed: bool = False
    low: tuple[float | None, ...] | None = None
    """Where a point stands for several values: the lowest of them …"""
    high: tuple[float | None, ...] | None = None
    """… and the highest; the band between both is drawn behind the line."""


class Span(Struct, frozen=True):
    """A finding on the horizontal axis, from where on it holds; `until` open: to the end."""

    begin: float
    until: float | None
    label: str
    tone: Tone


class Mark(Struct, frozen=True):
    """Values on the horizontal axis that cannot be drawn: NaN, infinite."""

    begin: float
    until: float
    label: str
    """"3 × NaN"."""


class Limit(Struct, frozen=True):
    """A level that matters: a capacity, a threshold."""

    value: float
    label: str
    tone: Tone = "muted"


class Lines(Struct, frozen=True, tag="lines"):
    """Values over steps or time."""

    id: str
    title: str
    x: Axis
    y: Axis
    at: tuple[float, ...]
    """Where every series has its values."""
    series: tuple[Series, ...]
    stacked: bool = False
    spans: tuple[Span, ...] = ()
    limits: tuple[Limit, ...] = ()
    caption: str | None = None
    zooms: bool = False
    """The server has finer values for a part of the horizontal axis, which counts steps."""
    axis: StepAxis = "steps"
    """Whose steps the horizontal axis counts; figures of one kind are zoomed together."""
    marks: tuple[Mark, ...] = ()
    cut: str | None = None
    """What the axis leaves out, in words; on a logarithmic axis everything has its place."""
    is_curve: bool = False
    """A quantity of learning: readers may smooth it, and draw it on a logarithmic axis."""
    band: str | None = None
    """What the bands are, where they do not reach from the lowest to the highest value."""


class Bars(Struct, frozen=True, tag="bars"):
    """Stacked bars, one per category, drawn from left to right."""

    id: str
    title: str
    categories: tuple[str, ...]
    x: Axis
    series: tuple[Series, ...]
    caption: str | None = None


class Heatmap(Struct, frozen=True, tag="heatmap"):
    """A row per rank, a column per group of steps: a straggler is a stripe."""

    id: str
    title: str
    x: Axis
    at: tuple[float, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    """By row."""
    value: Axis
    """What a colour stands for, from `low` to `high`."""
    caption: str | None = None
    zooms: bool = False
    axis: StepAxis = "steps"


class Change(Struct, frozen=True):
    """One bar of a waterfall, from where the last one ended."""

    name: str
    value: float
    text: str
    colour: str
    is_total: bool = False
    """Whether the bar begins at zero, as the first and the last one do."""


class Waterfall(Struct, frozen=True, tag="waterfall"):
    """How one total becomes another."""

    id: str
    title: str
    y: Axis
    changes: tuple[Change, ...]
    caption: str | None = None


class Branch(Struct, frozen=True):
    """A part of a whole, and its own parts."""

    name: str
    text: str
    share: float
    """Of the root, 0–1."""
    colour: str
    parts: tuple[Branch, ...] = ()


class Tree(Struct, frozen=True, tag="tree"):
    """Where the time of a step goes, part by part."""

    id: str
    title: str
    root: Branch
    caption: str | None = None


Figure = Lines | Bars | Heatmap | Waterfall | Tree | LayerTree


# Pages


class Part(Struct, frozen=True):
    """A card of a page: a diagnosis, its numbers, its pictures."""

    id: str
    title: str
    note: str | None = None
    finding: FindingCard | None = None
    tiles: tuple[Tile, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    printed: tuple[str, ...] = ()
    """Lines as a terminal showed them: a traceback."""
    is_wide: bool = False
    """It has the whole width of the page."""
    has_lens: bool = False
    """Readers may choose the rank that its tiles, tree and stack show."""


class Head(Struct, frozen=True):
    """Which run, and how far it is."""

    name: str
    state: RunState
    state_words: str
    """"live", "finished", "failed with status 1", …"""
    command: str
    started: str
    elapsed: str
    steps: str
    """"1,240 steps", or "1,240 of 5,000 steps"."""
    throughput: str
    ranks: str
    """"8 ranks on 1 node, 8 × NVIDIA H200"."""
    steps_short: str = ""
    """The same beside its label: "1,240 of 5,000"."""
    started_unix_s: float | None = None
    """For a browser, which knows its reader's time zone."""
    remaining: str | None = None
    progress: float | None = None
    """0–1, where the total is known."""


class Verdict(Struct, frozen=True):
    """The answer: read first."""

    severity: Tone
    status: str
    why: str
    next: str | None = None
    gain: str | None = None


class Lens(Struct, frozen=True):
    """Whose step is shown: the mean over the ranks, or one of them."""

    id: str
    label: str


class RunPage(Struct, frozen=True, tag="run"):
    """One run, going on or over."""

    head: Head
    verdict: Verdict
    rail: tuple[FindingCard, ...]
    """What there is to say, section by section, the worst first."""
    parts: tuple[Part, ...]
    lens: str = "mean"
    """The one that the page shows …"""
    lenses: tuple[Lens, ...] = ()
    """… and all of them; none for one rank."""
    output: tuple[str, ...] | None = None
    """The last lines that the training printed; `None`: they were not kept."""
    notes: tuple[str, ...] = ()
    """What could not be read or shown."""


class RunRow(Struct, frozen=True):
    """A run in the list of runs."""

    name: str
    state: RunState
    state_words: str
    severity: Tone
    status: str
    why: str
    started: str
    duration: str
    steps: str
    step_time: str
    ranks: str
    """With nodes and devices …"""
    ranks_short: str
    """… and their number alone: "8 ranks"."""
    started_unix_s: float | None = None
    """The list is sorted by these numbers where the text would sort wrongly; they are not shown."""
    duration_s: float | None = None
    step_count: int | None = None
    step_time_s: float | None = None


class RunsPage(Struct, frozen=True, tag="runs"):
    """All runs under a logs folder, the newest first."""

    folder: str
    runs: tuple[RunRow, ...]
    notes: tuple[str, ...] = ()
    """Folders that could not be read, and why."""


class ComparisonPage(Struct, frozen=True, tag="comparison"):
    """What changed between two runs, or two groups of runs."""

    a: str
    b: str
    legend: tuple[str, ...]
    verdict: Verdict
    diagnosis: str | None
    """"INPUT-BOUND → COMPUTE-BOUND"."""
    parts: tuple[Part, ...]
    next: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


Page = RunPage | RunsPage | ComparisonPage
