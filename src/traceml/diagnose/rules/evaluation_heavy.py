"""Evaluation heavy: a good part of the wall time goes into evaluating.

Evaluating is normal work and no bottleneck of the step, so it warns only where it outweighs
training.
"""

from __future__ import annotations

from traceml.diagnose.between import finding_of, how_often, less_often, times_between
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind

KIND = Kind.EVALUATION_HEAVY


def check(facts: Facts) -> Finding | None:
    """Fires when evaluation takes a noticeable share of the wall time."""
    seen = times_between(facts, "evaluation")
    if seen is None:
        return None
    return finding_of(
        facts,
        KIND,
        "Evaluation",
        facts.mean.evaluation_s,
        how_often(seen),
        f"Evaluate {less_often(seen)}on fewer batches, or with larger ones under "
        "torch.inference_mode().",
    )
