"""`traceml view`: a finished run's summary again."""

from __future__ import annotations

from pathlib import Path

from traceml.api.find_runs import view
from traceml.cli.parser import CommandParser, add_logs_dir, some_text


def main(words: list[str]) -> int:
    """Print the summary."""
    parser = CommandParser("view", description="Print a summary again.")
    parser.add_argument(
        "run",
        metavar="RUN",
        type=some_text,
        help="a run folder, a final_summary.json, or a run's name",
    )
    add_logs_dir(parser)
    options = parser.parse_args(words)
    print(view(options.run, Path(options.logs_dir)))
    return 0
