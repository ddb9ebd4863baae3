"""Tensor cores idle: float32 arithmetic runs on the FP32 units while the tensor cores do nothing.

*Meaning.* Float32 arithmetic runs on the FP32 units while the tensor cores, many times as fast at
matrix products, do nothing. Said only beside `COMPUTE_BOUND`, as are the next three.

*Evidence.* `fp32_share`, `tensor_share`, `sm_share`, `occupancy_share`, `dram_share`,
`gpu_busy_share`: shares of the time in which steps ran; `gpu_samples`.

*Thresholds.* The FP32 units compute 25 % of the time or more, the tensor cores at most 10 %, and
50 % of the SMs have work.

*What to do.* bfloat16 autocast, or TF32 (`torch.set_float32_matmul_precision('high')`, and
`torch.backends.cudnn.allow_tf32=True` where there are convolutions); only what is not on already.
There is no prediction: how much faster a step gets depends on its shapes. The transformer of [the
table](#gpu-counters) is 7.3 times as fast in bfloat16.

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

KIND = Kind.TENSOR_CORES_IDLE

MIN_SM = 0.50  # of the SMs: below, something else than the arithmetic holds the GPU up
MIN_FP32 = 0.25  # float32 matrix products: 62 %; elementwise work waits for memory before 5 %
MAX_TENSOR = 0.10  # the same model in float32: 3.5 %, in bfloat16: 32 %


def check(facts: Facts) -> Finding | None:
    """Fires when the FP32 units do the work that tensor cores could do."""
    use = counted_use(facts)
    if use is None or use.fp32_share is None or use.tensor_share is None:
        return None
    if (use.sm_share or 0.0) < MIN_SM or use.fp32_share < MIN_FP32:
        return None
    if use.tensor_share > MAX_TENSOR:
        return None
    return cause(
        facts,
        KIND,
        claim=(
            f"The FP32 units compute {percent(use.fp32_share)} of the time, and the tensor cores, "
            f"which are many times faster at matrix products, {percent(use.tensor_share)}."
        ),
        action=_next_step(facts.settings),
        share=use.fp32_share,
    )


def _next_step(settings: Settings) -> str:
    half = settings_advice.lower_precision(settings, tf32=False)
    if not half:
        return (
            "The model computes in 16 bits, so this float32 work is done elsewhere: look for "
            "layers, losses or custom kernels that cast to float32 or leave autocast."
        )
    tf32 = settings_advice.allowing_tf32(settings)
    other = f", or let float32 arithmetic use TF32: {tf32}" if tf32 else ""
    return f"Run forward and loss under {half}{other}."


RULE = compute_cause(
    KIND,
    check,
    Doc(
        severities="info",
        says="float32 arithmetic runs beside idle tensor cores",
        text=__doc__,
        symptoms=(Symptom.SLOW_BUSY_GPU,),
    ),
)
