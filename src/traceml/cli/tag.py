"""`traceml tag`: tags and a note of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from traceml.api.find_runs import tag_run
from traceml.cli.parser import CommandParser, add_format, add_logs_dir, some_text
from traceml.model.printable import printable_lines
from traceml.store.tags import RunTags

_USAGE = "traceml tag RUN [WORD …] [--remove WORD …] [--note TEXT] [--format F] [--logs-dir DIR]"
_FORMATS = ("text", "json")
_EPILOG = """\
Find runs by tag or note:
  traceml runs --filter 'tags contains "good" and note is not missing'
"""


def main(words: list[str]) -> int:
    """Changes the tags and the note; prints what holds then."""
    options = _parser().parse_args(words)
    logs_dir = Path(options.logs_dir)
    said = tag_run(options.run, logs_dir, options.tags, options.remove, options.note)
    if options.format == "json":
        print(json.dumps({"tags": said.tags, "note": said.note}, ensure_ascii=False))
    else:
        print(_text(said))
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        "tag",
        is_mixed=True,
        usage=_USAGE,
        description="Tag a run, or write a note on it; without either, print its tags and note.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("run", metavar="RUN", type=some_text, help="a run folder, or a run's name")
    add("tags", nargs="*", default=[], metavar="WORD", help="a tag to add")
    add("--remove", nargs="+", default=[], metavar="WORD", help="tags to remove")
    add("--note", metavar="TEXT", help="the run's note, instead of what it was; '' removes it")
    add_format(parser, _FORMATS)
    add_logs_dir(parser)
    return parser


def _text(said: RunTags) -> str:
    tags = f"tags: {', '.join(said.tags) or 'none'}"
    return tags if said.note is None else f"{tags}\nnote: {printable_lines(said.note)}"
