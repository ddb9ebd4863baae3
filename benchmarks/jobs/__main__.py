"""`python -m benchmarks.jobs`: every job plain and traced, on a machine with a CUDA device."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults.report import grid
from benchmarks.figure import machine
from benchmarks.jobs.catalog import Job, chosen
from benchmarks.jobs.run import Judged, judge, run_plain, run_traced


def main() -> None:
    """Run the jobs that were asked for, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="jobs so named")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs in this folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the judgements there")
    options = parser.parse_args()
    jobs = chosen(options.only)
    if not jobs:
        parser.error(f"no job has {' or '.join(options.only)} in its name")
    with tempfile.TemporaryDirectory(prefix="traceml-jobs-") as folder:
        judged = run_jobs(jobs, options.keep or Path(folder))
    print(f"\n{machine()}\n\n{grid(table(judged))}")
    if options.json:
        content = [asdict(each) for each in judged]
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def run_jobs(jobs: Sequence[Job], folder: Path) -> list[Judged]:
    """Run and judge them; plain ones beside each other first, traced ones one by one."""
    judged = []
    for number, (job, plain) in enumerate(zip(jobs, run_plain(jobs), strict=True)):
        here = folder / f"{number:02}-{job.script}"
        traced = run_traced(job, here / "traced")
        fixed = None if job.fixed is None else run_traced(job, here / "fixed", job.fixed)
        judged.append(judge(job, plain, traced, fixed))
        each = judged[-1]
        print(f"{job.name:40} {each.said:18} {traced.wall_s:5.1f} s", *each.complaints, sep="  ")
        print(f"{'':40} {each.claim}", flush=True)
    return judged


def table(judged: Sequence[Judged]) -> list[list[str]]:
    """A line for each job."""
    rows = [["job", "steps", "step", "verdict", "what-if", "right"]]
    for each in judged:
        step = "n/a" if each.step_ms is None else f"{each.step_ms:.1f} ms"
        error = "–" if each.what_if_error is None else f"{each.what_if_error:.1%}"
        right = "yes" if each.is_right else "; ".join(each.complaints)[:200]
        rows.append([each.job.name, str(each.steps), step, each.said, error, right])
    return rows


if __name__ == "__main__":
    main()
