"""`python -m benchmarks.gpu`: all that needs a CUDA device, in one table; `make gpu` runs it.

Tests that can share the GPU run first, beside each other, then the jobs without us, beside each
other too: they say how training goes, not how fast. Whatever is measured comes last: several
programs at a time, of which one uses the GPU while the others start or sum up (`gpu_turn.py`).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import commands
from benchmarks.faults.__main__ import examine
from benchmarks.faults.catalog import chosen as chosen_faults
from benchmarks.faults.judge import Judgement
from benchmarks.faults.scenario import Scenario
from benchmarks.gpu_table import NOT_FINISHED, Line, Table
from benchmarks.jobs.catalog import JOBS, Job
from benchmarks.jobs.run import TIMEOUT_S, Judged, Run, run_and_judge, run_plain
from benchmarks.jobs.scripts.gpu_turn import TURN_FILE

ROOT = Path(__file__).parents[1]
PARTS = ("tests", "faults", "jobs")
DEFAULT_LIMIT_S = 540.0
TESTS_AT_ONCE = 8
PLAIN_AT_ONCE = 10
IN_TURN_AT_ONCE = 4
"""One trains; starting takes as long as training, and summing up a few seconds more."""
IN_TURN = (
    "test_counters.py",
    "test_gpu_idle.py",
    "test_layers.py",
    "test_planted_layers.py",
    "test_sharded.py",
    "test_step_traces.py",
    "test_time_inference.py",
    "test_user_lines.py",
)
"""Test files that measure how busy the GPU is, or how long something takes."""
ELSEWHERE = ("test_jobs.py", "test_diagnoses.py")
"""Test files that run the very jobs and faults that have lines of their own."""
ALONE = ("gpu_out_of_memory",)
"""What fills the GPU's memory: it is free again only a while after the process has ended."""
OUT_OF_TIME = "not run: out of time"
_COUNTS = re.compile(r"(\d+) (passed|failed|error|skipped)")


@dataclass(frozen=True, slots=True)
class Work:
    """What makes one line; it is told how many seconds it may take."""

    part: str
    what: str
    do: Callable[[float], Line]
    trainings: int = 1
    """How long it takes, in trainings one after the other: what takes longest begins first."""


class Clock:
    """How much is left of the time that all of it may take."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = time.monotonic() + limit_s

    def left_s(self) -> float:
        """Seconds; none or fewer when it is over."""
        return self._end_s - time.monotonic()


def main() -> None:
    """Run everything that was asked for; the exit status says whether all of it was right."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="lines with a word in their name"
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=DEFAULT_LIMIT_S,
        metavar="N",
        help="what has not begun by then is not run (default: %(default).0f)",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs in this folder")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    options = parser.parse_args()
    if options.keep and options.keep.is_dir() and any(options.keep.iterdir()):
        parser.error(f"{options.keep} is not empty, and its runs are kept; name another folder")
    clock = Clock(options.limit_s)
    with tempfile.TemporaryDirectory(prefix="traceml-gpu-") as scratch:
        # Programs that look for their turn there have working folders of their own.
        folder = (options.keep or Path(scratch)).resolve()
        plan = Plan(options.parts, options.only, folder)
        if not plan.works:
            parser.error(f"no line has {' or '.join(options.only)} in its name")
        table = Table(_machine(parser), plan.lines(), options.markdown)
        try:
            plan.carry_out(table, clock)
        finally:
            print(f"\n{table.text()}", flush=True)
    sys.exit(any(line.complaint for line in table.lines))


class Plan:
    """What is run, in the order of the table: tests, faults, jobs."""

    def __init__(self, parts: Sequence[str], words: Sequence[str], folder: Path) -> None:
        self._folder = folder
        self._plain: dict[str, Run] = {}
        files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
        tests = [_test(file) for file in files if file.name not in ELSEWHERE]
        faults = [_fault(each, folder / "faults") for each in chosen_faults([], gpu=True)]
        works = [*tests, *faults, *map(self._job, JOBS)]
        self.works = [each for each in works if each.part in parts and _is_named(each.what, words)]
        chosen = {work.what for work in self.works if work.part == "jobs"}
        self._jobs = [job for job in JOBS if job.name in chosen]

    def lines(self) -> list[Line]:
        """What the table says as long as nothing has come of it."""
        return [Line(work.part, work.what, complaint=NOT_FINISHED) for work in self.works]

    def carry_out(self, table: Table, clock: Clock) -> None:
        """Run everything; what measures nothing first."""
        shared = [work for work in self.works if work.part == "tests" and work.what not in IN_TURN]
        alone = [work for work in self.works if work.what in ALONE]
        in_turn = [work for work in self.works if work not in (*shared, *alone)]
        in_turn.sort(key=lambda work: -work.trainings)
        run_beside_each_other(shared, TESTS_AT_ONCE, table, clock)
        self._run_plain(clock)
        with taking_turns(self._folder):
            run_beside_each_other(in_turn, IN_TURN_AT_ONCE, table, clock)
        run_beside_each_other(alone, 1, table, clock)

    def _run_plain(self, clock: Clock) -> None:
        jobs = sorted(self._jobs, key=lambda job: not job.compiles)
        with ThreadPoolExecutor(PLAIN_AT_ONCE) as pool:
            runs = pool.map(lambda job: _plain(job, clock), jobs)
        self._plain = {job.name: run for job, run in zip(jobs, runs, strict=True) if run}

    def _job(self, job: Job) -> Work:
        def do(left_s: float) -> Line:
            place = self._folder / "jobs" / re.sub(r"\W+", "_", job.name)
            return job_line(run_and_judge(job, self._plain[job.name], place, left_s))

        return Work("jobs", job.name, do, trainings=1 + (job.fixed is not None) + job.compiles)


