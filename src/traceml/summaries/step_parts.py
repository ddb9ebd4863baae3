"""The parts of a mean step as every output shows them: none is negative, and they add up to the
step.

In the file, `residual_ms` includes communication and is missing where compute was not measured
completely. The rest that people see is what no other part holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from traceml.model.phase import COMPUTE, COMPUTE_PART, PHASE_METRICS, Phase

NEGLIGIBLE_SHARE = 0.01
"""Of compute: a smaller difference from the sum of its phases is rounding, or another clock."""

Metrics = Mapping[str, "float | None"]


def step_parts(metrics: Metrics, divided: bool = True) -> dict[str, float]:
    """Returns the parts by phase, and `compute`, in milliseconds; what was not measured is in the
    residual.

    `compute` belongs to no phase, such as replays of CUDA graphs; unless `divided`, it is all of
    compute. Communication is limited to what the others leave: what overlapped with compute is
    counted there.
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
    """Returns the milliseconds of compute that lie in none of its phases; 0 without any."""
    compute_ms = metrics.get("compute_ms") or 0.0
    phases_ms = sum(metrics.get(PHASE_METRICS[phase]) or 0.0 for phase in COMPUTE)
    left_ms = compute_ms - phases_ms
    return left_ms if left_ms > NEGLIGIBLE_SHARE * compute_ms else 0.0
