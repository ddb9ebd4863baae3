"""Compute straggler: one rank's forward, backward or optimizer takes longer than elsewhere.

Judged by what the rank does itself: the collective makes every rank's backward equally long.
"""

from __future__ import annotations

from traceml.diagnose.uneven import Late, find
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind

KIND = Kind.COMPUTE_STRAGGLER


def check(facts: Facts) -> Finding | None:
    """Fires when the excess of the late ranks lies in their compute."""
    return find(facts, KIND, _next_step)


def _next_step(facts: Facts, late: Late) -> str:
    phase = late.phase.value if late.phase is not None else "compute"
    return (
        f"Look at the {phase} of {late.names} first: longer sequences or larger batches, "
        f"branches and hooks that run there alone, {_device(facts)}."
    )


def _device(facts: Facts) -> str:
    on_host = all(rank.rank.device.startswith("cpu") for rank in facts.ranks_used)
    return (
        "fewer cores or other jobs on them"
        if on_host
        else "lower clocks, heat or other jobs on the GPU (nvidia-smi -q -d PERFORMANCE)"
    )
