"""Stable: the run finished, and its loss stayed finite.

*Meaning.* No exception, no signal, no hang; the loss, where it is known, stayed a number.

*Evidence.* `exit_status`, `loss_values`, `loss_first`, `loss_last`, `long_pauses` (pauses as long
as a hang's, after which steps came again).

*Thresholds.* None: it is what is said when nothing else is.

*What to do.* Nothing.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, RuleRole
from traceml.facts.facts import Facts
from traceml.facts.loss_values import LossScale
from traceml.facts.losses import LossFacts
from traceml.facts.stability import Stability
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count, duration, significant
from traceml.model.run import end_words, signal_of, status_words

KIND = Kind.STABLE


def check(facts: Facts) -> Finding:
    """Returns the finding for a run in which nothing went wrong."""
    known = facts.stability
    end = "It is in progress, and nothing has gone wrong so far."
    if known.is_over:
        end = "The run came to its end."
    if known.exit_status:
        end = _bad_status(known)
    loss, pauses = known.loss, known.pauses
    claims = [end]
    if loss is not None and loss.first is not None and loss.last is not None:
        claims.append(_course(loss))
    if pauses:
        longest_s = max((s.resumed_unix_s or 0.0) - s.since_unix_s for s in pauses)
        claims.append(
            f"{count(len(pauses), 'long pause')} without steps, the longest {duration(longest_s)}."
        )
    return Finding(
        kind=KIND,
        section=Section.STABILITY,
        severity=Severity.INFO,
        claim=" ".join(claims),
        action=(
            "See what was printed last, if that status was not meant."
            if known.exit_status
            else "Nothing to do."
        ),
        evidence=Evidence(
            as_number("exit_status", known.exit_status),
            as_number("loss_values", 0 if loss is None else loss.values),
            as_number("loss_first", None if loss is None else loss.first),
            as_number("loss_last", None if loss is None else loss.last),
            as_number("long_pauses", len(pauses)),
        ),
    )


def _course(loss: LossFacts) -> str:
    """Returns the first and the last loss in words, with their scale where it is not obvious."""
    course = f"{loss.name} went from {significant(loss.first)} to {significant(loss.last)}"
    if loss.scale is LossScale.DIVIDED:
        return (
            f"{course}, multiplied by the micro-batches of each step: the script seems to divide "
            "its loss by them."
        )
    if loss.backwards is not None and loss.backwards > 1:
        return f"{course}, as passed to the first of {loss.backwards} backward calls of a step."
    return f"{course}."


def _bad_status(known: Stability) -> str:
    """Returns in words who set an exit status other than 0, as far as it is known."""
    status, left = known.exit_status, known.first_to_leave
    if left is not None:
        itself = "" if signal_of(left.status) else " by itself"
        return (
            f"Rank {left.rank} {end_words(left.status or 0)}{itself}, and the command around it "
            f"ended with exit {status_words(status or 0)}."
        )
    if not known.is_of_script:
        words = status_words(status or 0)
        return f"The training ended, and the command around it ended with exit {words}."
    return (
        f"The script ended with exit status {status} by itself: no signal and no exception ended "
        "it, but for a Ctrl-C perhaps."
    )


RULE = Rule(
    kind=KIND,
    section=Section.STABILITY,
    check=check,
    role=RuleRole.FALLBACK,
    doc=Doc("info", "the run came to its end, and its loss stayed a number", __doc__),
)
