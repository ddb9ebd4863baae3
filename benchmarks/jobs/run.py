"""Runs a job plain and traced, and says how the two differ and whether the verdict is right."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.faults.judge import all_findings, step_time_ms, top_finding
from benchmarks.jobs.catalog import Job
from benchmarks.jobs.scripts.gpu_turn import waited_s

TIMEOUT_S = 240.0
LOSS_TOLERANCE = 0.01
"""Kernels that add in any order make two plain runs differ as well, by less than this."""
MAX_WHAT_IF_ERROR = 0.15

_LOSS = re.compile(r"^(?:epoch|step) \d.*\bloss (\S+)$", re.MULTILINE)
"""Of the script's own lines: what TraceML says of a loss stands in the same output."""
_STEPS = re.compile(r"^steps (\d+)$", re.MULTILINE)
_FIRST_NOT_FINITE = re.compile(r"^first not finite at step (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """What one process left behind."""

    status: int | None
    """`None` where it had to be ended."""
    output: str
    wall_s: float
    summary: dict[str, Any] | None = None

    @property
    def losses(self) -> list[float]:
        """Every loss that the script printed."""
        return [float(text) for text in _LOSS.findall(self.output)]

    @property
    def steps(self) -> int | None:
        """The optimizer steps that the script counted."""
        found = _STEPS.search(self.output)
        return None if found is None else int(found[1])

    @property
    def waited_s(self) -> float:
        """How long it waited for its turn at the GPU."""
        return waited_s(self.output)


@dataclass(frozen=True, slots=True)
class Judged:
    """A job's line in the table."""

    job: Job
    said: str
    claim: str
    steps: int | None
    step_ms: float | None
    what_if_error: float | None
    complaints: tuple[str, ...]
    not_predicted: str = ""
    """Why no step time was predicted, by the finding's own word."""
    waited_s: float = 0.0

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.complaints


def run_plain(job: Job, timeout_s: float = TIMEOUT_S) -> Run:
    """A job without us."""
    return _run([sys.executable, *job.words()], timeout_s)


def run_traced(
    job: Job,
    folder: Path,
    arguments: tuple[str, ...] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Run:
    """A job under `traceml run`, with what it was told about itself."""
    script, *words = job.words(arguments)
    traced = [*commands.traceml(), "run", "--mode=summary", "--logs-dir", str(folder)]
    traced += ["--run-name", "run", script, "--args", *words]
    return _run(traced, timeout_s, folder / "run" / "final_summary.json")


def run_and_judge(job: Job, plain: Run, folder: Path, timeout_s: float = TIMEOUT_S) -> Judged:
    """Run a job traced, and without its fault where there is such a version; both in the time."""
    end_s = time.monotonic() + timeout_s
    traced = run_traced(job, folder / "traced", timeout_s=timeout_s)
    fixed = None
    if job.fixed is not None:
        left_s = max(0.0, end_s - time.monotonic())
        fixed = run_traced(job, folder / "fixed", job.fixed, left_s)
    return judge(job, plain, traced, fixed)


def judge(job: Job, plain: Run, traced: Run, fixed: Run | None = None) -> Judged:
    """What a job's runs say of us."""
    summary = traced.summary or {}
    said = top_finding(summary)
    error = None if fixed is None else what_if_error(summary, job, fixed)
    not_predicted = "" if fixed is None or error is not None else _why_not_predicted(said)
    return Judged(
        job=job,
        said=str(said.get("kind", "nothing")),
        claim=str(said.get("summary", "")),
        steps=traced.steps,
        step_ms=step_time_ms(summary),
        what_if_error=error,
        complaints=(
            *differences(plain, traced),
            *wrong_words(job, traced),
            *_wrong_prediction(error, fixed, not_predicted),
        ),
        not_predicted=not_predicted,
        waited_s=traced.waited_s + (0.0 if fixed is None else fixed.waited_s),
    )


def differences(plain: Run, traced: Run) -> Iterator[str]:
    """In what training differs from the one without us."""
    if plain.status != 0:
        yield f"plain exit status {plain.status}: {plain.output.strip()[-200:]}"
    if traced.status != plain.status:
        yield f"exit status {traced.status} for {plain.status}: {traced.output.strip()[-300:]}"
        return
    if traced.steps != plain.steps:
        yield f"{traced.steps} steps for {plain.steps}"
    if len(traced.losses) != len(plain.losses):
        yield f"{len(traced.losses)} losses for {len(plain.losses)}"
    pairs = zip(plain.losses, traced.losses, strict=False)
    apart = [pair for pair in pairs if abs(pair[0] - pair[1]) > LOSS_TOLERANCE * abs(pair[0])]
    if apart:
        yield f"loss {apart[0][1]} for {apart[0][0]}"
    counted = _steps_counted(traced.summary)
    if counted != traced.steps:
        yield f"{counted} steps seen of {traced.steps}"


def wrong_words(job: Job, traced: Run) -> Iterator[str]:
    """What is wrong with the verdict."""
    if traced.summary is None:
        yield "no summary"
        return
    said, findings = top_finding(traced.summary), list(all_findings(traced.summary))
    if said.get("kind") not in job.kinds:
        yield f"said {said.get('kind')}, not {' or '.join(job.kinds)}"
    found = {str(each.get("kind")) for each in findings}
    yield from (f"{kind} not named" for kind in job.also if kind not in found)
    loud = {str(each.get("kind")) for each in findings if each.get("severity") != "info"}
    yield from (f"{kind} warned of" for kind in job.never if kind in loud)
    words = " ".join(str(each.get("summary")) for each in findings)
    if job.mentions not in words:
        yield f"{job.mentions} not named"
    yield from _wrong_onset(traced, said)


def _wrong_onset(traced: Run, said: dict[str, Any]) -> Iterator[str]:
    """Whether the steps between which the loss became non-finite hold the true one."""
    true = _FIRST_NOT_FINITE.search(traced.output)
    if true is None:
        return
    evidence = said.get("evidence") or {}
    last_finite, first = evidence.get("last_finite_step"), evidence.get("first_step")
    if last_finite is None or first is None or not last_finite < int(true[1]) <= first:
        yield f"non-finite between {last_finite} and {first}, truly at {true[1]}"


def what_if_error(summary: dict[str, Any], job: Job, fixed: Run) -> float | None:
    """How far the predicted step time is from that of the script without its fault.

    A prediction that says "or less" is held against the same measure as any other.
    """
    entries = (one for one in summary.get("what_if") or () if one.get("kind") in job.kinds)
    entry: dict[str, Any] = next(entries, {})
    predicted = entry.get("predicted_step_time_ms")
    measured = step_time_ms(fixed.summary or {})
    if predicted is None or not measured:
        return None
    return abs(predicted - measured) / measured


def _why_not_predicted(said: dict[str, Any]) -> str:
    """What a verdict without a predicted step time says about that; empty where it says nothing."""
    return str((said.get("evidence") or {}).get("not_predicted") or "")


def _wrong_prediction(error: float | None, fixed: Run | None, reason: str) -> Iterator[str]:
    if fixed is not None and fixed.status:
        yield f"without its fault it ended with {fixed.status}"
    if fixed is not None and error is None and not reason:
        yield "no step time predicted"
    if error is not None and error > MAX_WHAT_IF_ERROR:
        yield f"predicted step time {error:.0%} off"


def _run(words: list[str], timeout_s: float, summary: Path | None = None) -> Run:
    ended = commands.run_to_end(words, min(timeout_s, TIMEOUT_S))
    told = None
    if summary is not None and summary.exists():
        told = json.loads(summary.read_text())
    return Run(ended.status, ended.output, ended.wall_s, told)


def _steps_counted(summary: dict[str, Any] | None) -> int | None:
    section = (summary or {}).get("step_time") or {}
    found: int | None = (section.get("metadata") or {}).get("training_total_steps")
    return found
