"""`python -m benchmarks.gpu`: all that needs a CUDA device, in one table; `make gpu` runs it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import commands
from benchmarks.faults.__main__ import examine
from benchmarks.faults.catalog import chosen as chosen_faults
from benchmarks.faults.report import grid
from benchmarks.figure import machine
from benchmarks.jobs.__main__ import run_jobs
from benchmarks.jobs.catalog import JOBS

ROOT = Path(__file__).parents[1]
PARTS = ("tests", "faults", "jobs")
TESTS_AT_ONCE = 4
ALONE = ("test_counters.py", "test_diagnoses.py", "test_user_lines.py")
"""Test files that measure how busy the GPU is, or how long something takes."""
_COUNTS = re.compile(r"(\d+) (passed|failed|error|skipped)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    part: str
    what: str
    said: str
    step_ms: float | None = None
    what_if_error: float | None = None
    complaint: str = ""

    def cells(self) -> list[str]:
        """The line's words."""
        step = "–" if self.step_ms is None else f"{self.step_ms:.1f} ms"
        error = "–" if self.what_if_error is None else f"{self.what_if_error:.1%}"
        return [self.part, self.what, self.said, step, error, self.complaint[:160] or "yes"]


def main() -> None:
    """Run the parts one after the other; the exit status says whether everything was right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs in this folder")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args()
    _require_cuda(parser)
    began = time.monotonic()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="traceml-gpu-") as scratch:
        folder = options.keep or Path(scratch)
        if "tests" in options.parts:
            lines += run_tests()
        if "faults" in options.parts:
            lines += plant_faults(folder / "faults")
        if "jobs" in options.parts:
            lines += judge_jobs(folder / "jobs")
    text = report(lines, time.monotonic() - began)
    print(f"\n{text}")
    if options.markdown:
        options.markdown.parent.mkdir(parents=True, exist_ok=True)
        options.markdown.write_text(text + "\n")
    sys.exit(any(line.complaint for line in lines))


def run_tests() -> list[Line]:
    """The tests that need a GPU; the jobs among them come later, with their table.

    A GPU can be shared by those that measure no times: they run beside each other first.
    """
    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    shared = [file for file in files if file.name not in (*ALONE, "test_jobs.py")]
    with ThreadPoolExecutor(TESTS_AT_ONCE) as pool:
        lines = list(pool.map(_run_test_file, shared))
    return lines + [_run_test_file(file) for file in files if file.name in ALONE]


def _run_test_file(file: Path) -> Line:
    words = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-rf", str(file)]
    began = time.monotonic()
    done = subprocess.run(
        words, cwd=ROOT, env=commands.environment(), capture_output=True, text=True
    )
    counts = ", ".join(" ".join(found) for found in _COUNTS.findall(done.stdout[-400:]))
    complaint = "" if done.returncode == 0 else f"exit status {done.returncode}"
    line = Line("tests", file.name, counts or "nothing ran", complaint=complaint)
    print(*line.cells(), f"{time.monotonic() - began:.0f} s", sep="  ", flush=True)
    if complaint:
        print(done.stdout[-6000:], flush=True)
    return line


def plant_faults(folder: Path) -> list[Line]:
    """The faults that need a GPU."""
    lines = []
    for scenario in chosen_faults([], gpu=True):
        found = examine(scenario, folder / scenario.name)
        complaint = "" if found.right else found.problem or "wrong"
        lines.append(
            Line(
                "fault",
                scenario.name,
                found.said,
                what_if_error=found.what_if_error,
                complaint=complaint,
            )
        )
        print(*lines[-1].cells(), sep="  ", flush=True)
    return lines


def judge_jobs(folder: Path) -> list[Line]:
    """The jobs, plain and traced."""
    return [
        Line(
            "job",
            each.job.name,
            each.said,
            each.step_ms,
            each.what_if_error,
            "; ".join(each.complaints),
        )
        for each in run_jobs(JOBS, folder)
    ]


def report(lines: Sequence[Line], seconds: float) -> str:
    """The machine, the table and the totals, as markdown."""
    head = ["part", "what", "said", "step", "what-if", "right"]
    rows = [head, *(line.cells() for line in lines)]
    right = sum(not line.complaint for line in lines)
    errors = [line.what_if_error for line in lines if line.what_if_error is not None]
    totals = [f"{right} of {len(lines)} lines right", f"{seconds / 60:.1f} minutes"]
    if errors:
        totals.append(
            f"what-if error {median(errors):.1%} median, {max(errors):.1%} worst of {len(errors)}"
        )
    return f"{machine()}\n\n{grid(rows)}\n\n{' · '.join(totals)}"


def _require_cuda(parser: argparse.ArgumentParser) -> None:
    import torch

    if not torch.cuda.is_available():
        parser.error("there is no CUDA device here; `make test` is for machines without one")


if __name__ == "__main__":
    main()
