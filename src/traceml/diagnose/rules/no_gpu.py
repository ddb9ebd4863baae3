"""No GPU: the run trains on the CPU while the machine's GPUs are idle.

*Meaning.* The run trained on the CPU on a machine that has GPUs.

*Evidence.* `gpus`.

*Thresholds.* Every rank's parameters live on the CPU, and NVML shows a GPU.

*What to do.* Move model and batches to the GPU; check `torch.cuda.is_available()`.

*Silent* on a machine without a GPU.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count

KIND = Kind.NO_GPU


def check(facts: Facts) -> Finding | None:
    """Fires when every rank's parameters live on the CPU and there is a GPU."""
    on_cpu = bool(facts.ranks_used) and all(rank.rank.device == "cpu" for rank in facts.ranks_used)
    if not on_cpu or not facts.host.gpus:
        return None
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.WARNING,
        claim=f"The run trained on the CPU beside {count(facts.host.gpus, 'GPU')}.",
        action=(
            "Move the model and its batches to the GPU (model.to('cuda')), and check that "
            "torch.cuda.is_available() says True."
        ),
        evidence=Evidence(as_number("gpus", facts.host.gpus)),
    )


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    doc=Doc(
        "warn", "the run trains on the CPU beside idle GPUs", __doc__, symptoms=(Symptom.IDLE_GPU,)
    ),
)
