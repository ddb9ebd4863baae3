"""Loss spike: the loss jumped far above what it had been.

Stays silent on losses that are noisy by nature, and on those that fall below zero.
"""

from __future__ import annotations

from traceml.diagnose.places import numbered
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count

KIND = Kind.LOSS_SPIKE

MOST_SPIKES_SHARE = 0.02  # of the values: more of them are how this loss is, and no event
ABOVE_START = 3.0  # times the first loss: worse than knowing nothing, whether it came back or not


def check(facts: Facts) -> Finding | None:
    """Fires when the loss jumped, and says whether it came back."""
    loss = facts.stability.loss
    if loss is None or not loss.jumps:
        return None
    lasting = [jump for jump in loss.jumps if jump.lasts]
    if not lasting and len(loss.jumps) > max(1, MOST_SPIKES_SHARE * loss.values):
        return None
    worst = lasting[0] if lasting else max(loss.jumps, key=lambda jump: jump.value / jump.usual)
    beyond_start = loss.first is not None and worst.value >= ABOVE_START * loss.first
    step = numbered(worst.step, loss.is_logged)
    after = "and stayed there" if worst.lasts else "and came back"
    others = f" ({count(len(loss.jumps), 'spike')} in all)" if len(loss.jumps) > 1 else ""
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.WARNING if worst.lasts or beyond_start else Severity.INFO,
        claim=(
            f"{loss.name} jumped from {worst.usual:.4g} to {worst.value:.4g} at {step} "
            f"{after}{others}."
        ),
        action=(
            f"Go on from a checkpoint before {step} with a lower learning rate, a "
            "longer warm-up or clipped gradients."
            if worst.lasts
            else f"Look at the batch of {step}; clip gradients if it comes again."
        ),
        evidence={
            "name": loss.name,
            "step": worst.step,
            "numbering": "logged" if loss.is_logged else "counted",
            "usual": worst.usual,
            "peak": worst.value,
            "times": worst.value / worst.usual,
            "spikes": len(loss.jumps),
        },
    )
