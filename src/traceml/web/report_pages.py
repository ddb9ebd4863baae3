"""The pages of a report or a notebook cell, for what a user names: runs, files, comparisons."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceml.api.compare import FoundRun, compare_found_sides, find_by_words, refuse_single
from traceml.api.comparison_pages import comparison_page, many_page, pair_pages
from traceml.api.watch import RunWatch
from traceml.compare.comparison_names import default_base, many_base
from traceml.compare.many_record import ManyComparison
from traceml.compare.record import Comparison
from traceml.compare.terms import Terms
from traceml.figures.comparison_page import comparison_page as draw_comparison
from traceml.figures.page import Page, RunPage
from traceml.model.errors import UsageError
from traceml.store.folder import MANIFEST, SUMMARY
from traceml.store.regular_files import read_regular
from traceml.summaries.read import locate, read_summary
from traceml.text.comparison import comparison_text
from traceml.text.many_runs import many_text
from traceml.text.summary import summary_text
from traceml.web.report import FILE_NAME, report

_KEYS_OF_COMPARISON = {"verdict", "overview", "sections"}
_COMPARISON = msgspec.json.Decoder(Comparison)


@dataclass(frozen=True, slots=True)
class Reported:
    """Pages, the same as text, and the default file name of a report."""

    pages: tuple[Page, ...]
    text: str
    path: Path


def reported(words: Sequence[str], logs: Path) -> Reported:
    """Returns one run, or the first of several compared with each of the others."""
    if not words:
        raise UsageError("no run was given; pass a run folder, a final_summary.json or a name")
    if len(words) == 1:
        return _one(words[0], logs)
    if len(words) == 2:
        return _two(find_by_words(words[:1], logs), find_by_words(words[1:], logs), logs)
    found = find_by_words(words, logs)
    refuse_single(found, words)
    if len(found) == 2:  # one of them was named twice
        return _two(found[:1], found[1:], logs)
    page, compared = many_page(found, logs, follow_links=True)
    base = many_base([run.name for run in found])
    return Reported((page, *pair_pages(compared)), many_text(compared), Path(f"{base}.html"))


def _two(a: Sequence[FoundRun], b: Sequence[FoundRun], logs: Path) -> Reported:
    comparison = compare_found_sides(a, b, logs)
    page = comparison_page(a, b, logs, follow_links=True)
    sides = [[run.name for run in side] for side in (a, b)]
    path = Path(f"{default_base((comparison.a, comparison.b), sides)}.html")
    return Reported((page,), comparison_text(comparison), path)


def sides_html(a: Sequence[str], b: Sequence[str], logs: Path, terms: Terms) -> str:
    """Returns the comparison of two runs or groups of runs as one HTML file."""
    sides = find_by_words(a, logs), find_by_words(b, logs)
    return report([comparison_page(*sides, logs, follow_links=True, terms=terms)])


def many_html(words: Sequence[str], logs: Path, compared: ManyComparison) -> str:
    """Returns three or more runs, as they were compared, as one HTML file."""
    found = find_by_words(words, logs)
    page, _ = many_page(found, logs, follow_links=True, compared=compared)
    return report([page, *pair_pages(compared)])


def _one(word: str, logs: Path) -> Reported:
    folder = _run_folder(word, logs)
    if folder is not None:
        return _run(folder, folder / FILE_NAME)
    path = locate(word, logs).absolute()
    comparison = _read_comparison(path)
    if comparison is not None:
        text = comparison_text(comparison)
        return Reported((draw_comparison(comparison),), text, path.with_suffix(".html"))
    if path.name == SUMMARY:
        return _run(path.parent, path.with_name(FILE_NAME))
    with tempfile.TemporaryDirectory(prefix="traceml-") as place:
        folder = Path(place) / path.stem  # the run is called as the file is
        folder.mkdir()
        read_summary(path, follow_links=True)  # what is wrong is said of the file that was named
        (folder / SUMMARY).write_bytes(read_regular(path, follow_links=True))
        return _run(folder, path.with_suffix(".html"))


def _run_folder(word: str, logs: Path) -> Path | None:
    """Returns a run's folder, with or without a summary."""
    for folder in (Path(word), logs / word):
        try:
            if (folder / MANIFEST).is_file():
                return folder.absolute()
        except (OSError, ValueError):  # too long a name, a null byte
            continue
    return None


def _run(folder: Path, path: Path) -> Reported:
    page = RunWatch(folder).page()
    if page.head.state != "live" and (folder / SUMMARY).is_file() and not page.notes:
        return Reported((page,), summary_text(read_summary(folder / SUMMARY)), path)
    return Reported((page,), _brief(page), path)


def _brief(page: RunPage) -> str:
    """Returns a short text for a run that has no summary yet."""
    head, verdict = page.head, page.verdict
    lines = [
        f"{head.name}: {head.state_words}, {head.steps}, {head.elapsed}",
        f"{verdict.status}: {verdict.why}",
        *([f"Next: {verdict.next}"] if verdict.next else []),
        *page.notes,
    ]
    return "\n".join(lines)


def _read_comparison(path: Path) -> Comparison | None:
    """Returns the comparison in a file of `traceml compare`; `None` where it holds none."""
    try:
        content = read_regular(path, follow_links=True)
        keys = msgspec.json.decode(content, type=dict[str, msgspec.Raw]).keys()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # whoever reads it as a summary says what is wrong with it
    if not keys >= _KEYS_OF_COMPARISON:
        return None
    try:
        return _COMPARISON.decode(content)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(
            f"{path} is a comparison that cannot be read ({error}); "
            "make it again with traceml compare"
        ) from None
