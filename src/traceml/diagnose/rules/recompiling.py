"""Recompiling: torch.compile compiles again and again after warm-up."""

from __future__ import annotations

from traceml.diagnose.host_time import Part, finding_of, spent_on
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind

KIND = Kind.RECOMPILING

FEWEST_STEPS = 2  # one more compilation is the epoch's last, smaller batch; it happens once


def part(facts: Facts) -> Part | None:
    """What compiling took of a step; it takes so long that no queue of a GPU hides it."""
    spent = spent_on(facts, "compile")
    if spent is None or spent.pauses.steps < FEWEST_STEPS:
        return None
    return Part(
        words="compiling",
        spent=spent,
        detail=(
            f"torch.compile compiled again in {spent.steps} after warm-up, "
            f"for up to {spent.longest}"
        ),
        action=(
            "Find what changes with TORCH_LOGS=recompiles; for shapes use "
            "torch.compile(dynamic=True), torch._dynamo.mark_dynamic, or pad batches to a few "
            "sizes (drop_last=True for the last one)."
        ),
    )


def check(facts: Facts) -> Finding | None:
    """Fires when compiling after warm-up takes a noticeable share of the step."""
    return finding_of(part(facts), facts, KIND)
