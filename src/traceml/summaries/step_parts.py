"""The parts of a mean step as every surface shows them: no part is negative, and they sum to it.

The file's `residual_ms` counts communication as a part of it, and is missing where compute was not
measured whole; what people are shown as the rest is what no other part holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from traceml.model.phase import COMPUTE, COMPUTE_PART, PHASE_METRICS, Phase

NEGLIGIBLE_SHARE = 0.01
"""Of compute: a smaller difference to its phases is rounding, or another clock."""

Metrics = Mapping[str, "float | None"]


def step_parts(metrics: Metrics, divided: bool = True) -> dict[str, float]:
    """By phase, and `compute`, in milliseconds; what was not measured is in the residual.

    `compute` is what is in no phase of its own, such as replays of CUDA graphs; compute that is not
    `divided` is all there. Communication counts as far as the others leave room for it: what ran
    behind compute is in compute already.
    """
    parts = {
        phase.value: max(0.0, value)
        for phase, key in PHASE_METRICS.items()
        if (value := metrics.get(key)) is not None
    }
    compute_ms = metrics.get("compute_ms")
    if compute_ms is not None and not divided:
        parts = {name: part for name, part in parts.items() if name not in COMPUTE}
        parts[COMPUTE_PART] = max(0.0, compute_ms)
    elif left_ms := undivided_ms(metrics):
        parts[COMPUTE_PART] = left_ms
    step_ms = metrics.get("step_time_ms")
    if step_ms is None:
        return parts
    communication_ms = parts.pop(Phase.COMMUNICATION.value, None)
    rest_ms = max(0.0, step_ms - sum(parts.values()))
    if communication_ms is not None:
        parts[Phase.COMMUNICATION.value] = min(communication_ms, rest_ms)
        rest_ms -= parts[Phase.COMMUNICATION.value]
    return {**parts, Phase.RESIDUAL.value: rest_ms}


def undivided_ms(metrics: Metrics) -> float:
    """What compute has beyond its phases."""
    compute_ms = metrics.get("compute_ms") or 0.0
    phases_ms = sum(metrics.get(PHASE_METRICS[phase]) or 0.0 for phase in COMPUTE)
    left_ms = compute_ms - phases_ms
    return left_ms if left_ms > NEGLIGIBLE_SHARE * compute_ms else 0.0
