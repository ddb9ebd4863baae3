"""The phase tree: where the time of a step goes, in milliseconds and shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceml.model.phase import COMPUTE, COMPUTE_PART, IN_BETWEEN, MEASURED, PHASES, Phase
from traceml.model.quantities import milliseconds, percent
from traceml.summaries.step_parts import step_parts

NAME = 35
BAR = 20
MAX_SHARE = 100.0
"""A part of a damaged summary may be many times its step."""
SHOWN_BETWEEN_SHARE = 0.005  # of the wall time: less is the loop itself

Times = Mapping[str, "float | None"]


@dataclass(frozen=True, slots=True)
class Branch:
    """One line of the tree and the lines below it."""

    name: str
    ms: float
    phase: str | None = None
    parts: tuple[Branch, ...] = ()


def phase_tree(times: Times, guilty: str | None = None) -> list[str]:
    """The step's parts as lines of at most 80 columns; the guilty phase is pointed at."""
    step, between = step_branch(times), between_branch(times)
    lines = _lines(step, "", "", step.ms, guilty)
    return lines if between is None else lines + _lines(between, "", "", None, None)


def step_branch(times: Times) -> Branch:
    """The step and its parts, which sum to it; none where nothing of it was measured."""
    step_ms = times["step_time_ms"] or 0.0
    parts = step_parts(times)
    rest_ms = parts.pop(Phase.RESIDUAL.value, 0.0)
    found: list[Branch] = []
    for phase in MEASURED:
        if phase is COMPUTE[0]:
            found += _compute(parts, times.get("compute_ms"))
        elif phase not in COMPUTE:
            found += _measured(parts, phase)
    found = [branch for branch in found if branch.ms or branch.phase != Phase.COMMUNICATION.value]
    if found:
        found.append(Branch(_rest_name(times), rest_ms, Phase.RESIDUAL.value))
    return Branch("step time", step_ms, None, tuple(found))


def _measured(parts: Times, *phases: Phase) -> list[Branch]:
    """A line for each of these phases that was measured."""
    return [
        Branch(PHASES[phase].label.lower(), part_ms, phase.value)
        for phase in phases
        if (part_ms := parts.get(phase.value)) is not None
    ]


def _compute(parts: Times, compute_ms: float | None) -> list[Branch]:
    """Compute with its phases below it; where it is not known whole, the phases that are."""
    measured = _measured(parts, *COMPUTE)
    if compute_ms is None:
        return measured
    if measured and (replays_ms := parts.get(COMPUTE_PART)):
        measured.append(Branch("CUDA graph replays", replays_ms, COMPUTE_PART))
    return [Branch(COMPUTE_PART, compute_ms, COMPUTE_PART, tuple(measured))]


def _rest_name(times: Times) -> str:
    """What the rest is called, which holds the phases of compute that were not measured."""
    rest = PHASES[Phase.RESIDUAL].label.lower()
    missing = [PHASES[phase] for phase in COMPUTE if times.get(PHASES[phase].metric) is None]
    if times.get("compute_ms") is not None or not missing:
        return rest
    names = " and ".join(entry.label.lower() for entry in missing)
    return f"{rest}, with {COMPUTE_PART if len(missing) == len(COMPUTE) else names}"


def between_branch(times: Times) -> Branch | None:
    """What happened between steps, where it was more than nothing."""
    between_ms, wall_ms = times.get("between_ms"), times.get("wall_step_ms")
    if between_ms is None or not wall_ms or between_ms < SHOWN_BETWEEN_SHARE * wall_ms:
        return None
    parts = tuple(
        Branch(name, part_ms) for name in IN_BETWEEN if (part_ms := times.get(f"{name}_ms"))
    )
    return Branch("between steps, per step", between_ms, None, parts)


def _lines(
    branch: Branch, lead: str, below: str, step_ms: float | None, guilty: str | None
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
