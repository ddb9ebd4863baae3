"""High GPU memory: a GPU is nearly full, by this run or by others.

*Meaning.* A GPU of the run is nearly full, whoever filled it.

*Evidence.* `gpu`, `gpu_memory_share`, `gpu_memory_bytes`, `reserved_bytes`.

*Thresholds.* 92 % at the worst moment.

*What to do.* Where 10 % of the device or more is not the run's own, `nvidia-smi` lists whose it
is; else see HIGH_PRESSURE.

*Silent* where the run uses only some of the machine's GPUs.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share, in_bytes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory, percent

KIND = Kind.HIGH_GPU_MEMORY

WARN_SHARE = 0.92  # as for the pressure of a rank itself
OTHERS_SHARE = 0.10  # of the device: a CUDA context takes far less, another process more


def check(facts: Facts) -> Finding | None:
    """Fires when a GPU of the run had next to nothing left at the worst moment."""
    full = [
        (gpu.memory_share.peak, gpu)
        for gpu in facts.gpus_used or ()
        if gpu.memory_share.peak is not None and gpu.memory_share.peak >= WARN_SHARE
    ]
    if not full:
        return None
    worst_share, worst = max(full, key=lambda one: (one[0], -one[1].index))
    used = worst.memory_bytes.peak or 0.0
    reserved = max((rank.memory.peak_reserved_bytes or 0 for rank in facts.ranks), default=0)
    others = max(0.0, used - reserved)
    shared = others >= OTHERS_SHARE * used / worst_share
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.WARNING,
        claim=(
            f"GPU {worst.index} was up to {percent(worst_share)} full ({memory(used)}); a rank's "
            f"allocator held at most {memory(reserved)}."
        ),
        action=(
            f"About {memory(others)} belong to other processes: nvidia-smi lists them."
            if shared
            else "The run itself fills it: see the memory diagnosis."
        ),
        share=worst_share,
        evidence=Evidence(
            as_number("gpu", worst.index),
            as_share("gpu_memory_share", worst_share),
            in_bytes("gpu_memory_bytes", used),
            in_bytes("reserved_bytes", reserved),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    doc=Doc(
        "warn",
        "a GPU is nearly full, by this run or by others",
        __doc__,
        symptoms=(Symptom.MEMORY,),
    ),
)
