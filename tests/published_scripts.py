"""Runs a training script in the style people publish, unmodified, and reads what was recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import PATIENCE_S
from warm_jobs import WarmJob, run_warm


@dataclass
class Ran:
    """One script's own count of its steps, and what was recorded of it."""

    status: int
    stdout: str
    stderr: str
    summary: dict[str, Any]

    @classmethod
    def launched(cls, script: Path, logs: Path) -> Ran:
        """Run it under `traceml run`."""
        command = [sys.executable, "-m", "traceml", "run", script]
        ran = subprocess.run(
            [*command, "--logs-dir", logs, "--run-name", script.stem],
            capture_output=True,
            text=True,
            env=_environment(),
            cwd=logs,
            timeout=PATIENCE_S,
        )
        return cls(ran.returncode, ran.stdout, ran.stderr, _read_summary(logs, script.stem))

    @classmethod
    def forked(cls, scripts: Sequence[Path], folder: Path, at_once: int) -> dict[str, Ran]:
        """Run many as copies of a process that has torch already, see `warm_jobs.py`."""
        jobs = [WarmJob([script], folder, script.stem) for script in scripts]
        return {
            job.run_name: cls(
                done.status, done.stdout, done.stderr, _read_summary(job.logs, job.run_name)
            )
            for job, done in zip(jobs, run_warm(jobs, at_once), strict=True)
            if job.run_name is not None
        }

    @property
    def steps_taken(self) -> int:
        """What the script counted next to `optimizer.step()`."""
        return int(re.findall(r"(?<![a-z ])steps: (\d+)", self.stdout)[-1])

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


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _read_summary(logs: Path, name: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((logs / name / "final_summary.json").read_text())
    return summary
