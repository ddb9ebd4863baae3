"""The sources of pages that are followed: a run or a comparison; each can be read again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qs, unquote

from traceml.api.comparison_pages import (
    comparison_page,
    find_for_page,
    finer_curves,
    found_in,
    further_curves,
    many_page,
    pair_pages,
    too_many,
    unfinished_note,
)
from traceml.api.watch import RunWatch
from traceml.compare.many_record import ManyComparison
from traceml.compare.many_runs import labels_of
from traceml.figures.many_runs_page import MAX_RUNS, MIN_RUNS
from traceml.figures.page import Figure, Lines, Page
from traceml.figures.rank_lens import CHOICE
from traceml.model.errors import RunNotFound, UsageError
from traceml.store.folder import MANIFEST, SUMMARY
from traceml.store.line_files import LIVE_STATE
from traceml.store.regular_files import stat_regular
from traceml.web.security import run_folder

QUIET_PAUSE_S = 2.0
"""For pages that seldom change."""

_Stamp: TypeAlias = tuple[object, ...]
"""Identifies a file's version."""


class PageSource(Protocol):
    """Something that has a page; reading it takes time, so it runs in a thread."""

    def page(self) -> Page:
        """Returns the current page; the same object where nothing changed.

        Raises TraceMLError where there is none.
        """

    def pause_s(self) -> float:
        """Returns how long to wait before reading again."""


class RunSource:
    """One run, in progress or ended, or replaced by another of its name."""

    def __init__(self, logs: Path, name: str, lens_id: str | None = None) -> None:
        self._logs, self._name, self._lens_id = logs, name, lens_id
        self._watch: RunWatch | None = None
        self._identity: _Stamp = ()

    def page(self) -> Page:
        """Returns the run's page."""
        return self._watched().page()

    def detail(self, first_step: int, last_step: int) -> tuple[Figure, ...]:
        """Returns the charts over steps for a range of steps, in a finer resolution."""
        return self._watched().detail(first_step, last_step)

    def pause_s(self) -> float:
        """Returns one second while the run is in progress, or more for one that has many ranks."""
        watch = self._watch
        return watch.pause_s() if watch is not None and watch.is_live() else QUIET_PAUSE_S

    def _watched(self) -> RunWatch:
        folder = run_folder(self._logs, self._name)
        identity = _stamp(folder, MANIFEST)
        if self._watch is None or identity != self._identity:
            self._watch = None  # should the next line fail
            self._watch = RunWatch(folder, self._lens_id)
            self._identity = identity
        return self._watch


class ComparisonSource:
    """Two runs, or two groups of runs, side by side."""

    def __init__(self, logs: Path, a: Sequence[str], b: Sequence[str]) -> None:
        self._logs = logs
        self._sides = a, b
        self._page: Page | None = None
        self._state: _Stamp = ()

    def page(self) -> Page:
        """Returns the comparison, made again when a summary has changed."""
        a, b = ([run_folder(self._logs, name) for name in side] for side in self._sides)
        state = tuple(_stamp(folder, SUMMARY, LIVE_STATE) for folder in (*a, *b))
        if self._page is None or state != self._state:
            left, right = (list(map(found_in, side)) for side in (a, b))
            notes = [unfinished_note(run) for run in (*left, *right) if not run.is_over]
            self._page = comparison_page(left, right, self._logs, notes)
            self._state = state
        return self._page

    def curves(self, names: Sequence[str]) -> tuple[Lines, ...]:
        """Returns the curves of metrics that the page does not have."""
        a, b = ([found_in(run_folder(self._logs, name)) for name in side] for side in self._sides)
        return further_curves([*a, *b], ["A"] * len(a) + ["B"] * len(b), names)

    def finer(self, ids: Collection[str], first_step: int, last_step: int) -> tuple[Lines, ...]:
        """Returns curves between two steps, in a finer resolution."""
        a, b = ([found_in(run_folder(self._logs, name)) for name in side] for side in self._sides)
        letters = ["A"] * len(a) + ["B"] * len(b)
        return finer_curves([*a, *b], letters, ids, (first_step, last_step))

    def pause_s(self) -> float:
        """Returns the pause for pages that seldom change."""
        return QUIET_PAUSE_S


