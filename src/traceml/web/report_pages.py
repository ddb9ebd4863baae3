"""The pages of a report or a notebook cell, for what a user names: runs, files, comparisons."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceml.api.compare import find_changes
from traceml.api.watch import RunWatch
from traceml.compare.comparison_names import default_base
from traceml.compare.record import Comparison
from traceml.figures.comparison_page import comparison_page
from traceml.figures.page import Page, RunPage
from traceml.model.errors import UsageError
from traceml.store.folder import MANIFEST, SUMMARY
from traceml.store.regular_files import read_regular
from traceml.summaries.read import locate, read_summary
from traceml.text.comparison import comparison_text
from traceml.text.summary import summary_text
from traceml.web.report import FILE_NAME

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
    found = [find_changes(words[:1], [word], logs) for word in words[1:]]
    _, (a, b) = found[0]
    others = f"+{len(found) - 1}" if len(found) > 1 else ""
    path = Path(f"{default_base((a, b + others), [words[:1], words[1:]])}.html")
    return _comparisons([each for each, _ in found], path)


def _one(word: str, logs: Path) -> Reported:
    folder = _run_folder(word, logs)
    if folder is not None:
        return _run(folder, folder / FILE_NAME)
    path = locate(word, logs).absolute()
    comparison = _read_comparison(path)
    if comparison is not None:
        return _comparisons([comparison], path.with_suffix(".html"))
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


def _comparisons(found: Sequence[Comparison], path: Path) -> Reported:
    pages = tuple(comparison_page(comparison) for comparison in found)
    return Reported(pages, "\n".join(map(comparison_text, found)), path)


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
