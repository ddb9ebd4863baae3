"""The command line: one file per subcommand; only the requested one is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "run": "run a training script with tracing",
    "compare": "say what changed between two runs",
    "runs": "list and query runs by parameters, metrics and facts",
    "tag": "tag a run, or write a note on it",
    "push": "send runs to the team's MLflow server",
    "promote": "register a run's checkpoint as a model, with its comparison",
    "view": "print a finished run's summary again",
    "report": "write a run or a comparison as one HTML file",
    "ui": "serve the dashboard and all runs to a browser",
    "watch": "show a run that is going on, live in this terminal",
    "recover": "rebuild the summary of a run whose agent died",
    "demo": "the before/after story on this machine, in under a minute",
}
_HIDDEN = ("agent", "cell")

_EXIT_USAGE = 2
_EXIT_INTERRUPTED, _EXIT_BROKEN_PIPE = 130, 141  # as a shell reports SIGINT and SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if len(words) > 1 and words[0] == "help":
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else _EXIT_USAGE
    if words[0] == "--version":
        from traceml import __version__

        print(f"traceml {__version__}")
        return 0
    if words[0] not in COMMANDS and words[0] not in _HIDDEN:
        from traceml.cli.misplaced_words import what_was_meant
        from traceml.model.printable import printable

        print(f"traceml: {printable(what_was_meant(words, COMMANDS))}", file=sys.stderr)
        return _EXIT_USAGE
    return _dispatch(words[0], words[1:])


def _dispatch(name: str, words: list[str]) -> int:
    from importlib import import_module

    from traceml.model.errors import TraceMLError
    from traceml.model.printable import printable_lines

    try:
        status: int = import_module(f"traceml.cli.{name}").main(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # a reader that has gone shows here, not while Python ends
    except TraceMLError as error:
        print(f"traceml {name}: {printable_lines(str(error))}", file=sys.stderr)
        return _EXIT_USAGE
    except BrokenPipeError:  # whoever read our output has gone; that is their choice
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return status


def _help() -> str:
    lines = [
        "traceml: why is this PyTorch training job slow or unstable, and what changed?",
        "",
        "usage: traceml COMMAND [options]",
        "",
        *(f"  {name:<9} {words}" for name, words in COMMANDS.items()),
        "",
        "  traceml COMMAND --help says more; traceml --version prints the version",
    ]
    return "\n".join(lines)