class ManyRunsSource:
    """Three to twenty runs, each against the first."""

    def __init__(self, logs: Path, names: Sequence[str]) -> None:
        self._logs, self._names = logs, names
        self._page: Page | None = None
        self._compared: ManyComparison | None = None
        self._state: _Stamp = ()

    def page(self) -> Page:
        """Returns the runs side by side, made again when a summary has changed.

        Of a run that was deleted the page says so; without the first one there is none.
        """
        folders, gone = self._folders()
        state = (gone, *(_stamp(folder, SUMMARY, LIVE_STATE) for folder in folders))
        if self._page is None or state != self._state:
            found, notes = find_for_page(folders)
            if len(found) == 2:
                self._page = comparison_page(found[:1], found[1:], self._logs, (*gone, *notes))
                self._compared = None
            else:
                self._page, self._compared = many_page(found, self._logs, (*gone, *notes))
            self._state = state
        return self._page

    def file_pages(self) -> tuple[Page, ...]:
        """Returns what a file of it holds: behind it the first run with each other one."""
        page = self.page()
        return (page, *(() if self._compared is None else pair_pages(self._compared)))

    def curves(self, names: Sequence[str]) -> tuple[Lines, ...]:
        """Returns the curves of metrics that the page does not have."""
        found, _ = find_for_page(self._folders()[0])
        letters = labels_of([run.summary for run in found])
        return further_curves(found, letters, names)

    def finer(self, ids: Collection[str], first_step: int, last_step: int) -> tuple[Lines, ...]:
        """Returns curves between two steps, in a finer resolution."""
        found, _ = find_for_page(self._folders()[0])
        letters = labels_of([run.summary for run in found])
        return finer_curves(found, letters, ids, (first_step, last_step))

    def pause_s(self) -> float:
        """Returns the pause for pages that seldom change."""
        return QUIET_PAUSE_S

    def _folders(self) -> tuple[list[Path], tuple[str, ...]]:
        """Returns the folders of the runs that are there, and what is wrong with the others."""
        folders, gone = [run_folder(self._logs, self._names[0])], []
        for name in self._names[1:]:
            try:
                folders.append(run_folder(self._logs, name))
            except RunNotFound as error:
                gone.append(str(error))
        return folders, tuple(gone)


class Address(NamedTuple):
    """Identifies a page: a run (`a` is its name, `b` its lens), a comparison, or many
    runs (all in `a`)."""

    kind: Literal["run", "comparison", "many"]
    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()


def address_of(page: str) -> Address:
    """Returns the page for a URL: `/runs/NAME?lens=LENS` or `/compare?a=NAME&b=NAME`."""
    path, _, query = page.partition("?")
    if path == "/compare":
        sides = parse_qs(query)
        return compared_address(*(sides.get(name, []) for name in ("run", "a", "b")))
    if path.startswith("/runs/"):
        return run_address(unquote(path.removeprefix("/runs/")), parse_qs(query).get("lens", []))
    raise UsageError(
        f"there is no page {page[:80]!r} to follow: expected /runs/NAME or "
        "/compare?a=NAME&b=NAME; the list of runs is asked for again instead, at /api/runs"
    )


def run_address(name: str, lens: Sequence[str] = ()) -> Address:
    """Returns the page of a run; raises UsageError for a lens that no run can have."""
    for each in lens:
        if not CHOICE.fullmatch(each):
            raise UsageError(
                f"{each[:40]!r} is no lens: expected mean, median, worst or rank-N; ask for "
                "/runs/NAME?lens=rank-0"
            )
    return Address("run", (name,), tuple(lens[:1]))


def compared_address(runs: Sequence[str], a: Sequence[str], b: Sequence[str]) -> Address:
    """Returns the page for `/compare?run=…&run=…` or `/compare?a=…&b=…`; raises UsageError."""
    if not runs:
        return comparison_of(a, b)
    names = tuple(dict.fromkeys(runs))
    if a or b:
        raise UsageError(
            "runs are compared either each with the first (run=…&run=…) or as two sides "
            "(a=…&b=…), not both at once; ask for /compare?run=NAME&run=NAME"
        )
    if len(names) < MIN_RUNS:
        raise UsageError(
            f"there is nothing to compare {names[0][:80]!r} with; ask for "
            "/compare?run=NAME&run=NAME, with two runs or more"
        )
    if len(names) > MAX_RUNS:
        raise too_many(len(names))
    return comparison_of(names[:1], names[1:]) if len(names) == 2 else Address("many", names)


def comparison_of(a: Sequence[str], b: Sequence[str]) -> Address:
    """Returns the comparison of two sides; raises UsageError where one has no run."""
    if not a or not b:
        raise UsageError(
            f"a comparison needs runs on both sides, {len(a)} and {len(b)} were given; "
            "ask for /compare?a=NAME&b=NAME"
        )
    return Address("comparison", tuple(a), tuple(b))


def source_of(address: Address, logs: Path) -> PageSource:
    """Returns the source of a page."""
    if address.kind == "run":
        return RunSource(logs, address.a[0], next(iter(address.b), None))
    if address.kind == "many":
        return ManyRunsSource(logs, address.a)
    return ComparisonSource(logs, address.a, address.b)


def _stamp(folder: Path, *names: str) -> _Stamp:
    found: list[object] = []
    for name in names:
        stat = stat_regular(folder / name)
        if stat is None:
            found.append(None)
        else:
            found.append((stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(found)
