"""Balanced: no part of the step stands out.

*Meaning.* Step time: no rule fired, and no part of the step dominates it; where a part of compute
was not measured and more of the step is outside the measured phases than in any one of them, the
text says so, and in which lines the training thread was seen there. Step memory: memory was
measured and no rule fired.

*Evidence.* Step time: `step_time_ms` and the share of every measured phase, the residual without
communication. Step memory: the highest peak of any rank, `peak_reserved_bytes` on a GPU and
`peak_rss_bytes` on the host.

*Thresholds.* None: it is what is said when nothing else is.

*What to do.* Nothing, unless throughput is lower than you expected: then compare with a baseline.
"""

from __future__ import annotations

from traceml.diagnose.rule import CodeScope, Doc, Rule, RuleRole
from traceml.diagnose.time_account import rest_s, unexplained_s
from traceml.facts.facts import Facts, share
from traceml.model.evidence import Evidence, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.quantities import duration, percent

KIND = Kind.BALANCED


def check(facts: Facts) -> Finding:
    """Returns the finding for a step in which no step-time rule found anything."""
    known = {phase: part for phase in Phase if (part := _share(facts, phase)) is not None}
    claim = f"No single bottleneck stands out in a step of {duration(facts.mean.step_s)}"
    unknown_share = share(rest_s(facts.mean), facts.mean.step_s) or 0.0
    if facts.mean.wait_s is None and unknown_share > max(known.values(), default=0.0):
        claim = (
            f"Nothing that was measured stands out in a step of {duration(facts.mean.step_s)}, but "
            f"{percent(unknown_share)} of it is outside the measured phases"
        )
    if known:
        largest = max(known, key=lambda phase: known[phase])
        claim += f"; {largest.value} is the largest part at {percent(known[largest])}"
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.INFO,
        claim=f"{claim}.",
        action="Optimise only if throughput is too low; compare with a baseline.",
        evidence=Evidence(
            in_ms("step_time_ms", facts.mean.step_s),
            *(as_share(f"{phase.value}_share", part) for phase, part in known.items()),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def _share(facts: Facts, phase: Phase) -> float | None:
    """Returns a phase's share of the step; `None` for a residual that may hide unmeasured
    compute."""
    if phase is Phase.RESIDUAL:
        return share(unexplained_s(facts.mean), facts.mean.step_s)
    return facts.mean_share(phase)


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    role=RuleRole.FALLBACK,
    code=CodeScope.REST,
    doc=Doc("info", "nothing stands out", __doc__),
)
