"""`traceml push`: sends runs to the team's MLflow server."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from traceml.api.fetch_runs import FetchedRuns
from traceml.api.find_runs import choose_summaries
from traceml.api.push import push_run
from traceml.cli.parser import CommandParser, add_format, add_logs_dir, some_text
from traceml.model.errors import UsageError
from traceml.model.printable import printable, printable_lines, shorten
from traceml.model.quantities import count, memory
from traceml.store.mlflow_runs import MlflowRuns
from traceml.store.mlflow_upload import Sent

DEFAULT_STORE = "mlflow"
_NOT_ALL = 1
_FORMATS = ("text", "json")
_EPILOG = """\
The server is the one of MLflow's own settings (MLFLOW_TRACKING_URI), or --to mlflow+http://HOST:PORT.
User, password and token are MLflow's too (MLFLOW_TRACKING_USERNAME, …_PASSWORD, …_TOKEN).

A run is sent once: pushing it again sends what is new, or what is missing after a broken push. It
comes with its parameters, logged metrics, tags and note, and under traceml/ with its summary, its
report and the files that it logged. What could not be sent is said, and the exit status is then 1.
"""


def main(words: list[str]) -> int:
    """Sends the runs; says what was sent, and what was not."""
    options = _parser().parse_args(words)
    with FetchedRuns() as fetched:
        paths = choose_summaries(fetched.local_words(options.runs), Path(options.logs_dir))
        sent = _push(paths, options)
    if options.format == "json":
        document = [{"run": name, **asdict(each)} for name, each in sent.items()]
        print(json.dumps(document, indent=1, ensure_ascii=False))
    return _NOT_ALL if any(each.problems for each in sent.values()) else 0


def _push(paths: Sequence[Path], options: argparse.Namespace) -> dict[str, Sent]:
    """Sends runs one after the other, and says so; returns what was sent by their names."""
    store, progress, sent = open_mlflow(options.to), SendingProgress(), {}
    for path in paths:
        name = path.parent.name
        sent[name] = push_run(store, path, options.experiment, options.all_versions, progress.show)
        progress.clear()
        if options.format == "text":
            print(f"{printable(name)}: {sent_words(sent[name])}")
        say_problems("push", name, sent[name])
    return sent


def _parser() -> CommandParser:
    parser = CommandParser(
        "push",
        is_mixed=True,
        description="Send runs to an MLflow tracking server.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", type=some_text, help="a run folder, or a run's name")
    add(
        "--to",
        metavar="STORE",
        type=some_text,
        default=DEFAULT_STORE,
        help="mlflow, or mlflow+http://HOST:PORT (default: mlflow)",
    )
    add(
        "--experiment",
        metavar="NAME",
        type=some_text,
        help="made where it is missing (default: MLFLOW_EXPERIMENT_NAME, else MLflow's Default)",
    )
    add("--all-versions", action="store_true", help="earlier versions of logged files too")
    add_format(parser, _FORMATS)
    add_logs_dir(parser)
    return parser


def open_mlflow(word: str) -> MlflowRuns:
    """Returns the server that a word names; raises UsageError where it names something else."""
    if word != DEFAULT_STORE and not word.startswith(f"{DEFAULT_STORE}+"):
        raise UsageError(
            f"{printable(word)!r} is no store that runs can be sent to; expected mlflow, or "
            "mlflow+http://HOST:PORT"
        )
    return MlflowRuns(word)


def sent_words(sent: Sent) -> str:
    """Returns in one line what a push did."""
    if sent.was_there:
        return f"is there already, with nothing new: {sent.link}"
    did = "sent" if sent.is_new else "brought up to date"
    files = f"{count(sent.files, 'file')} ({memory(sent.file_bytes)})"
    return (
        f"{did}: {count(sent.params, 'parameter')}, {count(sent.values, 'value')} of metrics, "
        f"{files}: {sent.link}"
    )


def say_problems(command: str, run: str, sent: Sent) -> None:
    """Says what was sent in another form, or not at all."""
    for note in sent.notes:
        print(f"traceml {command}: {printable_lines(f'{run}: {note}')}", file=sys.stderr)
    for problem in sent.problems:
        text = printable_lines(f"{run}: not sent: {problem}")
        print(f"traceml {command}: {text}", file=sys.stderr)


class SendingProgress:
    """Says on a terminal what is being sent."""

    def __init__(self) -> None:
        self._has_said = False

    def show(self, what: str) -> None:
        """Is called before each request that may take long."""
        if sys.stderr is not None and sys.stderr.isatty():
            text = shorten(printable(what), 60)
            print(f"\r\033[Ksending {text}", end="", file=sys.stderr, flush=True)
            self._has_said = True

    def clear(self) -> None:
        """Removes the line."""
        if self._has_said:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._has_said = False
