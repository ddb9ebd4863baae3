"""`traceml recover`: the summary of a run whose agent died."""

from __future__ import annotations

import argparse
from pathlib import Path

from traceml.api.find_runs import recover


def main(words: list[str]) -> int:
    """Rebuild the summary and print it."""
    parser = argparse.ArgumentParser(
        prog="traceml recover", description="Rebuild the summary of a run from its records."
    )
    parser.add_argument("run", help="a run folder, or a run's name")
    parser.add_argument("--logs-dir", metavar="DIR", default="logs", help="where runs are kept")
    options = parser.parse_args(words)
    print(recover(options.run, Path(options.logs_dir)))
    return 0
