"""Benchmarks two commands, or one command at two commits: traced runs of both in turn, until their
comparison has a verdict."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

import traceml
from traceml.agent.processes import kill_run
from traceml.api.bench_checkouts import Checkout, without_repository
from traceml.api.compare import find_changes
from traceml.compare.logged_metrics import endpoint_named
from traceml.compare.record import BenchRecord, BenchStop, Comparison
from traceml.compare.sequential_looks import RunPlan, is_clear, turns
from traceml.compare.sides import Sides
from traceml.model.environment import NOTIFY
from traceml.model.errors import TraceMLError, UsageError
from traceml.model.quantities import count, milliseconds
from traceml.model.secrets import masked
from traceml.store.folder import SUMMARY
from traceml.summaries.read import read_compared
from traceml.summaries.record import Summary
from traceml.text.summary import TITLE_BEGIN

SHOWN_LINES, MAX_SHOWN_BYTES = 20, 1 << 16
"""Of what a command printed before it failed."""
CLOSING_TIMEOUT_S = 30.0
"""For an interrupted run to write what it has."""
_TRACEML = """\
import sys
sys.path[0] = sys.argv.pop(1)
from traceml.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Starts this very package; the folder of a checkout, which may hold another one, is not searched
for it."""
_UNJUDGED = ("NO_DATA", "WARMUP")
"""Diagnoses of runs with too few steps to say how long one takes."""


class RunFailed(TraceMLError):
    """A command that is benchmarked failed."""


class TooFewSteps(TraceMLError):
    """A command that is benchmarked did not train long enough to be judged."""


@dataclass(frozen=True, slots=True)
class BenchSide:
    """What is run on one side, and where."""

    command: Sequence[str]
    checkout: Checkout

    @property
    def shown_command(self) -> str:
        """The command as it may be written down."""
        return shlex.join(masked(self.command))


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Which runs are made, for how long at most, and where they are kept."""

    runs: RunPlan
    max_s: float
    logs_dir: Path
    name: str
    """What the names of all runs begin with."""


