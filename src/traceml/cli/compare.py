"""`traceml compare`: what changed between two runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceml.api.compare import compare
from traceml.text.comparison import comparison_text

_NOTHING_IN_COMMON = 3


def main(words: list[str]) -> int:
    """Compare, write both files, print the text."""
    parser = argparse.ArgumentParser(
        prog="traceml compare", description="Say what changed between two runs."
    )
    parser.add_argument("a", help="the first run: a folder, a final_summary.json, or a name")
    parser.add_argument("b", help="the second run")
    parser.add_argument("--output", metavar="BASE", help="write BASE.json and BASE.txt")
    parser.add_argument("--logs-dir", metavar="DIR", default="logs", help="where runs are kept")
    options = parser.parse_args(words)
    comparison, base = compare(options.a, options.b, Path(options.logs_dir), options.output)
    print(comparison_text(comparison))
    print(f"Written to {base}.json and {base}.txt")
    return 0 if comparison.has_common_metric else _NOTHING_IN_COMMON
