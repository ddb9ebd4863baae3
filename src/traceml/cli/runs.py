"""`traceml runs`: lists and queries the runs of a logs folder."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from traceml.api.listed_runs import (
    added_columns,
    are_added,
    choose_columns,
    group_listed,
    groups_document,
    runs_document,
    usual_columns,
    what_mattered_in,
)
from traceml.api.query_runs import RunQuery, Runs, RunSearch, existing_folder
from traceml.cli.parser import CommandParser, add_format, add_logs_dir, some_text, whole_number
from traceml.compare.parameter_groups import ALL_BUT
from traceml.compare.record import to_json
from traceml.model.errors import UsageError
from traceml.model.printable import printable_lines, shorten
from traceml.model.quantities import count
from traceml.store.query_language import split_names
from traceml.store.query_names import written_key
from traceml.text import run_list
from traceml.text.what_mattered import what_mattered_text

DEFAULT_LIMIT = 50
"""Rows of a table that people read; JSON and CSV have all."""
WIDTH_OF_PIPES = 200
"""Characters of a text table in a pipe or a file, unless COLUMNS says another width: the parameters
in which runs differ may be hundreds."""
PROGRESS_EVERY_S = 0.2
PROGRESS_AFTER_S = 1.0

_FORMATS = ("text", "table", "json", "csv", "markdown")
_EPILOG = """\
A filter compares what runs have with values:
  learning_rate > 0.001 and status = "finished" and step_time_ms < 50
  params.optimizer in ("adam", "adamw") and not metrics."val/loss" > 2
  tags contains "good" and params.seed is missing and started > "2026-11-16"
