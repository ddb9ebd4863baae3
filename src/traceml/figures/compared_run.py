"""A run among those that a page compares: what it is called, and everything known about it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from traceml.facts.history import StepHistory
from traceml.facts.metric_history import MetricHistory
from traceml.figures.colours import SERIES, A, B, series_colour
from traceml.figures.page import GridColumn
from traceml.figures.words import line
from traceml.summaries.record import Summary

MAX_NAME = 60
MAX_LEGEND = 40


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run, with its letter; runs that repeat each other with other seeds share one."""

    label: str
    name: str
    summary: Summary
    metrics: tuple[MetricHistory, ...] = ()
    """The curves that are drawn."""
    steps: StepHistory | None = None
    """Its steps, where the loss that was traced is drawn."""
    is_served: bool = False
    """Whether a server has a page of this run, under its name."""

    @property
    def words(self) -> str:
        """Letter and name: "A: base"."""
        return f"{self.label}: {line(self.name, MAX_LEGEND)}"

    @property
    def link(self) -> str | None:
        """The address of its page on the server; `None` where there is none."""
        return run_link(self.name) if self.is_served else None

    @property
    def column(self) -> GridColumn:
        """The run as the column of a grid."""
        return GridColumn(self.label, line(self.name, MAX_NAME), self.link)


def run_link(name: str) -> str:
    """Returns the address of a run's page."""
    return f"/runs/{quote(name, safe='', errors='replace')}"


def pair_link(a: str, b: str) -> str:
    """Returns the address of the page that compares two runs."""
    sides = (quote(name, safe="", errors="replace") for name in (a, b))
    return "/compare?a={}&b={}".format(*sides)


def run_colour(number: int, of: int) -> str:
    """Returns the colour of a run, by its place from 0; two runs have those of their sides."""
    return (A, B)[number] if of == 2 else series_colour(number)


def is_dashed(number: int) -> bool:
    """Returns whether a run's curves are dashed: there are fewer colours than runs."""
    return number // len(SERIES) % 2 == 1
