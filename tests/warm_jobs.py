"""Runs several training scripts for the price of one import of torch, see `warm_torch.py`."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Finished, marked_environment

WARM = Path(__file__).with_name("warm_torch.py")
TIMEOUT_S = 2400
"""Of many scripts, where all of them wait for cores."""


@dataclass(frozen=True)
class WarmJob:
    """A script with its arguments, and the folder that it runs in."""

    words: Sequence[str | Path | int]
    cwd: Path
    run_name: str | None = "run"
    """`None`: it is not traced."""

    @property
    def logs(self) -> Path:
        """Where its run is."""
        return self.cwd / "logs"

    def as_told(self) -> dict[str, Any]:
        """What `warm_torch.py` is told."""
        return {
            "words": [str(word) for word in self.words],
            "cwd": str(self.cwd),
            "run_name": self.run_name,
            "logs": str(self.logs),
            "stdout": str(self._output("out")),
            "stderr": str(self._output("err")),
        }

    def finished(self, mark: str, status: int) -> Finished:
        """What it has left."""
        stdout, stderr = (self._output(ending).read_text() for ending in ("out", "err"))
        return Finished(self.cwd, mark, status, stdout, stderr)

    def _output(self, ending: str) -> Path:
        return self.cwd / f"{self.run_name or 'untraced'}.{ending}"


def run_warm(jobs: Sequence[WarmJob], at_once: int) -> Iterator[Finished]:
    """Run the jobs, some at a time; what each has left, in the order of the jobs."""
    mark = uuid.uuid4().hex
    ran = subprocess.run(
        [sys.executable, str(WARM), str(at_once)],
        input=json.dumps([job.as_told() for job in jobs]),
        capture_output=True,
        text=True,
        env=marked_environment(mark),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    statuses = dict(map(int, line.split()) for line in ran.stdout.splitlines())
    return (job.finished(mark, statuses[number]) for number, job in enumerate(jobs))
