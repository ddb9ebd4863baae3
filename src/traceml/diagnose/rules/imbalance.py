"""Imbalance: one rank needs more memory than the others, enough to limit them all.

*Meaning.* One rank needs more memory than the others, so it alone limits the batch of all.

*Evidence.* `place`, `worst_bytes`, `median_bytes`, `skew`, `pressure`; `ranks` names the rank. On
GPUs by reserved memory; on runs without one by the host's, where a rank's capacity is its equal
part.

*Thresholds.* 20 % above the median rank, and at least 30 % of the capacity in use. It only warns:
uneven memory ends no run.

*What to do.* Compare the shapes, batches and extra state (logging, gathered results) of that
rank. In a pipeline: move layers, or checkpoint activations, in that stage.

*Silent* with one rank.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts, RankSpread, spread_over_ranks
from traceml.model.evidence import Evidence, as_share, as_words, in_bytes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory, percent

KIND = Kind.IMBALANCE

SKEW = 0.20  # above the median rank; rank 0 alone often carries some more
PRESSURE = 0.30  # of the capacity: with more than that free, an uneven rank limits nobody


def check(facts: Facts) -> Finding | None:
    """Fires when the worst rank stands out and its memory is not mostly free."""
    reserved = spread_over_ranks(facts, lambda rank: rank.memory.peak_reserved_bytes)
    if reserved is not None:
        capacities = [rank.rank.device_total_bytes for rank in facts.ranks]
        capacity = min((total for total in capacities if total is not None), default=None)
        return _judge(facts, reserved, capacity, "GPU")
    resident = spread_over_ranks(facts, lambda rank: rank.memory.peak_rss_bytes)
    total = facts.host.ram_total_bytes
    if resident is None or total is None:
        return None
    return _judge(facts, resident, total // len(facts.ranks), "host")


def _judge(
    facts: Facts, spread: RankSpread, capacity_bytes: int | None, place: str
) -> Finding | None:
    """Returns the finding; `capacity_bytes` is what one rank may use: its device, or its share of
    the host."""
    if len(facts.ranks) < 2 or not capacity_bytes:
        return None
    pressure = spread.worst / capacity_bytes
    if spread.skew < SKEW or pressure < PRESSURE:
        return None
    return Finding(
        kind=KIND,
        section=Section.STEP_MEMORY,
        severity=Severity.WARNING,
        claim=(
            f"Rank {spread.worst_rank} needs {percent(spread.skew)} more {place} memory than the "
            f"median rank ({memory(spread.worst)} against {memory(spread.median)})."
        ),
        action=(
            f"{_what_to_compare(facts, spread.worst_rank)}: it alone keeps the batch from growing "
            f"({percent(pressure)} of its {place} memory)."
        ),
        skew=spread.skew,
        share=pressure,
        ranks=(spread.worst_rank,),
        evidence=Evidence(
            as_words("place", place.lower()),
            in_bytes("worst_bytes", spread.worst),
            in_bytes("median_bytes", spread.median),
            as_share("skew", spread.skew),
            as_share("pressure", pressure),
        ),
    )


def _what_to_compare(facts: Facts, worst_rank: int) -> str:
    """Returns where to look first: the stages of a pipeline hold different layers."""
    worst = next(rank for rank in facts.ranks if rank.rank.rank == worst_rank)
    stages = {rank.place.pipeline for rank in facts.ranks}
    if len(stages) > 1:
        return (
            f"Rank {worst_rank} ({worst.place.label}) holds other layers than the other stages, "
            "and early stages keep the activations of more micro-batches: move layers, or "
            "checkpoint activations there"
        )
    return f"Compare what rank {worst_rank} holds and the shapes it gets with the others"


RULE = Rule(
    kind=KIND,
    section=Section.STEP_MEMORY,
    check=check,
    doc=Doc(
        "warn", "one rank needs more memory than the others", __doc__, symptoms=(Symptom.MEMORY,)
    ),
)
