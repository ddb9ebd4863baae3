"""Runs a training script in the style people publish, unmodified, and reads what was recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any


class Ran:
    """One script's own count of its steps, and what was recorded of it."""

    def __init__(self, script: Path, logs: Path) -> None:
        command = [sys.executable, "-m", "traceml", "run", script]
        ran = subprocess.run(
            [*command, "--logs-dir", logs, "--run-name", script.stem],
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            cwd=logs,
        )
        self.status, self.stdout, self.stderr = ran.returncode, ran.stdout, ran.stderr
        self.summary: dict[str, Any] = json.loads(
            (logs / script.stem / "final_summary.json").read_text()
        )

    @property
    def steps_taken(self) -> int:
        """What the script counted next to `optimizer.step()`."""
        return int(re.findall(r"^steps: (\d+)$", self.stdout, re.MULTILINE)[-1])

    @property
    def steps_recorded(self) -> int:
        recorded: int = self.summary["step_time"]["metadata"]["training_total_steps"]
        return recorded

    def assert_every_step_is_recorded(self) -> None:
        """Those that the script took, and no other; nothing of ours failed."""
        assert self.status == 0, self.stderr
        assert self.steps_recorded == self.steps_taken
        tracer = self.summary["tracer"]
        assert tracer["failures"] == 0, tracer["last_failure"]
        assert tracer["steps_lost"] == 0

    def __getitem__(self, metric: str) -> Any:
        return self.summary["step_time"]["global"]["average"][metric]
