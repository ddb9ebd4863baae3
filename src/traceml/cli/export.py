"""`traceml export`: a run's steps, samples, findings and metrics for other tools."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from traceml.api.export_run import (
    EXPORT_FORMATS,
    PERFETTO,
    TEXT_FORMATS,
    RunExport,
    Written,
    file_ending,
    is_single_file,
    refuse_other_ending,
)
from traceml.cli.parser import CommandParser, add_logs_dir, in_braces, one_of, some_text
from traceml.figures.exported_tables import TABLE_NAMES
from traceml.model.errors import UsageError

_DEFAULT_TABLE = "steps"
_EPILOG = f"""\
Tables: {", ".join(TABLE_NAMES)}. A table has a row per step and rank, per
sample, per finding or per logged value; units are in the names of its columns, and what was not
measured is empty.

  traceml export my-run --format csv                     the steps, to stdout
  traceml export my-run --format csv --table metrics     another table, to stdout
  traceml export my-run --format parquet -o my-run       every table, a file each in the folder
  traceml export my-run --format parquet -o steps.parquet    one table as this file
  traceml export my-run --format perfetto -o my-run.pftrace  a timeline for ui.perfetto.dev
"""


def main(words: list[str]) -> int:
    """Writes or prints what was asked for."""
    options = _parser().parse_args(words)
    _refuse_together(options)
    export = RunExport(options.run, Path(options.logs_dir))
    if options.output is None:
        export.print_table(options.table or _DEFAULT_TABLE, options.format, sys.stdout.buffer)
    else:
        for written in _write(export, options, Path(options.output)):
            print(f"Written to {written.path}: {written.what}", file=sys.stderr)
    for note in export.notes:
        print(f"traceml export: {note}", file=sys.stderr)
    return 0


def _write(export: RunExport, options: argparse.Namespace, path: Path) -> list[Written]:
    if options.format == PERFETTO:
        return export.write_trace(path, options.force)
    if is_single_file(path, options.format):
        table = options.table or _DEFAULT_TABLE
        return export.write_table(table, options.format, path, options.force)
    names = TABLE_NAMES if options.table is None else (options.table,)
    return export.write_tables(names, options.format, path, options.force)


def _refuse_together(options: argparse.Namespace) -> None:
    if options.format == PERFETTO and options.table is not None:
        raise UsageError("--table is for tables, and a Perfetto trace has none; leave it out")
    if options.output is not None:
        refuse_other_ending(Path(options.output), options.format)
    elif options.format not in TEXT_FORMATS:
        raise UsageError(
            f"--format {options.format} is no text and cannot be printed; say where to write it, "
            f"such as -o run.{file_ending(options.format)}"
        )


def _parser() -> CommandParser:
    parser = CommandParser(
        "export",
        description="Export a run's steps, samples, findings and logged metrics.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("run", metavar="RUN", type=some_text, help="a run folder, or a run's name")
    add(
        "--format",
        type=one_of(*EXPORT_FORMATS),
        metavar=in_braces(EXPORT_FORMATS),
        required=True,
        help="what is written; perfetto is a timeline, the others are tables",
    )
    add(
        "-o",
        "--output",
        metavar="PATH",
        type=some_text,
        help="a file whose name ends as the format does, for one table; else a folder with a file "
        "for each. Without it, one table is printed",
    )
    add(
        "--table",
        type=one_of(*TABLE_NAMES),
        metavar="TABLE",
        help=f"this table alone (printed, or one file: {_DEFAULT_TABLE} unless it says otherwise)",
    )
    add("--force", action="store_true", help="replace files that exist")
    add_logs_dir(parser)
    return parser
