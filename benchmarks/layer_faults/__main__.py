"""`python -m benchmarks.layer_faults`: plants faults in layers and prints which ones are named."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.figure import machine
from benchmarks.layer_faults.catalog import LAYER_FAULTS, LayerFault, chosen
from benchmarks.layer_faults.judge import LayerVerdict, judge

SCRIPT = Path(__file__).parent / "train.py"
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180.0


def main() -> None:
    """Run the faults that were asked for, one after the other, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layer_faults", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--gpu", action="store_true", help="on a CUDA device")
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    options = parser.parse_args()
    if options.list:
        print("\n".join(each.name for each in LAYER_FAULTS))
        return
    rows = []
    for fault in chosen(options.only, options.gpu):
        verdict = examine(fault)
        rows.append((fault, verdict))
        print(_row(fault, verdict), flush=True)
    text = table(rows)
    print(f"\n{text}")
    if options.markdown:
        options.markdown.write_text(f"{machine()}\n\n{text}\n")


def examine(fault: LayerFault) -> LayerVerdict:
    """Run a training with the fault in it, as a user would, and judge its summary."""
    with tempfile.TemporaryDirectory(prefix="traceml-layers-") as folder:
        return judge(fault.truth, run(fault, Path(folder)))


def run(fault: LayerFault, folder: Path) -> dict[str, Any] | None:
    """The summary of a run; `None` where it left none."""
    environment = {**commands.environment(), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    words = [*commands.traceml(), "run", "--profile=deep", "--mode=summary"]
    words += ["--logs-dir", str(folder), "--run-name", "run", str(SCRIPT), "--args", *fault.words()]
    subprocess.run(
        words,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    path = folder / "run" / "final_summary.json"
    if not path.exists():
        return None
    summary: dict[str, Any] = json.loads(path.read_bytes())
    return summary


def table(rows: list[tuple[LayerFault, LayerVerdict]]) -> str:
    """The table of all faults, with the count of those that were named rightly."""
    right = sum(verdict.is_right for _, verdict in rows)
    head = ["| fault | said | right | why not |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *(_row(*each) for each in rows), "", f"{right} of {len(rows)} right."])


def _row(fault: LayerFault, verdict: LayerVerdict) -> str:
    mark = "yes" if verdict.is_right else "NO"
    return f"| {fault.name} | {verdict.said} | {mark} | {verdict.reason} |"


if __name__ == "__main__":
    main()
