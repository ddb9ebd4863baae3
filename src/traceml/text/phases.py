"""The phase tree: where the time of a step goes, in milliseconds and shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceml.model.quantities import milliseconds, percent

NAME = 35
BAR = 20
MAX_SHARE = 100.0
"""A part of a damaged summary may be many times its step."""
SHOWN_BETWEEN_SHARE = 0.005  # of the wall time: less is the loop itself

_COMPUTE = ("forward", "backward", "optimizer")

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
    communication_ms = times.get("communication_ms")
    if communication_ms:
        lines.append(_line("communication, inside these", communication_ms, step.ms, ""))
    return lines if between is None else lines + _lines(between, "", "", None, None)


def step_branch(times: Times) -> Branch:
    """The step and its parts."""
    return Branch("step time", times["step_time_ms"] or 0.0, None, _parts(times))


def _parts(times: Times) -> tuple[Branch, ...]:
    found = []
    if (input_ms := times.get("input_wait_ms")) is not None:
        found.append(Branch("input wait", input_ms, "input"))
    if (h2d_ms := times.get("h2d_ms")) is not None:
        found.append(Branch("host-to-device copy", h2d_ms, "h2d"))
    measured = tuple(
        Branch(name, part_ms, name)
        for name in _COMPUTE
        if (part_ms := times.get(f"{name}_ms")) is not None
    )
    compute_ms = times.get("compute_ms")
    if compute_ms is None:
        found += measured
    else:
        found.append(Branch("compute", compute_ms, "compute", _with_replays(measured, compute_ms)))
    if not measured and compute_ms is None:
        return tuple(found)
    missing = [name for name in _COMPUTE if times.get(f"{name}_ms") is None]
    if compute_ms is not None:
        missing = []  # they are in it
    left = f"rest, with {' and '.join(missing)}" if missing else "rest"
    rest_ms = (times["step_time_ms"] or 0.0) - sum(branch.ms for branch in found)
    return (*found, Branch(left, max(rest_ms, 0.0), "residual"))


def _with_replays(measured: tuple[Branch, ...], compute_ms: float) -> tuple[Branch, ...]:
    """The phases of compute, and beside some of them the CUDA graphs that hold the others."""
    if not measured or len(measured) == len(_COMPUTE):
        return measured
    replays_ms = max(compute_ms - sum(branch.ms for branch in measured), 0.0)
    return (*measured, Branch("CUDA graph replays", replays_ms, "compute"))


def between_branch(times: Times) -> Branch | None:
    """What happened between steps, where it was more than nothing."""
    between_ms, wall_ms = times.get("between_ms"), times.get("wall_step_ms")
    if between_ms is None or not wall_ms or between_ms < SHOWN_BETWEEN_SHARE * wall_ms:
        return None
    parts = tuple(
        Branch(name, part_ms)
        for name in ("evaluation", "checkpoint")
        if (part_ms := times.get(f"{name}_ms"))
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
