"""Host sync: the host waits for the device, and the device then waits for the host.

Silent while the GPU stays busy: a wait for work that has to be done anyway costs nothing. A GPU
without a batch is idle for the input's sake, so that only the rest of the step can be lost here.
"""

from __future__ import annotations

from traceml.diagnose.host_time import MANY_SYNCS, Part, finding_of, spent_on
from traceml.diagnose.lines import Line
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import duration

KIND = Kind.HOST_SYNC

WARN = Line(0.10, 0.001)  # reading one value leaves a small gap in any loop
FEWEST_SAID = 1.5  # per step: how often is worth saying where it is more than once


def part(facts: Facts) -> Part | None:
    """What waiting for the device took of a step; known only on the device's own clock."""
    spent = spent_on(facts, "sync") if facts.clock == "gpu" else None
    if spent is None:
        return None
    return Part(
        words="waiting for the device",
        spent=spent,
        detail=(
            f"the host waited in {spent.steps}, {_often(facts)}{duration(spent.host_s)} per step, "
            "and the GPU is idle until it has launched the next work"
        ),
        action=(
            f"{_loop(facts)}"
            "Move .item(), .cpu(), .tolist() and printed tensors out of the step, or do them "
            "every so many steps: keep the loss as a detached tensor and read it when you log it; "
            f"copy with non_blocking=True{_pinning(facts)}.{_scaler(facts)}"
        ),
    )


def _pinning(facts: Facts) -> str:
    return "" if facts.loader.pinned else " from pinned memory"


def _scaler(facts: Facts) -> str:
    """A GradScaler reads from the device in every step whether gradients are finite."""
    if not facts.settings.has_grad_scaler:
        return ""
    return " The GradScaler waits once per step as well: bfloat16 needs none."


def _often(facts: Facts) -> str:
    """How often it waited, where that is more than once a step."""
    syncs = facts.syncs_per_step
    return "" if syncs is None or syncs < FEWEST_SAID else f"{syncs:,.0f} times and "


def _loop(facts: Facts) -> str:
    """What to do first about a loop that reads one value after the other."""
    if (facts.syncs_per_step or 0.0) < MANY_SYNCS:
        return ""
    return (
        "So many reads look like a loop over parameters or samples: combine the values on the "
        "device and read the result once, as in torch.stack(values).sum().item(). "
    )


def check(facts: Facts) -> Finding | None:
    """Fires when synchronising leaves the GPU without work for a noticeable share of the step."""
    return finding_of(part(facts), facts, KIND, WARN)
