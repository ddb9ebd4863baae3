"""Evaluation heavy: a good part of the wall time goes into evaluating.

Evaluating is normal work and no bottleneck of the step, so it warns only where it outweighs
training.
"""

from __future__ import annotations

from traceml.diagnose.between import finding_of, how_much_less, times_between
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
        seen,
        f"{how_much_less(seen, facts.mean.cpu_step_s, 'Evaluate')} Fewer batches, or larger ones "
        "under torch.inference_mode(), make each evaluation shorter.",
    )
