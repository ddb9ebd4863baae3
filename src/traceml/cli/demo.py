"""`traceml demo`: the before/after story on this machine."""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

from traceml.api.compare import compare
from traceml.api.demo import SCENARIOS, run_scenario
from traceml.cli.run import show
from traceml.model.errors import UsageError
from traceml.text.comparison import comparison_text

_STORY = {
    "compare_slow": "1/3  The same training with a slow input path: every sample takes 4 ms.",
    "compare_fast": "2/3  The same training again, the input path mended.",
}


def main(words: list[str]) -> int:
    """Runs the demo; returns the status of whatever failed in it."""
    parser = argparse.ArgumentParser(
        prog="traceml demo",
        description="Train twice, with a slow and with a fast input path, and compare the two.",
    )
    parser.add_argument("--logs-dir", metavar="DIR", default="logs", help="where runs are kept")
    logs_dir = Path(parser.parse_args(words).logs_dir)
    if find_spec("torch") is None:
        raise UsageError(
            "the demo trains a small model and torch is not installed here; install it"
        )
    began = time.monotonic()
    for name in SCENARIOS:
        print(f"\n{_STORY[name]}\n", flush=True)
        status, folder = run_scenario(name, logs_dir)
        show(folder)
        if status:
            return status
    print("\n3/3  What changed between the two runs?\n", flush=True)
    slow, fast = SCENARIOS
    comparison, base = compare(slow, fast, logs_dir, None)
    print(comparison_text(comparison))
    print(f"\nThe whole story took {time.monotonic() - began:.0f} s. Its files:")
    for name in SCENARIOS:
        print(f"  {logs_dir / name / 'final_summary.json'}")
    print(f"  {base}.json and {base}.txt")
    return 0
