"""`traceml tag`: tags and a note of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceml.api.find_runs import tag_run
from traceml.model.printable import printable_lines


def main(words: list[str]) -> int:
    """Changes the tags and the note; prints what holds then."""
    parser = argparse.ArgumentParser(
        prog="traceml tag",
        usage="traceml tag RUN [WORD …] [--remove WORD …] [--note TEXT] [--logs-dir DIR]",
        description="Tag a run, or write a note on it; without either, print what was said of it.",
        epilog="Runs are found by it: traceml runs --filter 'tags contains \"good\"'",
    )
    parser.add_argument("run", metavar="RUN", help="a run folder, or a run's name")
    parser.add_argument("tags", nargs="*", metavar="WORD", help="a tag to add")
    parser.add_argument("--remove", nargs="+", default=[], metavar="WORD", help="tags to remove")
    parser.add_argument("--note", metavar="TEXT", help="the run's note; an empty one removes it")
    parser.add_argument("--logs-dir", metavar="DIR", default="logs", help="where runs are kept")
    options = parser.parse_intermixed_args(words)
    said = tag_run(options.run, Path(options.logs_dir), options.tags, options.remove, options.note)
    print(f"tags: {', '.join(said.tags) or 'none'}")
    if said.note:
        print(f"note: {printable_lines(said.note)}")
    return 0
