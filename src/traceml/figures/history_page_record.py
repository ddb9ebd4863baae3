"""What the page of a command's history holds; the viewer draws it and adds no number."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from traceml.figures.exploration_record import OfferedColumn
from traceml.figures.page import Axis, Fact, Table, Tone, Verdict

RunOrder = Literal["commit", "time"]
"""Along commits, or in the order in which the runs started."""


class HistoryPoint(Struct, frozen=True):
    """One run of the series, a dot of the chart and a row of the table."""

    run: str
    value: float
    """In the unit of the axis, as the ends of its interval."""
    text: str
    """The same, as it is read."""
    low: float | None = None
    high: float | None = None
    interval: str | None = None
    """"36.8 ms to 37.2 ms"; `None` where the run's own steps do not show it."""
    started_unix_s: float | None = None
    commit: str | None = None
    """Its short name."""
    subject: str | None = None
    is_dirty: bool = False
    """Whether the run had changes that were not committed."""


class LevelLine(Struct, frozen=True):
    """The mean of a stretch of runs without a change."""

    first: int
    """The place of its first run in the chart, counted from 0 …"""
    last: int
    """… and of its last one."""
    value: float
    text: str


class ChangeFact(Struct, frozen=True):
    """A piece of what is known about a change."""

    label: str
    words: str
    link: str | None = None
    """Where the words lead on the server."""


class ChangeCard(Struct, frozen=True):
    """A change of the level: a mark in the chart, and what is known about it."""

    place: int
    """The place of the first run after it …"""
    earliest: int
    latest: int
    """… and the 95 % interval of that."""
    tone: Tone
    status: str
    """"WORSE"."""
    label: str
    """Beside the mark: "b7d06e7 +11%"."""
    short_label: str
    """The same where there is little room: "+11%"."""
    title: str
    """"37.0 ms → 41.0 ms (+11%)"."""
    note: str
    """The interval of its size, and the p-value."""
    facts: tuple[ChangeFact, ...]
    comparison: str
    """Where the runs before and after it are compared on the server."""


class OfferedSeries(Struct, frozen=True):
    """A series of runs that can be chosen."""

    run: str
    """A run of it; empty for the one that is shown."""
    label: str


class HistoryPage(Struct, frozen=True):
    """A metric of one command along commits, or in time."""

    found: str
    """How many runs the filter lets through: "24 runs"."""
    verdict: Verdict
    metric: str
    """As the page's address has it."""
    order: RunOrder
    y: Axis
    points: tuple[HistoryPoint, ...]
    """The oldest first."""
    levels: tuple[LevelLine, ...]
    changes: tuple[ChangeCard, ...]
    caption: str
    """What the pieces of the chart are."""
    series: tuple[OfferedSeries, ...]
    """The one that is shown first."""
    choices: tuple[OfferedColumn, ...]
    """The metrics that can be chosen."""
    params: tuple[OfferedColumn, ...]
    """The parameters in which the runs differ: those that may differ within a series."""
    held_equal: tuple[Fact, ...] = ()
    tables: tuple[Table, ...] = ()
    """Levels, earlier predictions and new ones."""
    notes: tuple[str, ...] = ()
