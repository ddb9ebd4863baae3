"""Non-finite loss: the loss, or a gradient norm, was no number any more."""

from __future__ import annotations

from traceml.facts.facts import Facts
from traceml.facts.losses import NotFinite
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count

KIND = Kind.NON_FINITE_LOSS


def check(facts: Facts) -> Finding | None:
    """Fires when a loss was not finite; to the end of the run it is critical."""
    loss = facts.stability.loss
    if loss is None or loss.not_finite is None:
        return None
    lost, failure = loss.not_finite, facts.stability.failure
    # What ended the run is told first; a run that somebody stopped did not end by itself.
    leads = lost.to_the_end and (failure is None or failure.kind is Kind.KILLED)
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.CRITICAL if leads else Severity.WARNING,
        claim=_claim(lost),
        action=_action(lost),
        ranks=lost.ranks,
        evidence={
            "name": lost.name,
            "first_step": lost.first_step,
            "values_not_finite": lost.count,
            "last_finite": lost.last_finite,
            "gradient_norm_usual": lost.norm_usual,
            "gradient_norm_before": lost.norm_before,
        },
    )


def _claim(lost: NotFinite) -> str:
    before = "" if lost.last_finite is None else f" (it was {lost.last_finite:.4g} before)"
    if not lost.to_the_end:
        times = count(lost.count, "value")
        return (
            f"{lost.name} was not finite at step {lost.first_step:,}{before}; it recovered "
            f"({times} in all)."
        )
    claim = f"{lost.name} is not finite from step {lost.first_step:,} on{before}."
    if lost.norm_before is not None:
        claim += (
            f" The gradient norm had risen first: {lost.norm_before:.4g} against a usual "
            f"{lost.norm_usual:.4g}."
        )
    return claim


def _action(lost: NotFinite) -> str:
    if not lost.to_the_end:
        return "Clip gradients, or skip such batches; look at the batch of that step."
    if lost.norm_before is not None:
        return (
            "Clip the gradient norm near its usual value and lower the learning rate; go on from "
            f"a checkpoint before step {lost.first_step:,}."
        )
    return (
        f"Go on from a checkpoint before step {lost.first_step:,} with a lower learning rate and "
        "clipped gradients; use bf16 instead of fp16; torch.autograd.set_detect_anomaly(True) "
        "names the operation."
    )
