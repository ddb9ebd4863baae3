"""`traceml history`: a metric of one command along commits, and where it changed."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from traceml.api.query_runs import existing_folder
from traceml.api.run_history import run_history
from traceml.api.run_series import DEFAULT_METRIC, HistoryRequest
from traceml.cli.compare import guarded_gate, percentage
from traceml.cli.parser import (
    CommandParser,
    add_format,
    add_logs_dir,
    in_braces,
    one_of,
    some_text,
)
from traceml.compare.change_points import MIN_CHANGE
from traceml.compare.record import to_json
from traceml.store.query_language import split_names
from traceml.text.run_history import history_markdown, history_text

_FORMATS = ("text", "json", "markdown")
_ORDERS = ("commit", "time")
_FAIL_ON = ("regression",)
_REGRESSION, _NOTHING_MEASURED = 1, 3
_EPILOG = """\
FILTER is that of traceml runs. Runs of the same command, parameters and machine are one series;
seeds and names may differ. Of several series the longest is shown, and the others are listed.

Exit status: 0; 1 --fail-on regression, and the newest level began with a change to the worse; 2 a
usage error; 3 no run that ended well has the metric, or, with --fail-on, fewer than twelve commits
(in time: runs) do.
"""


def main(words: list[str]) -> int:
    """Prints the history; returns the exit status."""
    return guarded_gate(lambda: _history(_parser().parse_args(words)))


def _history(options: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every terminal has an ellipsis
    request = HistoryRequest(
        filter=options.filter,
        metric=options.metric,
        command=options.command,
        run=options.run,
        by_time=options.order == "time",
        any_host=options.any_host,
        ignored=tuple(split_names(options.ignore or "")),
        min_change=options.min_change,
    )
    history = run_history(existing_folder(Path(options.logs_dir)), request, Path.cwd())
    if options.format == "json":
        print(to_json(history).decode(), end="")
    else:
        words = history_text if options.format == "text" else history_markdown
        print(words(history), end="")
    # A gate that cannot judge must not pass.
    if not history.runs or (options.fail_on and not history.is_judged):
        return _NOTHING_MEASURED
    return _REGRESSION if options.fail_on and history.is_regression else 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "history",
        is_mixed=True,
        description="Show a metric of one command along commits, and where it changed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("filter", nargs="?", metavar="FILTER", help="only runs for which this holds")
    add(
        "--metric",
        metavar="NAME",
        type=some_text,
        default=DEFAULT_METRIC,
        help=f"a fact, or a logged metric (default: {DEFAULT_METRIC})",
    )
    add("--command", metavar="TEXT", type=some_text, help="only commands that hold this text")
    add("--run", metavar="NAME", type=some_text, help="the series that this run belongs to")
    add(
        "--order",
        type=one_of(*_ORDERS),
        metavar=in_braces(_ORDERS),
        default=_ORDERS[0],
        help="of the runs (default: commit, where this folder's repository knows them)",
    )
    add("--any-host", action="store_true", help="machines of different names may be one series")
    add(
        "--ignore",
        metavar="NAMES",
        type=some_text,
        help="parameters, with commas, that may differ within a series",
    )
    add(
        "--min-change",
        metavar="PCT",
        type=percentage,
        default=MIN_CHANGE,
        help="a smaller change does not count (default: 1%%)",
    )
    add(
        "--fail-on",
        type=one_of(*_FAIL_ON),
        metavar=in_braces(_FAIL_ON),
        help="exit with 1 where the newest change is to the worse",
    )
    add_format(parser, _FORMATS)
    add_logs_dir(parser)
    return parser
