"""The head of a run's page: its name, state, progress and speed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from traceml.compare.lineage import options_in
from traceml.facts.history import History
from traceml.figures.page import Head, RunState
from traceml.figures.words import joined, line
from traceml.model.quantities import NOT_MEASURED, count, duration, rate
from traceml.model.run import Manifest, status_words
from traceml.summaries.record import SectionSummary, Summary

TOTALS = (
    "max_steps",
    "total_steps",
    "num_training_steps",
    "max_train_steps",
    "train_steps",
    "training_steps",
    "num_steps",
    "steps",
    "max_iters",
    "num_iterations",
)
"""Parameter names for the total number of steps, the most specific first."""
DEEPEST = 4
"""Levels of nested parameters that are searched."""

_WHOLE = re.compile(r"\d[\d_,]*")
_BY_A_PERSON = {130: "interrupted", 143: "asked to end"}
"""Exit statuses of a shell for signals that a person sends, which are no failure."""


@dataclass(frozen=True, slots=True)
class RunStanding:
    """A run, apart from its measurements."""

    manifest: Manifest
    state: RunState
    exit_status: int | None
    now_unix_s: float
    output: tuple[str, ...] | None
    """The last lines that the training printed; `None` where they were not kept."""
    notes: tuple[str, ...]
    """What could not be read."""

    @property
    def is_live(self) -> bool:
        """Whether the run is in progress."""
        return self.state == "live"

    @property
    def state_words(self) -> str:
        """The state in words."""
        if self.state == "failed" and self.exit_status is not None:
            verb = _BY_A_PERSON.get(self.exit_status)
            if verb is not None:
                return f"{verb} with status {self.exit_status}"
            return f"failed with {status_words(self.exit_status)}"
        return "lost: its end was not recorded" if self.state == "lost" else self.state


def run_head(summary: Summary | None, standing: RunStanding, history: History) -> Head:
    """Returns name, progress and speed; "n/a" where they are not known."""
    taken = steps_taken(summary, history)
    total = total_steps(summary, standing, taken)
    progress = taken / total if taken is not None and total else None
    return Head(
        name=line(standing.manifest.run_name),
        state=standing.state,
        state_words=standing.state_words,
        command=line(" ".join(standing.manifest.command)),
        started=moment(standing.manifest.started_unix_s),
        started_unix_s=standing.manifest.started_unix_s,
        elapsed=duration(elapsed_s(summary, standing)),
        steps=_steps_words(taken, total),
        steps_short=_steps_short(taken, total),
        throughput=throughput(summary) or NOT_MEASURED,
        ranks=ranks_words(summary, standing, history),
        remaining=_remaining(summary, taken, total) if standing.is_live else None,
        progress=None if progress is None else round(min(progress, 1.0), 4),
    )


def elapsed_s(summary: Summary | None, standing: RunStanding) -> float | None:
    """Returns how long the run has lasted."""
    if standing.is_live:
        return max(0.0, standing.now_unix_s - standing.manifest.started_unix_s)
    return None if summary is None else summary.duration_s


def steps_taken(summary: Summary | None, history: History) -> int | None:
    """Returns the number of steps so far: the largest that any source has."""
    seen: list[int] = []
    if summary is not None and summary.step_time is not None:
        section = summary.step_time
        found = section.metadata.training_total_steps, section.global_.window.end_step
        seen += [steps for steps in found if steps is not None]
    if history.steps is not None and len(history.steps.first_steps):
        seen.append(int(history.steps.first_steps[-1]))
    return max(seen, default=None)


def total_steps(summary: Summary | None, standing: RunStanding, taken: int | None) -> int | None:
    """Returns how many steps the script will take, by its parameters or command line.

    `None` where nothing says so, or where more have been taken: then the parameter meant something
    else.
    """
    named: dict[str, object] = {}
    for name, value in options_in(standing.manifest.command).items():
        named.setdefault(_plain(name), value)
    if summary is not None:
        named.update((_plain(name), value) for name, value in _flat(summary.params))
    for name in TOTALS:
        total = _whole(named.get(name))
        if total is not None and total >= max(taken or 0, 1):
            return total
    return None


def throughput(summary: Summary | None) -> str:
    """Returns steps and samples per second; empty where neither was measured."""
    section = None if summary is None else summary.step_time
    if section is None:
        return ""
    steps, samples = (section.global_.average.get(f"{noun}_per_s") for noun in ("steps", "samples"))
    several = " per rank" if len(section.groups.rows) > 1 else ""
    return joined(
        (
            None if steps is None else rate(steps, "steps"),
            None if samples is None else rate(samples, "samples") + several,
        )
    )


def ranks_words(summary: Summary | None, standing: RunStanding, history: History) -> str:
    """Returns the number of ranks and nodes, and their devices."""
    meta = None if summary is None else summary.meta
    nodes = (meta.nodes_observed if meta else None) or standing.manifest.nodes
    said = f"{ranks_short(summary, standing, history)} on {count(nodes, 'node')}"
    devices = ", ".join(_devices(summary, history))
    return f"{said}, {devices}" if devices else said


def ranks_short(summary: Summary | None, standing: RunStanding, history: History) -> str:
    """Returns the number of ranks."""
    size = summary.meta.world_size if summary is not None else None
    size = size or standing.manifest.expected_world_size
    if size is None:
        size = len(history.steps.ranks) if history.steps is not None else 1
    return count(size, "rank")


def _devices(summary: Summary | None, history: History) -> Iterator[str]:
    """Returns GPUs by name, else their number; "CPU only" where there is none."""
    hardware = summary.lineage.hardware if summary and summary.lineage else None
    names = [gpu.name for gpu in hardware.gpus] if hardware else []
    if not names and history.sensors is not None:
        names = list(history.sensors.gpu_names.values())
    for name, times in Counter(map(line, names)).items():
        yield f"{times} × {name}" if times > 1 else name
    gpus = None if summary is None else summary.meta.gpus_observed
    if not names and gpus is not None:
        yield count(gpus, "GPU") if gpus else "CPU only"


def _steps_words(taken: int | None, total: int | None) -> str:
    if taken is None:
        return "no steps yet" if total is None else f"0 of {count(total, 'step')}"
    return count(taken, "step") if total is None else f"{count(taken)} of {count(total, 'step')}"


def _steps_short(taken: int | None, total: int | None) -> str:
    if taken is None:
        return "none yet" if total is None else f"0 of {count(total)}"
    return count(taken) if total is None else f"{count(taken)} of {count(total)}"


def _remaining(summary: Summary | None, taken: int | None, total: int | None) -> str | None:
    """Returns the remaining time, by the current wall time of a step."""
    section = None if summary is None else summary.step_time
    if section is None or taken is None or total is None:
        return None
    step_s = _wall_step_s(section)
    if step_s is None:
        return None
    return f"about {duration(float(round((total - taken) * step_s)))} left"


def _wall_step_s(section: SectionSummary) -> float | None:
    average = section.global_.average
    step_ms = average.get("wall_step_ms") or average.get("step_time_ms")
    return None if step_ms is None else step_ms / 1e3


def _plain(name: str) -> str:
    """Returns an option's or parameter's own last name: `--trainer.max-steps` is `max_steps`."""
    return name.lstrip("-").replace("-", "_").rpartition(".")[2].lower()


def _flat(params: Mapping[str, object], depth: int = 0) -> Iterator[tuple[str, object]]:
    for name, value in params.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            yield from _flat(value, depth + 1)
        elif not isinstance(value, Iterable) or isinstance(value, str):
            yield name, value


def _whole(value: object) -> int | None:
    """Returns a positive integer, also from text; `None` for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value)
    if len(text) > 15 or not _WHOLE.fullmatch(text):
        return None
    return int(text.replace("_", "").replace(",", "")) or None


def moment(unix_s: float) -> str:
    """Returns a date and time with its time zone."""
    try:
        when = datetime.fromtimestamp(unix_s, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):  # beyond any calendar
        return "n/a"
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
