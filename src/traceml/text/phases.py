"""The phase tree: where the time of a step goes, in milliseconds and shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceml.model.metric import GPU_IDLE
from traceml.model.phase import COMPUTE, COMPUTE_PART, IN_BETWEEN, MEASURED, PHASES, Phase
from traceml.model.quantities import milliseconds, percent
from traceml.summaries.step_parts import step_parts

NAME = 35
BAR = 20
MAX_SHARE = 100.0
"""A part in a damaged summary may be many times its step."""
SHOWN_BETWEEN_SHARE = 0.005  # of the wall time: less is the loop itself

SHOWN_IDLE_SHARE = 0.01  # of the step: a shorter gap is in any loop
IDLE_PHASES = (Phase.INPUT, Phase.H2D)  # in which the GPU computes nothing

Times = Mapping[str, "float | None"]


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One line of the tree and the lines below it."""

    name: str
    ms: float
    phase: str | None = None
    parts: tuple[TreeLine, ...] = ()


def phase_tree(times: Times, guilty: str | None = None) -> list[str]:
    """Returns the step's parts as lines of at most 80 columns, with a pointer to the guilty
    phase."""
    step, between = step_tree(times), between_tree(times)
    lines = _lines(step, "", "", step.ms, guilty)
    return lines if between is None else lines + _lines(between, "", "", None, None)


def step_tree(times: Times) -> TreeLine:
    """Returns the step and its parts, which add up to it; without parts where nothing was
    measured."""
    step_ms = times["step_time_ms"] or 0.0
    parts = step_parts(times)
    rest_ms = parts.pop(Phase.RESIDUAL.value, 0.0)
    found: list[TreeLine] = []
    for phase in MEASURED:
        if phase is COMPUTE[0]:
            found += _compute(parts, times.get("compute_ms"))
        elif phase not in COMPUTE:
            found += _measured(parts, phase)
    found = [branch for branch in found if branch.ms or branch.phase != Phase.COMMUNICATION.value]
    if found:
        found.append(TreeLine(_rest_name(times), rest_ms, Phase.RESIDUAL.value))
    return TreeLine("step time", step_ms, None, tuple(found))


def _measured(parts: Times, *phases: Phase) -> list[TreeLine]:
    """Returns a line for each of these phases that was measured."""
    return [
        TreeLine(PHASES[phase].label.lower(), part_ms, phase.value)
        for phase in phases
        if (part_ms := parts.get(phase.value)) is not None
    ]


def _compute(parts: Times, compute_ms: float | None) -> list[TreeLine]:
    """Returns compute with its phases below it; where it was not measured completely, the measured
    phases."""
    measured = _measured(parts, *COMPUTE)
    if compute_ms is None:
        return measured
    if measured and (replays_ms := parts.get(COMPUTE_PART)):
        measured.append(TreeLine("CUDA graph replays", replays_ms, COMPUTE_PART))
    return [TreeLine(COMPUTE_PART, compute_ms, COMPUTE_PART, tuple(measured))]


def _rest_name(times: Times) -> str:
    """Returns the name of the rest, with the phases of compute that were not measured and are in
    it."""
    rest = PHASES[Phase.RESIDUAL].label.lower()
    missing = [PHASES[phase] for phase in COMPUTE if times.get(PHASES[phase].metric) is None]
    if times.get("compute_ms") is not None or not missing:
        return rest
    names = " and ".join(entry.label.lower() for entry in missing)
    return f"{rest}, with {COMPUTE_PART if len(missing) == len(COMPUTE) else names}"


def between_tree(times: Times) -> TreeLine | None:
    """Returns what happened between steps; `None` where it was negligible."""
    between_ms, wall_ms = times.get("between_ms"), times.get("wall_step_ms")
    if between_ms is None or not wall_ms or between_ms < SHOWN_BETWEEN_SHARE * wall_ms:
        return None
    parts = tuple(
        TreeLine(name, part_ms) for name in IN_BETWEEN if (part_ms := times.get(f"{name}_ms"))
    )
    return TreeLine("between steps, per step", between_ms, None, parts)


def gpu_idle_words(times: Times) -> str:
    """Returns what the GPU was idle for in a mean step, the longest first; empty where that was not
    measured, or was negligible."""
    *exact, launching = GPU_IDLE
    launching_ms, step_ms = times.get(launching.key), times.get("step_time_ms")
    if launching_ms is None or not step_ms:
        return ""
    waits = {f"for {PHASES[phase].short}": PHASES[phase].metric for phase in IDLE_PHASES}
    keys = waits | {metric.short: metric.key for metric in exact}
    found = {name: times.get(key) or 0.0 for name, key in keys.items()}
    words = [
        f"{milliseconds(idle_ms)} {name}"
        for name, idle_ms in sorted(found.items(), key=lambda each: -each[1])
        if idle_ms >= SHOWN_IDLE_SHARE * step_ms
    ]
    if launching_ms >= SHOWN_IDLE_SHARE * step_ms:
        words.append(f"at most {milliseconds(launching_ms)} {launching.short}")
    return f"GPU idle {', '.join(words)}" if words else ""


def _lines(
    branch: TreeLine, lead: str, below: str, step_ms: float | None, guilty: str | None
) -> list[str]:
    pointer = " ◀" if guilty is not None and branch.phase == guilty else ""
    lines = [_line(lead + branch.name, branch.ms, step_ms, pointer)]
    for position, part in enumerate(branch.parts):
        last = position == len(branch.parts) - 1
        fork, under = ("└─ ", "   ") if last else ("├─ ", "│  ")
        lines += _lines(part, below + fork, below + under, step_ms, guilty)
    return lines


def _line(name: str, part_ms: float, step_ms: float | None, pointer: str) -> str:
    line = f"  {name:<{NAME}}{milliseconds(part_ms):>12}"
    if not step_ms:
        return line
    share = min(part_ms / step_ms, MAX_SHARE)
    bar = "█" * max(0, min(round(share * BAR), BAR)) or ("▏" if share > 0 else "")
    return f"{line}{percent(share):>7}  {bar}{pointer}".rstrip()
