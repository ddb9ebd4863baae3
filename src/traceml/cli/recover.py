"""`traceml recover`: the summary of a run whose agent died."""

from __future__ import annotations

from pathlib import Path

from traceml.api.find_runs import recover
from traceml.cli.parser import CommandParser, add_format, add_logs_dir, some_text


def main(words: list[str]) -> int:
    """Rebuild the summary and print it."""
    parser = CommandParser(
        "recover",
        description="Rebuild the summary of a run from its records; of a run over several machines "
        "from the folders of all of them.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        type=some_text,
        help="a run folder, or a run's name; then the folders of its other machines",
    )
    add_format(parser, ("text", "json", "markdown"))
    add_logs_dir(parser)
    options = parser.parse_args(words)
    logs_dir = Path(options.logs_dir)
    print(recover(options.runs[0], logs_dir, options.runs[1:], options.format))
    return 0
