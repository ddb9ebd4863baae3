"""The command line: one file per subcommand; only the requested one is loaded."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "run": "run a training script with tracing",
    "compare": "say what changed between two runs",
    "bench": "run two commands or commits in turn until it is clear which is faster",
    "runs": "list and query runs by parameters, metrics and facts",
    "history": "show a metric of one command along commits, and where it changed",
    "tag": "tag a run, or write a note on it",
    "push": "send runs to the team's MLflow server",
    "promote": "register a run's checkpoint as a model, with its comparison",
    "view": "print a finished run's summary again",
    "report": "write a run or a comparison as one HTML file",
    "export": "write a run as tables, or as a timeline for Perfetto",
    "schema": "print the JSON Schema of what a command prints as JSON",
    "mcp": "serve read-only tools about runs to coding agents",
    "ui": "serve the dashboard and all runs to a browser",
    "watch": "show a run that is going on, live in this terminal",
    "recover": "rebuild the summary of a run whose agent died",
    "demo": "the before/after story on this machine, in under a minute",
}
_HIDDEN = ("agent", "cell", "tracker")

_EXIT_USAGE = 2
_EXIT_INTERRUPTED, _EXIT_BROKEN_PIPE = 130, 141  # as a shell reports SIGINT and SIGPIPE

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        _discard_buffered_output()
        return _EXIT_BROKEN_PIPE
    except PermissionError as error:
        if error.filename is None or name in _HIDDEN:
            raise
        print(
            f"traceml {name}: {printable_lines(str(error.filename))} cannot be used "
            f"({error.strerror}): this user may not enter its folder, or not read or write it; "
            "choose another path, or have its owner allow it",
            file=sys.stderr,
        )
        return _EXIT_USAGE
    except OSError as error:
        if not is_no_room(error):
            raise
        _discard_buffered_output()
        print(
            f"traceml {name}: the output could not be written ({error.strerror}); make room, or "
            "write it elsewhere",
            file=sys.stderr,
        )
        return _EXIT_USAGE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    return status


def is_no_room(error: Exception) -> bool:
    """Returns whether an error means that there is no room for what is written, such as on a full
    disk that a shell redirects our output to."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def _discard_buffered_output() -> None:
    """Discards output that is still buffered: Python would try to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
