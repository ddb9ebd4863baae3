"""Slowdown: from some step on, every step takes longer.

*Meaning.* From some step on, and to the end, steps take clearly longer.

*Evidence.* `onset_step`, `before_ms`, `after_ms`, `ratio`, `grown_phase_ms`, `core_wait_before_ms`,
`core_wait_after_ms`, `attempt` (that began at that step: the ranks were started again),
`diagnosis_clock`; `phase` names the part in which at least 50 % of the
slowdown lies.

*Thresholds.* 1.1 times as long, far outside the spread of the steps, and 1 ms or more; from 1.3
times on it is a warning.

*What to do.* Look at what changed at that step: longer sequences, a schedule, other jobs on the
machine, heat, memory that filled up. Where waiting for a CPU core grew by at least 50 % of the
slowdown, that is said, and the cores are where to look.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Remedy, Rule, RuleRole, Symptom, Turn, Where, lost
from traceml.facts.facts import Facts
from traceml.facts.series import Slowdown, growth_by_phase
from traceml.model.evidence import Evidence, as_number, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity, StepSpan
from traceml.model.phase import Phase
from traceml.model.quantities import count, duration, percent

KIND = Kind.SLOWDOWN

WARN_RATIO = 1.30  # a shared machine drifts by less within a run
MIN_SLOWDOWN_S = 0.001  # a smaller difference per step is not worth looking for
MIN_PHASE_SHARE = 0.5  # a phase that grew by less than half of it is not where to look first
MIN_CORE_WAIT_SHARE = 0.5  # the same of waiting for a CPU core


def check(facts: Facts) -> Finding | None:
    """Fires when the series of steps has a lasting upward shift."""
    slowdown, series = facts.slowdown, facts.series
    if slowdown is None or series is None or slowdown.after_s - slowdown.before_s < MIN_SLOWDOWN_S:
        return None
    phase, grown_s = _grown_most(facts, slowdown.onset_step)
    more_s = slowdown.after_s - slowdown.before_s
    where = (
        f"; {phase.value} grew by {duration(grown_s)}, {percent(grown_s / more_s)} of it"
        if phase is not None
        else ""
    )
    core_wait = _grown_core_wait(slowdown)
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.WARNING if slowdown.ratio >= WARN_RATIO else Severity.INFO,
        claim=(
            f"From step {count(slowdown.onset_step)}{_began(slowdown)} on a step takes "
            f"{slowdown.ratio:.2f} times "
            f"as long ({duration(slowdown.before_s)} → {duration(slowdown.after_s)}){where}."
            + (
                ""
                if core_wait is None
                else f" The training thread was ready to run but waited for a CPU core "
                f"{duration(core_wait[0])} per step before and {duration(core_wait[1])} since."
            )
        ),
        action=_action(slowdown, core_wait),
        phase=phase,
        share=more_s / slowdown.after_s,
        ranks=tuple(rank.rank.rank for rank in facts.ranks_used),
        lost_s_per_step=max(series.mean_s - slowdown.before_s, 0.0),
        steps=StepSpan(slowdown.onset_step),
        evidence=Evidence(
            as_number("onset_step", slowdown.onset_step),
            in_ms("before_ms", slowdown.before_s),
            in_ms("after_ms", slowdown.after_s),
            as_number("ratio", slowdown.ratio),
            as_number("attempt", slowdown.attempt),
            in_ms("grown_phase_ms", None if phase is None else grown_s),
            in_ms("core_wait_before_ms", slowdown.core_wait_s and slowdown.core_wait_s[0]),
            in_ms("core_wait_after_ms", slowdown.core_wait_s and slowdown.core_wait_s[1]),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def _began(slowdown: Slowdown) -> str:
    if slowdown.attempt is None:
        return ""
    return f", with which attempt {slowdown.attempt} began,"


def _action(slowdown: Slowdown, core_wait: tuple[float, float] | None) -> str:
    if core_wait is not None:
        return (
            "Since then other programs, or more threads and workers of this job, take the CPU "
            "cores: keep other jobs off them, or train where there are more."
        )
    if slowdown.attempt is not None:
        return (
            f"Look at what is different in attempt {slowdown.attempt} from the one before: its "
            "machines, what else runs on them, settings, or what is still to be loaded again."
        )
    return (
        f"Look at what changed at step {count(slowdown.onset_step)}: longer sequences, a "
        "schedule, other jobs on the machine, hotter hardware, memory that filled up."
    )


def _grown_most(facts: Facts, onset_step: int) -> tuple[Phase | None, float]:
    """Returns the phase that holds most of the slowdown; `None` where no single one does."""
    grown = {} if facts.step_table is None else growth_by_phase(facts.step_table, onset_step)
    if not grown or facts.slowdown is None:
        return None, 0.0
    phase = max(grown, key=lambda phase: grown[phase])
    more_s = facts.slowdown.after_s - facts.slowdown.before_s
    return (phase, grown[phase]) if grown[phase] >= MIN_PHASE_SHARE * more_s else (None, 0.0)


def _grown_core_wait(slowdown: Slowdown) -> tuple[float, float] | None:
    """Returns the wait for a core before and afterwards; `None` unless it grew by most of it."""
    if slowdown.core_wait_s is None:
        return None
    before_s, after_s = slowdown.core_wait_s
    more_s = slowdown.after_s - slowdown.before_s
    return slowdown.core_wait_s if after_s - before_s >= MIN_CORE_WAIT_SHARE * more_s else None


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    role=RuleRole.REMARK,
    where=Where.ANYWHERE,
    turn=Turn.CHANGE,
    what_if=Remedy("had it stayed as fast as before", lost),
    doc=Doc(
        "info, warn",
        "from some step on, steps take longer",
        __doc__,
        symptoms=(Symptom.SLOWER_LATER,),
    ),
)
