"""Exports a run: its tables as files, or its timeline as a trace."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import BinaryIO

from traceml.api.find_runs import find_folder
from traceml.api.run_files import RunFiles
from traceml.figures.exported_tables import TABLE_NAMES, ExportedTable, exported_tables
from traceml.figures.exported_timeline import write_timeline
from traceml.model.errors import UsageError
from traceml.model.printable import printable_lines, shell_word
from traceml.model.quantities import count
from traceml.store.load import load_run, ring_paths
from traceml.store.metric_curves import logged_values
from traceml.store.perfetto_trace import PerfettoWriter
from traceml.store.records import RunRecords
from traceml.store.table_files import table_file, write_table
from traceml.summaries.record import Summary

PERFETTO = "perfetto"
EXPORT_FORMATS = ("parquet", "csv", "jsonl", PERFETTO)
TEXT_FORMATS = ("csv", "jsonl")


@dataclass(frozen=True, slots=True)
class Written:
    """A file that an export wrote."""

    path: Path
    what: str
    """What it holds, in words, such as `1,200 rows`."""


class RunExport:
    """A run that is read for its export."""

    def __init__(self, run: str, logs_dir: Path) -> None:
        """Raises RunNotFound where there is no such run, UnreadableRecords where it is damaged."""
        folder = find_folder(run, logs_dir)
        self.records: RunRecords = load_run(folder)
        files = RunFiles(folder)
        self.summary: Summary | None = files.summary
        self.tables: tuple[ExportedTable, ...] = exported_tables(
            self.records, self.summary, partial(logged_values, folder)
        )
        self.notes = tuple(map(printable_lines, _notes(folder, files, self.records)))

    def table(self, name: str) -> ExportedTable:
        """Returns one of `TABLE_NAMES`."""
        return self.tables[TABLE_NAMES.index(name)]

    def print_table(self, name: str, form: str, file: BinaryIO) -> None:
        """Writes one table to an open file, such as stdout."""
        table = self.table(name)
        write_table(file, form, table.columns, table.chunks())

    def write_table(self, name: str, form: str, path: Path, is_forced: bool) -> list[Written]:
        """Writes one table as a file."""
        with _new_file(path, is_forced) as file:
            table = self.table(name)
            rows = write_table(file, form, table.columns, table.chunks())
        return [Written(path, count(rows, "row"))]

    def write_tables(
        self, names: Sequence[str], form: str, folder: Path, is_forced: bool
    ) -> list[Written]:
        """Writes tables into a folder, one file each; other files there stay."""
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; several tables need a folder: choose another -o")
        paths = {name: table_file(folder, name, form) for name in names}
        for path in paths.values():
            _refuse_existing(path, is_forced)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be made ({error}); choose another -o") from None
        return [
            written
            for name, path in paths.items()
            for written in self.write_table(name, form, path, is_forced)
        ]

    def write_trace(self, path: Path, is_forced: bool) -> list[Written]:
        """Writes the run's timeline for ui.perfetto.dev."""
        with _new_file(path, is_forced) as file:
            steps, findings = write_timeline(PerfettoWriter(file), self.records, self.summary)
        return [Written(path, f"{count(steps, 'step')}, {count(findings, 'finding')}")]


def file_ending(form: str) -> str:
    """Returns how the names of this format's files end, without the dot."""
    return "pftrace" if form == PERFETTO else form


def is_single_file(path: Path, form: str) -> bool:
    """Returns whether a path is meant as one file of this format, by the end of its name."""
    return path.suffix == f".{file_ending(form)}"


def refuse_other_ending(path: Path, form: str) -> None:
    """Raises UsageError where a path that is no folder ends as the files of another format do."""
    for other in EXPORT_FORMATS:
        if other != form and is_single_file(path, other) and not path.is_dir():
            raise UsageError(
                f"{path} ends as {other} files do, and --format is {form}; give it the ending "
                f".{file_ending(form)}, or pass --format {other}"
            )


def _notes(folder: Path, files: RunFiles, records: RunRecords) -> list[str]:
    """Returns what is missing from an export, in words."""
    notes = list(records.notes)
    if files.state == "live":
        notes.append("the run is still going on: this is what is on disk so far")
    elif files.state == "lost" and ring_paths(folder, files.manifest):
        notes.append(
            f"the last steps are not on disk yet: `traceml recover {shell_word(folder)}` adds "
            "them, then export again"
        )
    if files.summary is None:
        notes.append(
            "the run has no summary, so its findings are missing: "
            f"`traceml recover {shell_word(folder)}` makes one"
        )
    folded = sum(int(rank.blocks["complete_steps"].sum()) for rank in records.ranks)
    if folded:
        notes.append(
            f"{count(folded, 'old step')} of all ranks are kept as blocks of several: they are in "
            "the table step_blocks, and on no timeline"
        )
    return notes


def _refuse_existing(path: Path, is_forced: bool) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a folder, and one file is to be written; choose another -o")
    if path.exists() and not is_forced:
        raise UsageError(f"{path} exists already; choose another -o, or pass --force to replace it")


@contextmanager
def _new_file(path: Path, is_forced: bool) -> Iterator[BinaryIO]:
    """Opens a file for writing that takes its place only when it is complete."""
    _refuse_existing(path, is_forced)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(mkdtemp(prefix=".traceml-export-", dir=path.parent))
        try:
            with (beside / path.name).open("wb") as file:
                yield file
            (beside / path.name).replace(path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error}); choose another -o") from None