@dataclass(slots=True)
class Bench:
    """A benchmark under way; `say` tells people how far it is."""

    sides: Mapping[str, BenchSide]
    """By `a` and `b`."""
    plan: BenchPlan
    say: Callable[[str], None]
    _folders: dict[str, list[Path]] = field(default_factory=lambda: {"a": [], "b": []})
    """The folders of the runs that are over."""
    _began_s: float = field(default_factory=time.monotonic)
    _stop: BenchStop = BenchStop.MAX_RUNS

    def run(self) -> Comparison | None:
        """Runs both sides in turn until the answer is clear, or a limit is reached.

        Returns `None` where not even one run per side was possible until then. Raises RunFailed
        or TooFewSteps where a command cannot be measured, and UsageError where the metric that is
        to decide is not among what it logs.
        """
        comparison = None
        try:
            for side, number in turns(self.plan.runs.max_runs):
                self._make_run(side, number)
                if self.plan.runs.is_look(*map(len, self._folders.values())):
                    comparison = self._compare()
                    if is_clear(comparison):
                        self._stop = BenchStop.CLEAR
                        break
        except subprocess.TimeoutExpired:
            self._stop, comparison = BenchStop.MAX_MINUTES, None
        except KeyboardInterrupt:
            self._stop, comparison = BenchStop.INTERRUPTED, None
        if not all(self._folders.values()):
            return None
        return (comparison or self._compare()).with_bench(self._record())

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C, or SIGTERM, ended it."""
        return self._stop is BenchStop.INTERRUPTED

    def runs_made(self) -> str:
        """Returns how many runs are over, in words."""
        a, b = (count(len(runs), "run") for runs in self._folders.values())
        return f"{a} of A and {b} of B"

    def _compare(self) -> Comparison:
        a, b = (list(map(str, runs)) for runs in self._folders.values())
        comparison, _ = find_changes(a, b, self.plan.logs_dir, self.plan.runs.terms)
        return comparison.with_names(*(side.checkout.label for side in self.sides.values()))

    def _record(self) -> BenchRecord:
        a, b = self.sides["a"], self.sides["b"]
        return BenchRecord(
            a_command=a.shown_command,
            b_command=b.shown_command,
            a_commit=a.checkout.commit,
            b_commit=b.checkout.commit,
            looks=self.plan.runs.looks,
            stopped=self._stop.value,
            duration_s=time.monotonic() - self._began_s,
        )

    def _make_run(self, side: str, number: int) -> None:
        """Makes one traced run; raises where its command failed or trained too little."""
        name = f"{self.plan.name}-{side}{number}"
        runs = self.sides[side]
        folder = self.plan.logs_dir / name
        left_s = self.plan.max_s - (time.monotonic() - self._began_s)
        with tempfile.TemporaryFile() as output:
            status = run_until(
                _traced(runs.command, self.plan.logs_dir, name),
                runs.checkout.folder,
                _environment(runs.checkout),
                output.fileno(),
                left_s,
            )
            if status:
                raise _failed(side, runs, status, _end_of(output))
            if not (folder / SUMMARY).is_file():
                raise _without_summary(side, folder, _end_of(output))
        summary = read_compared(folder / SUMMARY)
        _require_steps(side, runs, summary)
        self._require_metric(summary)
        self._folders[side].append(folder)
        average = summary.step_time.global_.average if summary.step_time else {}
        of = f"{side.upper()} {number} of at most {self.plan.runs.max_runs}"
        self.say(f"{of}: {milliseconds(average.get('step_time_ms'))} per step ({folder})")

    def _require_metric(self, summary: Summary) -> None:
        """Raises UsageError where a run lacks the metric that is to decide: further runs would be
        in vain."""
        terms = self.plan.runs.terms
        if terms.metric is not None:
            endpoint_named(terms.metric, Sides((summary,), ()), terms.higher_is_better)


def _traced(command: Sequence[str], logs_dir: Path, name: str) -> list[str]:
    ours = [sys.executable, "-c", _TRACEML, str(Path(traceml.__file__).parents[1]), "run"]
    options = ["--mode=summary", "--logs-dir", str(logs_dir), "--run-name", name]
    return [*ours, *options, "--", *command]


def _environment(checkout: Checkout) -> dict[str, str]:
    """Returns the user's environment, with the checkout's code before any installed copy of it.

    Nobody is notified of the single runs: they are parts of a measurement.
    """
    environment = {name: value for name, value in os.environ.items() if name != NOTIFY}
    if checkout.import_path is not None:
        environment = without_repository(environment)
        inherited = environment.get("PYTHONPATH")
        paths = [str(checkout.import_path), *([inherited] if inherited else [])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def run_until(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: int,
    timeout_s: float,
) -> int:
    """Runs a command to its end and returns its status.

    Ends it, and raises, on KeyboardInterrupt and after the timeout (subprocess.TimeoutExpired).
    """
    if timeout_s <= 0:
        raise subprocess.TimeoutExpired(command, timeout_s)
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches it through us, once
    )
    try:
        return process.wait(timeout_s)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that still runs: as Ctrl-C does, then by force with all that it started."""
    if process.poll() is not None:
        return
    try:
        process.send_signal(signal.SIGINT)
        process.wait(CLOSING_TIMEOUT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        kill_run(process.pid)
        process.wait()


@contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """Lets SIGTERM, by which CI cancels a job, end a benchmark as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def require_logs_folder(logs_dir: Path) -> None:
    """Raises UsageError where no run can be kept: that would be known only after the first one."""
    try:
        logs_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=logs_dir):
            return
    except OSError as error:
        raise UsageError(
            f"the runs cannot be kept in {logs_dir} ({error.strerror}); pass a folder that can be "
            "written to as --logs-dir"
        ) from None


def _end_of(output: IO[bytes]) -> str:
    """Returns the last of what a command and its run have printed."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - MAX_SHOWN_BYTES))
    printed = output.read().decode(errors="replace").partition(f"\n{TITLE_BEGIN}")[0]
    lines = printed.strip().splitlines()[-SHOWN_LINES:]
    return "\n".join(["", *(f"  | {line}" for line in lines)]) if lines else " (it printed nothing)"


def _without_summary(side: str, folder: Path, shown: str) -> RunFailed:
    return RunFailed(
        f"{side.upper()} ended without an error, but there is no {SUMMARY} in {folder}, so there "
        "is no verdict; check that the disk is not full and that the command does not remove the "
        f"folder. It printed at its end:{shown}"
    )


def _failed(side: str, runs: BenchSide, status: int, shown: str) -> RunFailed:
    label = runs.checkout.label
    at = "" if label == runs.shown_command else f" at {label}"
    return RunFailed(
        f"{side.upper()} failed: {runs.shown_command!r}{at} exited with "
        f"{status}, so there is no verdict; expected a command that trains and exits with 0; "
        f"run it there by hand. It ended with:{shown}"
    )


def _require_steps(side: str, runs: BenchSide, summary: Summary) -> None:
    """Raises TooFewSteps where the run does not show how long a step takes."""
    found = summary.step_time.diagnosis if summary.step_time else None
    if found is None or found.kind in _UNJUDGED:
        said = f": {found.summary}" if found and found.summary else ""
        raise TooFewSteps(
            f"{side.upper()} took too few training steps to judge by{said} Let "
            f"{runs.shown_command!r} train a few dozen steps or more, for some seconds at least."
        )
