"""Input straggler: one rank's data takes longer, and the others wait for that rank."""

from __future__ import annotations

from traceml.diagnose.uneven import Late, find
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import duration

KIND = Kind.INPUT_STRAGGLER


def check(facts: Facts) -> Finding | None:
    """Fires when the excess of the late ranks lies in their input."""
    return find(facts, KIND, _next_step)


def _next_step(facts: Facts, late: Late) -> str:
    return (
        f"Bring the input of {late.names} from {duration(late.part.rank_s)} down to "
        f"{duration(late.part.others_s)}: compare its shard of the data (file sizes, sample "
        "lengths), the storage it reads from, its preprocessing, and what else runs on its cores."
    )
