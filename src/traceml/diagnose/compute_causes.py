"""What the GPU's counters add to COMPUTE_BOUND: why compute takes the time that it takes.

Every one of these causes needs COMPUTE_BOUND to hold and enough samples of the counters, taken
while steps ran. They inform, like the finding that they explain: a step that is all compute is
healthy, and whether it should be made faster is for its owner to say.
"""

from __future__ import annotations

from collections.abc import Callable

from traceml.diagnose.rule import Doc, Rule, RuleRole
from traceml.diagnose.rules import compute_bound
from traceml.facts.facts import Facts
from traceml.facts.gpu_use import GpuUse
from traceml.model.evidence import Evidence, as_number, as_share
from traceml.model.finding import Finding, Kind, Section, Severity


def compute_cause(kind: Kind, check: Callable[[Facts], Finding | None], doc: Doc) -> Rule:
    """Returns the rule for one reason why compute takes long; such rules have no what-if."""
    return Rule(
        kind=kind,
        section=Section.STEP_TIME,
        check=check,
        doc=doc,
        role=RuleRole.CAUSE,
        explains=(Kind.COMPUTE_BOUND,),
    )


def counted_use(facts: Facts) -> GpuUse | None:
    """Returns the GPU counters of a compute-bound run; `None` for any other run, or too few
    samples."""
    use = facts.gpu_use
    if use.sm_share is None or compute_bound.check(facts) is None:
        return None
    return use


def cause(facts: Facts, kind: Kind, claim: str, action: str, share: float) -> Finding:
    """Returns the finding, with all GPU counters as its evidence."""
    use = facts.gpu_use
    return Finding(
        kind=kind,
        section=Section.STEP_TIME,
        severity=Severity.INFO,
        claim=claim,
        action=action,
        share=share,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        evidence=Evidence(
            as_share("tensor_share", use.tensor_share),
            as_share("fp32_share", use.fp32_share),
            as_share("dram_share", use.dram_share),
            as_share("sm_share", use.sm_share),
            as_share("gpu_busy_share", use.busy_share),
            as_share("occupancy_share", use.occupancy),
            as_number("gpu_samples", use.samples),
        ),
    )
