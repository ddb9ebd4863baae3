"""Near the GPU's limit: the tensor cores or the memory do nearly what they can.

*Meaning.* The tensor cores or the memory do nearly what they can: no setting makes the step much
faster, but for 16-bit arithmetic where that is off.

*Evidence.* As TENSOR_CORES_IDLE.

*Thresholds.* The tensor cores compute 60 % of the time or more, or the memory works at 70 % of
its bandwidth or more.

*What to do.* bfloat16 autocast and `torch.compile` where they are off; else less arithmetic per
sample, fewer bytes moved, or more GPUs.

*Silent* without the counters.
"""

from __future__ import annotations

from traceml.diagnose import settings_advice
from traceml.diagnose.compute_causes import cause, compute_cause, counted_use
from traceml.diagnose.rule import Doc, Symptom
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import percent

KIND = Kind.NEAR_GPU_LIMIT

MIN_TENSOR = 0.60  # matrix products alone reach 70 to 90 %, and no training step is only those
MIN_DRAM = 0.70  # elementwise work over 1 GiB, as fast as it gets: 83 %


def check(facts: Facts) -> Finding | None:
    """Fires when the tensor cores or the memory are close to their utmost."""
    use = counted_use(facts)
    if use is None:
        return None
    tensor, dram = use.tensor_share or 0.0, use.dram_share or 0.0
    if tensor >= MIN_TENSOR:
        return _tensor_cores(facts, tensor)
    return _memory(facts, dram) if dram >= MIN_DRAM else None


def _tensor_cores(facts: Facts, tensor: float) -> Finding:
    half = settings_advice.lower_precision(facts.settings, tf32=False)
    limit = "the GPU's limit at this precision" if half else "the GPU's limit"
    left = "" if half else ": no setting makes this step much faster"
    first = f"Try {half}, which doubles what they do in a second. " if half else ""
    return cause(
        facts,
        KIND,
        claim=f"The tensor cores compute {percent(tensor)} of the time, close to {limit}{left}.",
        action=(
            f"{first}{'Beyond that, only' if half else 'Only'} less arithmetic per sample (a "
            "smaller model, shorter sequences, FP8 where the model tolerates it) or more GPUs help."
        ),
        share=tensor,
    )


def _memory(facts: Facts, dram: float) -> Finding:
    settings = facts.settings
    ways = settings_advice.listed(
        (settings_advice.compiling(settings), settings_advice.lower_precision(settings, tf32=False))
    )
    return cause(
        facts,
        KIND,
        claim=(
            f"The GPU's memory works at {percent(dram)} of its bandwidth, close to its limit: "
            "these kernels cannot run faster."
        ),
        action=(
            f"Only moving fewer bytes{f' ({ways})' if ways else ''}, an algorithm that needs fewer "
            "passes over the data, or more GPUs help."
        ),
        share=dram,
    )


RULE = compute_cause(
    KIND,
    check,
    Doc(
        severities="info",
        says="the GPU is close to its limit",
        text=__doc__,
        symptoms=(Symptom.SLOW_BUSY_GPU,),
    ),
)
