"""No data: not one complete step was recorded on all ranks.

*Meaning.* Nothing was measured in that section. For step time the summary says how far the run
came: no interpreter loaded the tracer, torch was never imported, no step was completed, every
step ended in an exception, or the ranks have no complete step in common; and the status, where
the script ended with one other than 0 by itself.

*Evidence.* Step time: `steps_aborted`, `ranks_seen`, `exit_status`.

*Thresholds.* Step time: not one complete step. Memory, system and process: not one sample;
samples are taken once a second, so a run of less than that may have none.

*What to do.* Trace the script that trains. Where its loop is unusual, mark each step with `with
traceml.trace_step(model):`.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.run import DISK_FULL, NO_TORCH, NO_TRACER

KIND = Kind.NO_DATA

REASON = "No complete training step was recorded."


HINTS = {
    2: "With status 2 argparse and most commands refuse their arguments.",
    124: "With status 124 the command timeout says that the time was up.",
    126: "With status 126 a shell says that it may not execute the command.",
    127: "With status 127 a shell says that there is no such command.",
}
"""What an exit status means by convention."""


def check(facts: Facts) -> Finding | None:
    """Fires when there is nothing to analyse, and says why."""
    if facts.window.steps_analyzed:
        return None
    aborted = sum(rank.steps_aborted for rank in facts.ranks)
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.INFO,
        claim=_claim(facts),
        action=_action(facts, aborted),
        evidence=Evidence(
            as_number("steps_aborted", aborted),
            as_number("ranks_seen", len(facts.ranks)),
            as_number("exit_status", facts.stability.exit_status),
        ),
    )


def _claim(facts: Facts) -> str:
    reason = facts.reason_without_steps or REASON
    status = facts.stability.exit_status
    if not status or facts.stability.failure is not None:
        return reason  # what ended it is said elsewhere
    return f"It ended with exit status {status} before its first training step. {reason}"


def _action(facts: Facts, aborted: int) -> str:
    status = facts.stability.exit_status
    if facts.stability.failure is not None:
        return "See what ended the run."
    reason = facts.reason_without_steps or ""
    if reason.startswith(DISK_FULL):
        return "Make room on that disk, then run `traceml recover` with this run."
    if status:
        return " ".join(filter(None, ("See what it printed last.", HINTS.get(status))))
    if reason.startswith(NO_TORCH):
        return "Trace the script that trains: this one has no steps to mark."
    if reason.startswith(NO_TRACER):
        return (
            "Start Python without what kept the tracer out, or call traceml.init() in the script."
        )
    if aborted:
        return "See why the step ended in an exception."
    return (
        "Check that the training loop runs; where it is unusual, mark each step with "
        "`with traceml.trace_step(model):`."
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    doc=Doc("info", "nothing was measured, and why", __doc__, symptoms=(Symptom.NO_VERDICT,)),
)
