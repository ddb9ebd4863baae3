"""`traceml view`: a finished run's summary again."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceml.api.find_runs import view


def main(words: list[str]) -> int:
    """Print the summary."""
    parser = argparse.ArgumentParser(prog="traceml view", description="Print a summary again.")
    parser.add_argument("run", help="a run folder, a final_summary.json, or a run's name")
    parser.add_argument("--logs-dir", metavar="DIR", default="logs", help="where runs are kept")
    options = parser.parse_args(words)
    print(view(options.run, Path(options.logs_dir)))
    return 0
