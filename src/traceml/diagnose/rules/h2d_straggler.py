"""Copy straggler: one rank's copies to the device take longer, and the others wait for it.

*Meaning.* A rank's copies to the device take longer than elsewhere.

*Evidence.* As for [STRAGGLER](#straggler), with `worst_ms` and `median_ms` of the copies.

*Thresholds.* As for [STRAGGLER](#straggler).

*What to do.* The same batch sizes and pinned memory on all ranks, a process on the NUMA node of
its GPU, a PCIe link of full width.
"""

from __future__ import annotations

from traceml.diagnose.late_ranks import Late, straggler_rule
from traceml.diagnose.rule import Doc, Symptom
from traceml.facts.facts import Facts
from traceml.model.finding import Kind
from traceml.model.quantities import duration

KIND = Kind.H2D_STRAGGLER


def _next_step(facts: Facts, late: Late) -> str:
    return (
        f"Bring the copies of {late.names} from {duration(late.slow_work.rank_s)} down to "
        f"{duration(late.slow_work.others_s)}: the same batch sizes{_pinning(facts)} as elsewhere, "
        "a process on the NUMA node of its GPU, and a PCIe link of full width (nvidia-smi -q)."
    )


def _pinning(facts: Facts) -> str:
    is_pinned = facts.loader.pinned and "pin_memory" not in facts.uneven_settings
    return "" if is_pinned else " and pin_memory=True"


RULE = straggler_rule(
    KIND,
    _next_step,
    Doc(
        severities="warn, crit",
        says="a rank's copies to the device make it late",
        text=__doc__,
        symptoms=(Symptom.BAD_SCALING,),
    ),
)
check = RULE.check
