"""`traceml view`: a finished run's summary again."""

from __future__ import annotations

from pathlib import Path

from traceml.api.fetch_runs import FetchedRuns
from traceml.api.find_runs import view
from traceml.cli.parser import CommandParser, add_format, add_logs_dir, some_text


def main(words: list[str]) -> int:
    """Print the summary."""
    parser = CommandParser("view", description="Print a summary again.")
    parser.add_argument(
        "run",
        metavar="RUN",
        type=some_text,
        help="a run folder, a final_summary.json, or a run's name",
    )
    add_format(parser, ("text", "json", "markdown"))
    add_logs_dir(parser)
    options = parser.parse_args(words)
    with FetchedRuns() as fetched:
        for run in fetched.local_words([options.run]):
            print(view(run, Path(options.logs_dir), options.format))
    return 0
