"""The pages that compare runs: reads what they show from run folders, and has them drawn."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from traceml.api.artifact_contents import ArtifactContents, KeepPicture
from traceml.api.code_diff import Version, code_diff, differing
from traceml.api.compare import FoundRun, compare_found, compare_found_sides
from traceml.api.inline_pictures import THUMBNAIL, InlinePictures, images_of
from traceml.api.run_files import RunFiles
from traceml.compare.artifact_changes import ArtifactChange, LoggedFile, compare_artifacts
from traceml.compare.artifact_details import Details
from traceml.compare.many_record import ManyComparison
from traceml.compare.record import Comparison
from traceml.compare.terms import Terms
from traceml.facts.history import step_history
from traceml.facts.metric_history import MAX_POINTS, is_training_loss, metric_histories
from traceml.figures.code_difference import CodeDifference
from traceml.figures.compared_run import ComparedRun
from traceml.figures.comparison_page import RunsBeside
from traceml.figures.comparison_page import comparison_page as draw_comparison
from traceml.figures.many_runs_page import MAX_RUNS, ManyRuns, many_runs_page
from traceml.figures.metrics import metric_id
from traceml.figures.page import ComparisonPage, Lines, ManyRunsPage
from traceml.figures.run_overlays import overlays
from traceml.model.errors import RunNotFound, TraceMLError, UsageError
from traceml.model.metric_segments import split_segment
from traceml.model.quantities import memory
from traceml.store.folder import SUMMARY
from traceml.store.run_follower import RunFollower
from traceml.summaries.read import read_compared
from traceml.text import changes
from traceml.text.many_runs import metrics_shown

MAX_CURVES = 12
"""Metrics whose curves a page of many runs has from the start …"""
MAX_PAIR_CURVES = 24
"""… and one of two runs."""
MAX_OF_GROUP = 10
"""Runs of a side whose curves and findings are shown."""
MIN_POINTS = 150
ALL_POINTS = 8000
"""Points of one chart: more runs have fewer each."""
MAX_READ_BYTES = 1 << 30
"""Of logged files that a page compares, a second or two of reading; `traceml compare` reads
more."""
MAX_CODE_S = 10.0
"""For the differences of code altogether."""


def comparison_page(
    a: Sequence[FoundRun],
    b: Sequence[FoundRun],
    logs: Path,
    notes: Sequence[str] = (),
    follow_links: bool = False,
    terms: Terms | None = None,
) -> ComparisonPage:
    """Returns the page that compares two runs or groups of runs; nothing is written."""
    comparison = compare_found_sides(a, b, logs, terms, follow_links)
    shown_a, shown_b = a[:MAX_OF_GROUP], b[:MAX_OF_GROUP]
    found, letters = (*shown_a, *shown_b), ["A"] * len(shown_a) + ["B"] * len(shown_b)
    if len(found) < len(a) + len(b):
        notes = (*notes, f"Curves and findings are those of {MAX_OF_GROUP} runs of a side at most.")
    names = _names_in_pair(comparison, found)
    pictures = InlinePictures()
    if len(a) == len(b) == 1:
        contents = _ComparedFiles(pictures.keep_difference)
        comparison = comparison.with_artifacts(contents.changes(a[0], b[0]))
    beside = RunsBeside(
        runs=tuple(_with_curves(found, letters, names[:MAX_PAIR_CURVES])),
        curves=tuple(names[:MAX_PAIR_CURVES]),
        further=tuple(names[MAX_PAIR_CURVES:]),
        code=tuple(_code_of_pair(comparison, a, b)),
        pictures=tuple(pictures.kept),
        notes=(*notes, *([pictures.note] if pictures.note else ())),
    )
    return draw_comparison(comparison, beside)


def many_page(
    found: Sequence[FoundRun],
    logs: Path,
    notes: Sequence[str] = (),
    follow_links: bool = False,
    compared: ManyComparison | None = None,
) -> tuple[ManyRunsPage, ManyComparison]:
    """Returns the page of three or more runs, each against the first, and their comparison; that is
    made here unless it is given."""
    if len(found) > MAX_RUNS:
        raise too_many(len(found))
    compared = compared or compare_found(found, logs, follow_links=follow_links)
    labels = {name: entry.label for entry in compared.entries for name in entry.runs}
    letters = [labels[run.name] for run in found]
    names = [name for name in metrics_shown(compared) if _has_curve(name, found)]
    runs = tuple(_with_curves(found, letters, names[:MAX_CURVES]))
    first = {run.label: run for run in reversed(runs)}
    entries = tuple(first[entry.label] for entry in compared.entries)
    pictures = InlinePictures()
    _add_images(entries, found, pictures)
    by_name = {run.name: run for run in found}
    contents = _ComparedFiles(lambda name, pixels: None)
    files = {
        entry.label: contents.changes(by_name[entries[0].name], by_name[entry.name])
        for entry in entries[1:]
    }
    page = many_runs_page(
        ManyRuns(
            found=compared,
            entries=entries,
            runs=runs,
            curves=tuple(names[:MAX_CURVES]),
            further=tuple(names[MAX_CURVES:]),
            code=tuple(_code_of_entries(found, letters)),
            files=files,
            pictures=tuple(pictures.kept),
            notes=(*notes, *([pictures.note] if pictures.note else ())),
        )
    )
    return page, compared


def pair_pages(compared: ManyComparison) -> tuple[ComparisonPage, ...]:
    """Returns the pages of the first run with each other one, without curves and files."""
    return tuple(map(draw_comparison, compared.comparisons))


def further_curves(
    found: Sequence[FoundRun], letters: Sequence[str], names: Sequence[str]
) -> tuple[Lines, ...]:
    """Returns the curves of metrics that the page of these runs does not have."""
    runs = list(_with_curves(found, letters, names, is_loss_wanted=False))
    return tuple(overlays(runs, names))


def finer_curves(
    found: Sequence[FoundRun],
    letters: Sequence[str],
    ids: Collection[str],
    steps: tuple[int, int],
) -> tuple[Lines, ...]:
    """Returns the curves with these ids between two steps, in more points than the page has."""
    every = dict.fromkeys(name for run in found for name in run.summary.metrics)
    names = [name for name in every if metric_id(name) in ids]
    runs = list(_with_curves(found, letters, names, is_loss_wanted=False, steps=steps))
    return tuple(overlays(runs, names))


def too_many(number: int) -> UsageError:
    """Returns the error for more runs than a page can show."""
    return UsageError(
        f"{number} runs are too many for one page: expected up to {MAX_RUNS}; choose fewer, or "
        "use traceml compare, which takes any number"
    )


def find_for_page(folders: Sequence[Path]) -> tuple[list[FoundRun], list[str]]:
    """Returns the runs in these folders that can be compared, and why others cannot.

    A run that is not over takes part with the summary of its steps so far. The first one is what
    all others are compared with: raises RunNotFound where it has none.
    """
    found: list[FoundRun] = []
    notes: list[str] = []
    for place, folder in enumerate(folders):
        try:
            run = found_in(folder)
        except TraceMLError as error:
            if place == 0:
                raise
            notes.append(str(error))
            continue
        found.append(run)
        if not run.is_over:
            notes.append(
                f"{folder.name} is not over, or has no final summary: its last steps count."
            )
    if len(found) < 2:
        raise RunNotFound(" ".join(("there is nothing to compare with:", *notes)))
    return found, notes


def unfinished_note(run: FoundRun) -> str:
    """Returns what is special about a run that takes part without a final summary."""
    return f"{run.name} is not over, or has no final summary: only its last steps count."


def found_in(folder: Path) -> FoundRun:
    """Returns the run in a folder; raises RunNotFound where it has no summary yet."""
    path = folder.resolve() / SUMMARY
    if os.path.lexists(path):  # a link or a pipe is refused with its own words
        return FoundRun(folder.name, read_compared(path), path)
    files = RunFiles(folder)
    if files.summary is None:
        raise RunNotFound(
            f"{folder.name} has no summary yet: it has just begun, or ended before it took a step; "
            "traceml recover makes one of what was recorded"
        )
    return FoundRun(folder.name, files.summary, path, is_over=False)


# Curves


def _has_curve(name: str, found: Sequence[FoundRun]) -> bool:
    return any(name in run.summary.metrics for run in found)


def _names_in_pair(comparison: Comparison, found: Sequence[FoundRun]) -> list[str]:
    """Returns the logged metrics: losses of training, those that get a line, others."""
    every = dict.fromkeys(name for run in found for name in sorted(run.summary.metrics))
    losses = [name for name in every if is_training_loss(name)]
    shown = changes.logged_shown(comparison)
    whole = [name for name in every if split_segment(name) is None]  # before its segments
    return list(dict.fromkeys((*losses, *shown, *whole, *every)))


def _with_curves(
    found: Sequence[FoundRun],
    letters: Sequence[str],
    names: Sequence[str],
    is_loss_wanted: bool = True,
    steps: tuple[int, int] | None = None,
) -> Iterator[ComparedRun]:
    """Yields the runs with their values of these metrics; also with the loss of their steps, unless
    every run logged one among the metrics. `steps` are the first and the last that are wanted."""
    points = max(MIN_POINTS, min(MAX_POINTS, ALL_POINTS // max(1, len(found))))
    losses = {name for name in names if is_training_loss(name)}
    has_loss = not is_loss_wanted or all(losses & run.summary.metrics.keys() for run in found)
    for run, label in zip(found, letters, strict=True):
        known = ComparedRun(label, run.name, run.summary, is_served=run.path.name == SUMMARY)
        try:
            follower = RunFollower(run.path.parent)
            follower.refresh()
        except (TraceMLError, OSError):  # a summary without its records, or deleted meanwhile
            yield known
            continue
        logged = follower.metrics()
        wanted = {name: logged[name] for name in names if name in logged}
        began_s = follower.manifest.started_unix_s
        yield replace(
            known,
            metrics=metric_histories(wanted, steps, points),
            steps=None if has_loss else step_history(follower.ranks(), began_s, not run.is_over),
        )


# Code


def _code_of_pair(
    comparison: Comparison, a: Sequence[FoundRun], b: Sequence[FoundRun]
) -> Iterator[CodeDifference]:
    """Yields the difference of the code, where the lineage says that there is one."""
    known = comparison.lineage.differences if comparison.lineage else {}
    if not any(each.name in ("commit", "changes") for each in known.get("code", ())):
        return
    versions = ([Version.of(run.summary, run.path) for run in side] for side in (a, b))
    one, other = differing(*versions)
    yield CodeDifference(("B",), code_diff(one, other, Path.cwd()))


def _code_of_entries(found: Sequence[FoundRun], letters: Sequence[str]) -> Iterator[CodeDifference]:
    """Yields every code once, against that of the baseline."""
    until_s = time.monotonic() + MAX_CODE_S
    versions: dict[str, Version] = {}
    for run, label in zip(found, letters, strict=True):
        version = Version.of(run.summary, run.path)
        if version.commit is not None:
            versions.setdefault(label, version)
    baseline = versions.pop(letters[0], None)
    if baseline is None:
        return
    groups: list[tuple[Version, list[str]]] = []
    for label, version in versions.items():
        for known, labels in groups:
            if known.is_same(version):
                labels.append(label)
                break
        else:
            groups.append((version, [label]))
    for version, labels in groups:
        text = "" if version.is_same(baseline) else None
        if text is None and time.monotonic() < until_s:
            text = code_diff(baseline, version, Path.cwd())
        yield CodeDifference(tuple(labels), text)


# Logged files


class _ComparedFiles:
    """Compares the logged files of runs, until a page has had enough of them read."""

    def __init__(self, keep_picture: KeepPicture) -> None:
        self._keep_picture = keep_picture
        self._left_bytes = MAX_READ_BYTES

    def changes(self, a: FoundRun, b: FoundRun) -> tuple[ArtifactChange, ...]:
        """Returns the logged files that differ between two runs."""
        contents = ArtifactContents(a.path.parent, b.path.parent, self._keep_picture)

        def compare(
            name: str, lhs: LoggedFile, rhs: LoggedFile
        ) -> tuple[Details | None, str | None]:
            size = (lhs.size_bytes or 0) + (rhs.size_bytes or 0)
            if size > self._left_bytes:
                return None, f"{memory(size)} to read, too much for a page; traceml compare does"
            self._left_bytes -= size
            return contents.compare(name, lhs, rhs)

        return compare_artifacts(a.summary.artifacts, b.summary.artifacts, compare)


def _add_images(
    entries: Sequence[ComparedRun], found: Sequence[FoundRun], pictures: InlinePictures
) -> None:
    """Adds the images that differ between runs, those of one name beside each other."""
    folders = {run.name: run.path.parent for run in found}
    names = dict.fromkeys(name for run in entries for name in images_of(run.summary))
    for name in names:
        files = [(run, run.summary.artifacts.get(name)) for run in entries]
        if len({None if file is None else file.sha256 for _, file in files}) < 2:
            continue
        for run, file in files:
            if file is not None:
                title = f"{run.label}: {name}"
                pictures.add_file(title, folders[run.name], file, THUMBNAIL)
