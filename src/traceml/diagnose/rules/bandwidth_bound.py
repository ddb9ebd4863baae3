"""Bandwidth bound: much of the GPU's time goes into moving data to and from its memory.

*Meaning.* Much of the GPU's time goes into kernels that move data and compute next to nothing
with it: elementwise operations, normalisations, optimizers.

*Evidence.* As TENSOR_CORES_IDLE.

*Thresholds.* The memory works at 35 % of its bandwidth or more on average (kernels that do
nothing else reach about 83 %), and the tensor cores compute for a smaller share of the time and
at most 50 %.

*What to do.* Fuse (`torch.compile`), `scaled_dot_product_attention`, a fused optimizer, bfloat16;
only what is not on already.

*Silent* without the counters.
"""

from __future__ import annotations

from traceml.diagnose import settings_advice
from traceml.diagnose.compute_causes import cause, compute_cause, counted_use
from traceml.diagnose.rule import Doc, Symptom
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import percent
from traceml.model.settings import Settings

KIND = Kind.BANDWIDTH_BOUND

MIN_DRAM = 0.35  # kernels that only move data reach 83 %: four tenths of the time or more
MAX_TENSOR = 0.50  # tensor cores that compute for longer are what takes the time


def check(facts: Facts) -> Finding | None:
    """Fires when the memory is busier than the tensor cores, each as a share of its maximum."""
    use = counted_use(facts)
    if use is None or use.dram_share is None or use.tensor_share is None:
        return None
    if use.dram_share < MIN_DRAM or use.tensor_share > min(MAX_TENSOR, use.dram_share):
        return None
    return cause(
        facts,
        KIND,
        claim=(
            f"Much of the GPU's time goes into moving data: its memory works at "
            f"{percent(use.dram_share)} of its bandwidth on average, the tensor cores compute "
            f"{percent(use.tensor_share)} of the time."
        ),
        action=_next_step(facts.settings),
        share=use.dram_share,
    )


def _next_step(settings: Settings) -> str:
    """Recommends only what is not known to be on already."""
    compiling = settings_advice.compiling(settings)
    half = settings_advice.lower_precision(settings, tf32=False)
    ways = (
        f"fuse elementwise operations with {compiling}" if compiling else "",
        "use torch.nn.functional.scaled_dot_product_attention where there is attention",
        f"set {fused}" if (fused := settings_advice.fused_optimizer(settings)) else "",
        f"halve the bytes with {half}" if half else "",
    )
    return f"Move fewer bytes: {'; '.join(filter(None, ways))}."


RULE = compute_cause(
    KIND,
    check,
    Doc(
        severities="info",
        says="much of the GPU's time goes into moving data",
        text=__doc__,
        symptoms=(Symptom.SLOW_BUSY_GPU,),
    ),
)
