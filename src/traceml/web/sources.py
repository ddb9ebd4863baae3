"""The sources of pages that are followed: a run or a comparison; each can be read again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qs, unquote

from traceml.api.watch import RunWatch, comparison_page
from traceml.figures.page import Figure, Page
from traceml.figures.rank_lens import CHOICE
from traceml.model.errors import UsageError
from traceml.store.folder import MANIFEST, SUMMARY
from traceml.store.regular_files import stat_regular
from traceml.web.security import run_folder

LIVE_PAUSE_S = 1.0
"""The shortest time between two updates."""
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
        """Returns one second while the run is in progress."""
        is_live = self._watch is not None and self._watch.is_live()
        return LIVE_PAUSE_S if is_live else QUIET_PAUSE_S

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
        state = tuple(_stamp(folder, SUMMARY) for folder in (*a, *b))
        if self._page is None or state != self._state:
            # By their whole paths: a name alone may also stand for something beside the logs.
            self._page = comparison_page(_words(a), _words(b), self._logs)
            self._state = state
        return self._page

    def pause_s(self) -> float:
        """Returns the pause for pages that seldom change."""
        return QUIET_PAUSE_S


class Address(NamedTuple):
    """Identifies a page: a run (`a` is its name, `b` its lens) or a comparison."""

    kind: Literal["run", "comparison"]
    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()


def address_of(page: str) -> Address:
    """Returns the page for a URL: `/runs/NAME?lens=LENS` or `/compare?a=NAME&b=NAME`."""
    path, _, query = page.partition("?")
    if path == "/compare":
        sides = parse_qs(query)
        return comparison_of(sides.get("a", []), sides.get("b", []))
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
    return ComparisonSource(logs, address.a, address.b)


def _words(folders: Sequence[Path]) -> list[str]:
    return [str(folder.absolute()) for folder in folders]


def _stamp(folder: Path, *names: str) -> _Stamp:
    found: list[object] = []
    for name in names:
        stat = stat_regular(folder / name)
        if stat is None:
            found.append(None)
        else:
            found.append((stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return tuple(found)
