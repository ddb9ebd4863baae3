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
    link: str | None = None
    """Where the first cell leads on the server: "/runs/NAME"; a report has no such place."""


class Table(Struct, frozen=True):
    """Cells as they are read."""

    id: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str | None = None


class GridColumn(Struct, frozen=True):
    """One of the things that a grid compares: a run."""

    label: str
    """"A"."""
    title: str
    """Its name."""
    link: str | None = None


class GridCell(Struct, frozen=True):
    """A value, and below it what there is to say about it."""

    text: str
    note: str | None = None
    tone: Tone | None = None


class GridRow(Struct, frozen=True):
    """One quantity of all columns."""

    name: str
    cells: tuple[GridCell, ...]
    """One per column."""
    differs: bool = True
    """Readers see only such rows until they ask for all."""


class WideGrid(Struct, frozen=True):
    """Many rows of a few columns: the names stay in sight, and rows can be searched."""

    id: str
    title: str
    columns: tuple[GridColumn, ...]
    rows: tuple[GridRow, ...]
    note: str | None = None


DiffOp = Literal["same", "added", "removed", "head"]
"""What a line or word of a difference is; `head` says where in the files one is."""


class DiffPart(Struct, frozen=True):
    """Words inside of a line."""

    op: DiffOp
    text: str


class DiffLine(Struct, frozen=True):
    """A line of a difference; `parts` is its text word by word, where words are told apart."""

    op: DiffOp
    text: str = ""
    parts: tuple[DiffPart, ...] = ()


class Diff(Struct, frozen=True):
    """What differs between two texts."""

    id: str
    title: str
    lines: tuple[DiffLine, ...]
    note: str | None = None
    is_open: bool = False
    """Whether it is shown before somebody asks for it."""


class Picture(Struct, frozen=True):
    """An image that was logged, decoded and scaled here, never the file itself."""

    id: str
    title: str
    source: str
    """A `data:image/png` address."""
    width: int
    height: int
    caption: str | None = None


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
    at: tuple[float, ...] | None = None
    """Where it has its values, if that is elsewhere than the figure's other series: another run."""


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
    is_log: bool = False
    """The vertical axis is logarithmic: some lines are thousands of times above others."""
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


class RankGrid(Struct, frozen=True, tag="rank_grid"):
    """A cell per rank, those of a node above each other, node beside node: a slow node is a bright
    column."""

    id: str
    title: str
    nodes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    """The global ranks by node, in the order of their places on it."""
    values: tuple[tuple[float | None, ...], ...]
    """One for each of them."""
    value: Axis
    """What a colour stands for, from `low` to `high`."""
    caption: str | None = None


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


class Point(Struct, frozen=True):
    """One thing in a plane."""

    x: float
    y: float
    colour: str
    label: str = ""
    """Stands beside it: "A"."""
    note: str = ""
    """What it is, in words."""
    is_filled: bool = True


class Points(Struct, frozen=True, tag="points"):
    """Things in a plane of two quantities."""

    id: str
    title: str
    x: Axis
    y: Axis
    points: tuple[Point, ...]
    key: tuple[Series, ...] = ()
    """What the colours stand for; without values."""
    caption: str | None = None


class FlameBox(Struct, frozen=True):
    """A call, or what calls are put under."""

    label: str
    """What it is called: `collate`."""
    place: str
    """Where it is: `train.py:31`; empty for what is no call."""
    parent: int
    """The box above it, as its place in the list; -1 for none."""
    value: int
    """How wide it is; a box is at least as wide as those below it together."""
    colour: str
    """The name of its colour in the palette."""
    is_pale: bool
    """Whether it is somebody else's code, which matters less."""
    words: str
    """What there is to say about it: its share, its time, its samples."""


class FlameView(Struct, frozen=True):
    """One way to look at the calls."""

    id: str
    label: str
    title: str
    """What it shows, in a sentence."""
    boxes: tuple[FlameBox, ...]
    """A box comes after the one above it; beside each other in this order."""


class FlameGraph(Struct, frozen=True, tag="flame"):
    """Which calls take the time."""

    id: str
    title: str
    views: tuple[FlameView, ...]
    """The first is shown until another is chosen."""
    caption: str | None = None


Figure = Lines | Bars | Heatmap | RankGrid | Waterfall | Tree | Points | LayerTree | FlameGraph


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
    grids: tuple[WideGrid, ...] = ()
    diffs: tuple[Diff, ...] = ()
    pictures: tuple[Picture, ...] = ()
    further_curves: tuple[str, ...] = ()
    """Metrics whose curves the server has, and the page does not."""


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


ColumnKind = Literal["name", "status", "verdict", "number", "text", "moment", "tags"]
"""How the cells of a column are drawn: a moment in the reader's own time zone, numbers at the
right."""


class ListColumn(Struct, frozen=True):
    """A column of the list of runs."""

    key: str
    """As filters, sorting and addresses have it: "params.lr"; it is not shown."""
    label: str
    kind: ColumnKind
    title: str
    """What it is, in words."""
    can_sort: bool = True


class ListRow(Struct, frozen=True):
    """A run in the list of runs."""

    name: str
    state: RunState
    severity: Tone
    why: str
    """What the verdict says."""
    cells: tuple[str | float | None, ...]
    """By column: words, or seconds since 1970 for a moment; `None` where the run has none."""
    tags: tuple[str, ...] = ()
    note: str | None = None


class GroupRow(Struct, frozen=True):
    """Runs that have something in common, in the list of runs."""

    cells: tuple[str | float | None, ...]
    count: int
    names: tuple[str, ...]
    """Of its runs; of a very large group the first ones."""
    filter: str
    """Lets through the runs of this group."""


class Grouping(Struct, frozen=True):
    """A way to group the runs."""

    key: str
    label: str


class RunsPage(Struct, frozen=True, tag="runs"):
    """A part of the list of the runs under a logs folder, or of their groups."""

    folder: str
    columns: tuple[ListColumn, ...]
    total: int
    """How many runs match, or groups there are."""
    run_count: int
    """How many runs there are in the folder."""
    offset: int = 0
    """The place of the first row among those that match."""
    rows: tuple[ListRow, ...] = ()
    groups: tuple[GroupRow, ...] | None = None
    """Instead of rows, where the runs are grouped."""
    baseline: ListRow | None = None
    """The run that stays on top."""
    groupings: tuple[Grouping, ...] = ()
    """Ways to group these runs that are likely to be wanted; any other column will do."""
    notes: tuple[str, ...] = ()
    """Folders that could not be read, and why."""


class ColumnChoice(Struct, frozen=True):
    """A column that could be shown."""

    key: str
    label: str
    """The key, in a form that can be shown whatever it holds."""
    doc: str


class ColumnChoices(Struct, frozen=True):
    """The columns whose names contain some words; of many the first ones."""

    columns: tuple[ColumnChoice, ...]
    total: int


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


class ManyRunsPage(Struct, frozen=True, tag="many"):
    """Three to twenty runs, each against the first."""

    title: str
    """"base and 4 more"."""
    verdict: Verdict
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()


Page = RunPage | ComparisonPage | ManyRunsPage
