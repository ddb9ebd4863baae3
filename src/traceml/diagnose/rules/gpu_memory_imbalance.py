"""GPU memory imbalance: the ranks' tensors take up different amounts of their GPUs.

*Meaning.* The ranks' tensors take up different amounts of their GPUs. Whether that matters is
judged by IMBALANCE.

*Evidence.* `worst_bytes`, `median_bytes`, `skew`.

*Thresholds.* 20 % above the median rank and at least 1 GiB. A remark.

*What to do.* Compare shapes and state of that rank with the others'.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts, spread_over_ranks
from traceml.model.evidence import Evidence, as_share, in_bytes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory, percent

KIND = Kind.GPU_MEMORY_IMBALANCE

SKEW = 0.20  # above the median rank
MIN_BYTES = 1 << 30  # a smaller difference is not worth a look


def check(facts: Facts) -> Finding | None:
    """Fires when the worst rank's tensors stand out."""
    spread = spread_over_ranks(facts, lambda rank: rank.memory.peak_allocated_bytes)
    if spread is None or len(facts.ranks) < 2:
        return None
    if spread.skew < SKEW or spread.worst - spread.median < MIN_BYTES:
        return None
    return Finding(
        kind=KIND,
        section=Section.PROCESS,
        severity=Severity.INFO,
        claim=(
            f"Rank {spread.worst_rank} had {memory(spread.worst)} in tensors at most, "
            f"{percent(spread.skew)} more than the median rank ({memory(spread.median)})."
        ),
        action=f"Compare the shapes and the state of rank {spread.worst_rank} with the others'.",
        skew=spread.skew,
        ranks=(spread.worst_rank,),
        evidence=Evidence(
            in_bytes("worst_bytes", spread.worst),
            in_bytes("median_bytes", spread.median),
            as_share("skew", spread.skew),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.PROCESS,
    check=check,
    doc=Doc("info", "the ranks' tensors differ in size", __doc__, (Symptom.MEMORY,)),
)
