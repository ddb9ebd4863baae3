"""Copy straggler: one rank's copies to the device take longer, and the others wait for it."""

from __future__ import annotations

from traceml.diagnose.uneven import Late, find
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import duration

KIND = Kind.H2D_STRAGGLER


def check(facts: Facts) -> Finding | None:
    """Fires when the excess of the late ranks lies in their copies."""
    return find(facts, KIND, _next_step)


def _next_step(facts: Facts, late: Late) -> str:
    return (
        f"Bring the copies of {late.names} from {duration(late.part.rank_s)} down to "
        f"{duration(late.part.others_s)}: the same batch sizes{_pinning(facts)} as elsewhere, "
        "a process on the NUMA node of its GPU, and a PCIe link of full width (nvidia-smi -q)."
    )


def _pinning(facts: Facts) -> str:
    is_pinned = facts.loader.pinned and "pin_memory" not in facts.uneven_settings
    return "" if is_pinned else " and pin_memory=True"
