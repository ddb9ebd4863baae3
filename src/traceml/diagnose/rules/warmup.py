"""Warm-up: too few steps to say where a step's time goes.

*Meaning.* There are too few steps to say where a step's time goes. Other findings about the step
are withheld.

*Evidence.* `steps_analyzed`, `warmup_steps`, `steps_needed`.

*Thresholds.* Fewer than 5 steps after warm-up.

*What to do.* Let the run take a few dozen steps.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import count

KIND = Kind.WARMUP

MIN_STEPS = 5  # with fewer, one odd step is most of the picture


def check(facts: Facts) -> Finding | None:
    """Fires on a run, or a live window, of only a handful of steps."""
    window = facts.window
    if not 0 < window.steps_analyzed < MIN_STEPS:
        return None
    after = f" after {count(window.warmup_steps, 'warm-up step')}" if window.warmup_steps else ""
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.INFO,
        claim=(
            f"Only {count(window.steps_analyzed, 'step')} could be analysed{after}: "
            "too few to say where the time goes."
        ),
        action=(
            f"Let the run take {count(MIN_STEPS - window.steps_analyzed, 'step')} more "
            "on every rank; a few dozen give a clear picture."
        ),
        evidence=Evidence(
            as_number("steps_analyzed", window.steps_analyzed),
            as_number("warmup_steps", window.warmup_steps),
            as_number("steps_needed", MIN_STEPS),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    doc=Doc("info", "too few steps for any share", __doc__, symptoms=(Symptom.NO_VERDICT,)),
)