def run_beside_each_other(works: Sequence[Work], at_once: int, table: Table, clock: Clock) -> None:
    """Run them, so many at a time; what comes too late is not run, and the table says so."""
    with ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(_run, work, table, clock) for work in works]:
            done.result()


def _run(work: Work, table: Table, clock: Clock) -> None:
    left_s = clock.left_s()
    if left_s <= 0:
        table.add(Line(work.part, work.what, complaint=OUT_OF_TIME))
        return
    began = time.monotonic()
    line = replace(work.do(left_s), seconds=time.monotonic() - began)
    if line.complaint and clock.left_s() <= 0:
        line = replace(line, complaint=f"ended: out of time; {line.complaint}")
    table.add(line)


@contextmanager
def taking_turns(folder: Path) -> Iterator[None]:
    """Whatever is started meanwhile waits for its turn at the GPU."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[TURN_FILE] = str(folder / "turn")
    try:
        yield
    finally:
        del os.environ[TURN_FILE]


# Tests


def _test(file: Path) -> Work:
    return Work("tests", file.name, lambda left_s: run_test_file(file, left_s), trainings=4)


def run_test_file(file: Path, timeout_s: float) -> Line:
    """One file of tests, in a pytest of its own."""
    words = [sys.executable, "-m", "pytest", "--tb=short", "-rf", "--durations=5", str(file)]
    ended = commands.run_to_end(words, timeout_s, cwd=ROOT)
    counts = ", ".join(" ".join(found) for found in _COUNTS.findall(ended.output[-400:]))
    complaint = "" if "passed" in counts else "nothing passed"
    if ended.status != 0:
        complaint = f"exit status {ended.status}"
    return Line(
        "tests",
        file.name,
        counts or "nothing ran",
        complaint=complaint,
        details=ended.output[-6000:] if complaint else "",
    )


# Faults


def _fault(scenario: Scenario, folder: Path) -> Work:
    def do(left_s: float) -> Line:
        allowed = replace(scenario, timeout_s=min(TIMEOUT_S, left_s))
        return fault_line(examine(allowed, folder / scenario.name))

    return Work("faults", scenario.name, do, trainings=1 + scenario.truth.what_if)


def fault_line(found: Judgement) -> Line:
    """A planted fault is right when its kind, what explains it and its place are."""
    truth = found.scenario.truth
    complaints = [found.problem] if found.problem else []
    if found.said not in truth.kinds:
        complaints.append(f"said {found.said}, not {' or '.join(truth.kinds)}")
    complaints += [f"{kind} not named" for kind in found.missing]
    if found.place_right is False:
        complaints.append("another phase, module or step")
    return Line(
        "faults",
        found.scenario.name,
        found.said,
        what_if_error=found.what_if_error,
        complaint="; ".join(complaints),
        waited_s=found.waited_s,
    )


# Jobs


def _plain(job: Job, clock: Clock) -> Run | None:
    """A job without us; `None` where no time is left for it."""
    left_s = clock.left_s()
    if left_s <= 0:
        return None
    run = run_plain(job, left_s)
    print(f"plain  {job.name}  exit status {run.status}  {run.wall_s:.0f} s", flush=True)
    return run


def job_line(judged: Judged) -> Line:
    """A job's line."""
    return Line(
        "jobs",
        judged.job.name,
        judged.said,
        judged.step_ms,
        judged.what_if_error,
        "; ".join(judged.complaints),
        waited_s=judged.waited_s,
        details=f"    {judged.claim}",
        not_predicted=judged.not_predicted,
    )


def _is_named(name: str, words: Sequence[str]) -> bool:
    return not words or any(word.lower() in name.lower() for word in words)


def _machine(parser: argparse.ArgumentParser) -> str:
    """The machine in words; asked of a process that ends, so that none of ours is on the GPU."""
    code = (
        "import sys, torch\n"
        "from benchmarks.figure import machine\n"
        "sys.exit(3) if not torch.cuda.is_available() else print(machine())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 3:
        parser.error("there is no CUDA device here; `make test` is for machines without one")
    if done.returncode:
        parser.error(f"torch cannot be used here: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
