"""`traceml watch`: the live terminal view of a run in progress."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceml.api.find_runs import find_folder, view
from traceml.cli.parser import CommandParser, add_logs_dir, some_text
from traceml.launch.display_mode import terminal_obstacles
from traceml.launch.messages import say
from traceml.model.errors import UsageError
from traceml.model.printable import shell_word
from traceml.store import folder as folders


def main(words: list[str]) -> int:
    """Shows the run until it ends, and then its summary."""
    options = _parser().parse_args(words)
    folder = find_folder(options.run, Path(options.logs_dir))
    if options.attached is not None:
        from traceml.tui.app import watch_attached

        watch_attached(folder, options.attached, options.keys)
        return 0
    if not folders.is_going_on(folder):
        summary = view(str(folder), folder.parent)
        say(f"the run {folder.name} is over; this is its summary")
        print(summary)
        return 0
    for obstacle in terminal_obstacles():
        raise UsageError(
            f"{obstacle}; the live view needs a terminal and textual, "
            f"`traceml view {shell_word(options.run)}` prints the summary once the run is over"
        )
    from traceml.tui.app import Outcome, watch

    if watch(folder) is Outcome.ENDED:
        print(view(str(folder), folder.parent))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "watch",
        description="Attach the live terminal view to a run that is going on. "
        "q or Ctrl-C leaves it; the run goes on.",
    )
    parser.add_argument("run", metavar="RUN", type=some_text, help="a run folder, or a run's name")
    add_logs_dir(parser)
    # The launcher's own: the link to it, and the keyboard of the command behind the view.
    parser.add_argument("--attached", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--keys", type=int, help=argparse.SUPPRESS)
    return parser
