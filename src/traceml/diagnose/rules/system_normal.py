"""Normal system: the machine shows nothing to act on.

*Meaning.* The host, or the training processes, were sampled and show nothing to act on.

*Evidence.* System: `samples`, `cpu_share`. Process: `processes`. The section's numbers stand
beside it.

*Thresholds.* None: it is what is said when nothing else is.

*What to do.* Nothing.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, RuleRole
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count

KIND = Kind.NORMAL


def check(facts: Facts) -> Finding:
    """Returns the finding for a machine about which no rule found anything."""
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.INFO,
        claim=(
            f"None of the {count(len(facts.nodes), 'node')} showed anything to act on."
            if facts.nodes
            else "The host showed nothing to act on."
        ),
        action="Nothing to do.",
        evidence=Evidence(
            as_number("samples", facts.host.samples),
            as_share("cpu_share", facts.host.cpu_share.mean),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    role=RuleRole.FALLBACK,
    doc=Doc("info", "nothing to act on", __doc__),
)