Names are parameters (params.lr), logged metrics (metrics.loss: the last value; metrics.loss.min,
.max, .mean, .best) and facts (status, step_time_ms, duration_s, user, commit …); the prefix can be
left out where only one is meant. traceml runs --columns '*' --format csv shows all of them.
"""


def main(words: list[str]) -> int:
    """Prints the runs."""
    options = _parser().parse_args(list(_joined(words)))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has a ±
    is_table = options.format in ("text", "table", "markdown")
    _refuse_together(options)
    # Groups are of all runs, and so is what mattered; the limit is then of groups.
    is_of_all = bool(options.group_by or options.what_mattered)
    limit = None if is_of_all else _limit(options.limit, is_table)
    progress = _ReadingProgress()
    query = RunQuery(options.filter, None if is_of_all else options.sort, limit)
    found = _found(options, query, progress)
    progress.clear()
    if options.what_mattered:
        _print_what_mattered(found, options)
    elif options.group_by:
        _print_groups(found, options, _limit(options.limit, is_table))
    else:
        _print_runs(found, options)
    for note in found.notes:
        print(f"traceml runs: {printable_lines(note)}", file=sys.stderr)
    return 0


def _found(options: argparse.Namespace, query: RunQuery, progress: _ReadingProgress) -> Runs:
    """Returns the runs of the logs folder, or of the store that was asked for."""
    if options.store is None:
        if options.experiment:
            raise UsageError("--experiment is of an MLflow server: name it with --store mlflow")
        return RunSearch(existing_folder(Path(options.logs_dir)), progress.show).search(query)
    from traceml.api.store_search import search_store  # late: a store needs a package of its own

    return search_store(options.store, query, options.experiment, progress.show)


def _joined(words: Sequence[str]) -> Iterator[str]:
    """Yields the words with `--sort -loss` as one, which argparse takes for two options."""
    rest = iter(words)
    for word in rest:
        value = next(rest, None) if word == "--sort" else None
        if value is None:
            yield word
        else:
            yield f"{word}={value}"


def _parser() -> CommandParser:
    parser = CommandParser(
        "runs",
        description="List the runs under a logs folder, the newest first.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--filter", metavar="EXPR", help="only runs for which this holds")
    add("--sort", metavar="KEY", help='by this column; "KEY desc" or -KEY: the largest first')
    add(
        "--group-by",
        metavar="KEY",
        help=f"one row per group: by params.lr, or by {ALL_BUT}params.seed (all parameters but)",
    )
    add(
        "--what-mattered",
        metavar="METRIC",
        type=some_text,
        help="which parameters this metric depends on over these runs, instead of a list",
    )
    add(
        "--columns",
        metavar="KEYS",
        type=_names,
        help="with commas, or params.*; +KEY adds to the usual ones",
    )
    add(
        "--limit",
        metavar="N",
        type=whole_number(0),
        help=f"at most N rows (default: {DEFAULT_LIMIT} in tables, all in json and csv; 0: all)",
    )
    add(
        "--store",
        metavar="STORE",
        type=some_text,
        help="runs of another tool: mlflow, mlflow+http://HOST:PORT, tensorboard:DIR, wandb:DIR",
    )
    add(
        "--experiment",
        metavar="NAME",
        type=some_text,
        action="append",
        default=[],
        help="of an MLflow store: this experiment alone; may be given several times",
    )
    add_format(parser, _FORMATS, "what is printed (default: text)")
    add_logs_dir(parser)
    return parser


def _names(text: str) -> str:
    """Refuses a list of columns without any."""
    if not any(split_names(text)):
        raise argparse.ArgumentTypeError(
            f"{text!r} names no column; expected names with commas, such as name,params.lr"
        )
    return text


def _refuse_together(options: argparse.Namespace) -> None:
    if not options.what_mattered:
        return
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("group_by", "sort", "columns", "limit")
        if getattr(options, name) is not None
    ]
    given += ["--format=csv"] if options.format == "csv" else []
    if given:
        raise UsageError(
            f"--what-mattered is about all runs that --filter lets through and has no rows: "
            f"leave out {', '.join(given)}"
        )


def _print_what_mattered(found: Runs, options: argparse.Namespace) -> None:
    mattered = what_mattered_in(found, options.what_mattered)
    if options.format == "json":
        print(to_json(mattered).decode(), end="")
        return
    # In markdown the lines are a block of code, which names of parameters cannot format.
    opening = "    " if options.format == "markdown" else ""
    print(textwrap.indent(what_mattered_text(mattered), opening), end="")


def _limit(asked: int | None, is_table: bool) -> int | None:
    if asked is None:
        return DEFAULT_LIMIT if is_table else None
    return asked or None


def _print_runs(found: Runs, options: argparse.Namespace) -> None:
    if options.format in ("json", "csv"):
        keys = choose_columns(found, options.columns, lambda: found.keys)
        if options.format == "json":
            _print_json(runs_document(found, keys))
            return
        columns = [found.column(key) for key in keys]
        print(
            run_list.csv_text(list(map(written_key, keys)), list(zip(*columns, strict=True))),
            end="",
        )
        return
    keys = choose_columns(found, options.columns, lambda: usual_columns(found))
    added: list[str] = []
    if options.columns is not None and are_added(options.columns):
        added = added_columns(found, options.columns)
        keys = [*(key for key in keys if key not in added), *added]
    table = run_list.run_table(keys, list(map(found.column, keys)), time.time())
    _print_table(table, options, len(added))
    if options.format != "markdown":
        print(_count_line(found, options.store or options.logs_dir))


def _print_groups(found: Runs, options: argparse.Namespace, limit: int | None) -> None:
    grouped = group_listed(found, options.group_by, options.columns, options.sort, limit)
    shown = grouped.groups
    if options.format == "json":
        _print_json(groups_document(found, grouped))
    elif options.format == "csv":
        rows = [run_list.group_values(group, grouped.columns) for group in shown]
        head = list(rows[0]) if rows else []
        print(run_list.csv_text(head, [list(row.values()) for row in rows]), end="")
    else:
        table = run_list.group_table(shown, grouped.by, grouped.columns, time.time())
        _print_table(table, options, len(table.head) - len(grouped.by))
        if options.format != "markdown":
            more = f", the first {len(shown)} shown" if len(shown) < grouped.total else ""
            print(f"\n{count(grouped.total, 'group')} of {count(len(found), 'run')}{more}")


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False))


def _print_table(table: run_list.TextTable, options: argparse.Namespace, last: int) -> None:
    """Prints a table, in text as wide as the terminal; `last` is the number of columns at its end
    that were added to the usual ones, or that sum up groups."""
    if not table.rows:
        return
    if options.format == "markdown":
        print(run_list.markdown(table))
        return
    # What was asked for is shown.
    is_open = options.columns is None or bool(last)
    width = shutil.get_terminal_size((WIDTH_OF_PIPES, 0)).columns if is_open else None
    text, left_out = run_list.aligned(table, width, last, all_of_last=options.columns is not None)
    print(text)
    if left_out:
        names = shorten(", ".join(left_out), 200)
        fewer = " and --group-by" if options.group_by else ""
        how = f"choose with --columns{fewer}; --format=json has all"
        print(f"\nnot shown: {count(len(left_out), 'column')}: {names} ({how})")


def _count_line(found: Runs, place: str) -> str:
    if not found.total:
        return f"no run under {printable_lines(place)} matches"
    shown = "" if len(found) == found.total else f", {len(found)} shown (--limit 0 shows all)"
    return f"\n{count(found.total, 'run')}{shown}"


class _ReadingProgress:
    """Says on a terminal how many runs have been read, once that takes long."""

    def __init__(self) -> None:
        self._began_s = self._said_s = time.monotonic()
        self._has_said = False

    def show(self, done: int, total: int | None) -> None:
        """Is called after each run."""
        now_s = time.monotonic()
        if now_s - self._began_s < PROGRESS_AFTER_S or now_s - self._said_s < PROGRESS_EVERY_S:
            return
        if sys.stderr is not None and sys.stderr.isatty():
            of_all = "" if total is None else f"for the index: {done:,} of {total:,} "
            text = f"\rreading runs {of_all or f'{done:,} '}"
            print(text, end="", file=sys.stderr, flush=True)
            self._has_said = True
        self._said_s = now_s

    def clear(self) -> None:
        """Removes the line."""
        if self._has_said:
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
