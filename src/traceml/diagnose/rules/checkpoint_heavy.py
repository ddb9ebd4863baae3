"""Checkpoint heavy: a good part of the wall time goes into saving.

Saving is normal work and no bottleneck of the step, so it warns only where it outweighs training.
"""

from __future__ import annotations

from traceml.diagnose.between import finding_of, how_much_less, times_between
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind

KIND = Kind.CHECKPOINT_HEAVY


def check(facts: Facts) -> Finding | None:
    """Fires when checkpoints take a noticeable share of the wall time."""
    seen = times_between(facts, "checkpoint")
    if seen is None:
        return None
    return finding_of(
        facts,
        KIND,
        "Saving checkpoints",
        facts.mean.checkpoint_s,
        seen,
        f"{how_much_less(seen, facts.mean.cpu_step_s, 'Save')} Saving in the background "
        "(torch.distributed.checkpoint.async_save), or to a faster disk and copying from there, "
        "makes each one shorter.",
    )
