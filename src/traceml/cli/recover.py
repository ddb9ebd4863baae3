"""`traceml recover`: the summary of a run whose agent died."""

from __future__ import annotations

from pathlib import Path

from traceml.api.find_runs import recover
from traceml.cli.parser import CommandParser, add_logs_dir, some_text


def main(words: list[str]) -> int:
    """Rebuild the summary and print it."""
    parser = CommandParser("recover", description="Rebuild the summary of a run from its records.")
    parser.add_argument("run", metavar="RUN", type=some_text, help="a run folder, or a run's name")
    add_logs_dir(parser)
    options = parser.parse_args(words)
    print(recover(options.run, Path(options.logs_dir)))
    return 0
