"""Logging heavy: printing, logging and writing metrics hold the step up."""

from __future__ import annotations

from traceml.diagnose.host_time import Part, finding_of, spent_on
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind
from traceml.model.quantities import duration

KIND = Kind.LOGGING_HEAVY

LESS_OFTEN = 10  # times: still a dense curve, and the cost falls below anybody's notice


def part(facts: Facts) -> Part | None:
    """What logging took of a step."""
    spent = spent_on(facts, "logging")
    if spent is None:
        return None
    return Part(
        words="logging",
        spent=spent,
        detail=f"{spent.steps} wrote something, the longest for {spent.longest}",
        action=(
            f"Log {LESS_OFTEN} times less often: {duration(spent.host_s)} per step become "
            f"{duration(spent.host_s / LESS_OFTEN)}; or hand the writing to a thread "
            "(logging.handlers.QueueHandler)."
        ),
    )


def check(facts: Facts) -> Finding | None:
    """Fires when logging takes a noticeable share of the step."""
    return finding_of(part(facts), facts, KIND)
