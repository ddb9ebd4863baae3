"""Which phases explain a change of the step time: parts that add up to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from traceml.compare.record import Delta, Moved
from traceml.model.phase import COMPUTE, COMPUTE_PART, PHASE_METRICS, Phase
from traceml.summaries.step_parts import undivided_ms

MOVED_SHARE = 0.75
"""Of the larger of gain and loss: with less of it in the other, work was not mostly moved."""
MIN_MOVED_SHARE = 0.02
"""Of the longer step: less is not worth a sentence."""


def waterfall_ms(metrics: Mapping[str, Delta]) -> dict[str, float] | None:
    """Returns the change of each phase that both sides measured, and the rest of the change.

    `None` where the step time, or every phase of it, is missing on a side.
    """
    total = metrics.get("step_time_ms", Delta()).delta
    if total is None:
        return None
    parts = {
        phase.value: delta
        for phase, metric in PHASE_METRICS.items()
        if (delta := metrics.get(metric, Delta()).delta) is not None
    }
    compute = metrics.get("compute_ms", Delta()).delta
    is_told = all(phase.value in parts for phase in COMPUTE) and _is_divided(metrics)
    if compute is not None and not is_told:
        parts = {name: part for name, part in parts.items() if name not in COMPUTE}
        parts[COMPUTE_PART] = compute
    if _overlaps_compute(metrics):
        parts.pop(Phase.COMMUNICATION.value, None)
    if not parts:
        return None
    parts[Phase.RESIDUAL.value] = total - sum(parts.values())
    return parts


def grouped_ms(parts: Mapping[str, float]) -> dict[str, float]:
    """Returns the parts with forward, backward and optimizer combined."""
    grouped: dict[str, float] = {}
    for name, part in parts.items():
        name = COMPUTE_PART if name in COMPUTE else name
        grouped[name] = grouped.get(name, 0.0) + part
    return grouped


def moved(
    parts: Mapping[str, float] | None,
    metrics: Mapping[str, Delta],
    is_shown: Callable[[Delta], bool],
) -> Moved | None:
    """Returns how much some phases lost and others gained; `None` where the phases are not known.

    `is_shown` tells for a phase's change whether it is more than chance.
    """
    if not parts:
        return None
    changes = grouped_ms(parts)
    removed, added = (
        sum((part for part in changes.values() if (part > 0) == grew), 0.0)
        for grew in (False, True)
    )
    both = min(-removed, added)
    step = metrics.get("step_time_ms", Delta())
    longest = max(step.lhs or 0.0, step.rhs or 0.0)
    is_move = both >= MOVED_SHARE * max(-removed, added) and both >= MIN_MOVED_SHARE * longest
    ends = (min(changes, key=lambda name: changes[name]), max(changes, key=lambda n: changes[n]))
    is_known = all(is_shown(_change_of(name, metrics)) for name in ends)
    return Moved(removed, added, is_move and both > 0 and is_known)


def _change_of(name: str, metrics: Mapping[str, Delta]) -> Delta:
    """Returns a part's own delta; an empty one for the rest, and for compute of which only the
    phases are known."""
    if name == COMPUTE_PART:
        return metrics.get("compute_ms", Delta())
    return next(
        (metrics[metric] for phase, metric in PHASE_METRICS.items() if phase.value == name), Delta()
    )


def _is_divided(metrics: Mapping[str, Delta]) -> bool:
    """Returns whether compute equals the sum of its phases on both sides; CUDA graphs are in none
    of them."""
    return not any(
        undivided_ms({name: getattr(change, side) for name, change in metrics.items()})
        for side in ("lhs", "rhs")
    )


def _overlaps_compute(metrics: Mapping[str, Delta]) -> bool:
    """Returns whether communication is longer than the body without compute, so that it overlapped
    and would count twice."""
    communication = metrics.get("communication_ms", Delta())
    residual = metrics.get("residual_ms", Delta())
    return any(
        spent is not None and left is not None and spent > left
        for spent, left in (
            (communication.lhs, residual.lhs),
            (communication.rhs, residual.rhs),
        )
    )
