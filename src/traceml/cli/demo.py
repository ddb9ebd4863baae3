"""`traceml demo`: the before/after story on this machine."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path

import traceml
from traceml.api.compare import compare
from traceml.api.run import RunOptions, run
from traceml.cli.parser import CommandParser, add_logs_dir
from traceml.cli.run import show
from traceml.launch.command import Cluster, for_script
from traceml.model.errors import UsageError
from traceml.text.comparison import comparison_text

_SCRIPT = "dataloader_bottleneck_demo.py"
_SIZE = ("--batch-size", "64", "--num-samples", "2560", "--hidden-dim", "768", "--depth", "4")
SCENARIOS = {
    "compare_slow": ("--scenario", "slow", "--sleep-ms", "4", *_SIZE, "--print-every", "10"),
    "compare_fast": ("--scenario", "fast", *_SIZE, "--print-every", "10"),
}
"""Forty steps each: seconds on two CPU cores, and the bottleneck changes."""

_STORY = {
    "compare_slow": "1/3  The same training with a slow input path: every sample takes 4 ms.",
    "compare_fast": "2/3  The same training again, the input path fixed.",
}


def main(words: list[str]) -> int:
    """Runs the demo; returns the status of whatever failed in it."""
    parser = CommandParser(
        "demo",
        description="Train twice, with a slow and with a fast input path, and compare the two.",
    )
    add_logs_dir(parser)
    logs_dir = Path(parser.parse_args(words).logs_dir)
    if find_spec("torch") is None:
        raise UsageError(
            "the demo trains a small model and torch is not installed here; install it"
        )
    began = time.monotonic()
    for name in SCENARIOS:
        print(f"\n{_STORY[name]}\n", flush=True)
        status, folder = _run_scenario(name, logs_dir)
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


def script() -> Path:
    """Returns the demo's training script, from the wheel or the checkout."""
    package = Path(traceml.__file__).parent
    places = (package / "examples" / _SCRIPT, package.parents[1] / "examples/diagnosis" / _SCRIPT)
    for place in places:
        if place.is_file():
            return place
    raise UsageError(
        f"the demo's script is not where it was installed ({places[0]}); "
        "install traceml-insight again"
    )


def _run_scenario(name: str, logs_dir: Path) -> tuple[int, Path | None]:
    """Runs one half of the story under its fixed name."""
    options = RunOptions(run_name=name, logs_dir=logs_dir, overwrite=True)
    command = for_script(os.path.relpath(script()), list(SCENARIOS[name]), Cluster())
    return run(command, name, options)
