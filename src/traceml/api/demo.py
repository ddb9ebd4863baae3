"""The before/after story: a slow input path, a fast one, and what changed between them."""

from __future__ import annotations

import os
from pathlib import Path

import traceml
from traceml.api.run import RunOptions, run
from traceml.launch.command import Cluster, for_script
from traceml.model.errors import UsageError

_SCRIPT = "dataloader_bottleneck_demo.py"
_SIZE = ("--batch-size", "64", "--num-samples", "2560", "--hidden-dim", "768", "--depth", "4")
SCENARIOS = {
    "compare_slow": ("--scenario", "slow", "--sleep-ms", "4", *_SIZE, "--print-every", "10"),
    "compare_fast": ("--scenario", "fast", *_SIZE, "--print-every", "10"),
}
"""Forty steps each: seconds on two CPU cores, and the bottleneck changes."""


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


def run_scenario(name: str, logs_dir: Path) -> tuple[int, Path | None]:
    """Runs one half of the story under its fixed name."""
    options = RunOptions(run_name=name, logs_dir=logs_dir, overwrite=True)
    command = for_script(os.path.relpath(script()), list(SCENARIOS[name]), Cluster())
    return run(command, name, options)
