"""Wait heavy: time goes neither into the model's work nor into a wait that was measured as such.

Judged by what is not input wait, copies, communication or compute; the parts of it that have a
measurement of their own are told apart. Stays silent when a part of compute was not measured,
because that part would look like waiting. What passes between steps is judged by the wall time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceml.diagnose import outside_steps
from traceml.diagnose.account import is_largest, unexplained_s
from traceml.diagnose.lines import Line, louder, severity
from traceml.diagnose.rules import gc_pauses, host_sync, logging_heavy, recompiling
from traceml.diagnose.stalls import few_steps_of, stalled
from traceml.diagnose.user_code import rest_parts
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.quantities import duration, percent

KIND = Kind.WAIT_HEAVY

WARN = Line(0.10, 0.001)  # zero_grad, the loss and a progress bar cost less in any Python loop
CRITICAL = Line(0.20, 0.003)  # a fifth of the step, and enough to see in a progress bar
WARN_WITHOUT_FETCHES = CRITICAL  # … and a loop without a DataLoader makes its batches besides
MAIN_PART = 0.30  # of the rest: a smaller part is not the answer, and what is unknown may be

Known = tuple[str, float, str]
"""A part of the rest in words, its seconds per step, and what to do about it."""
NOBODY: Known = ("", 0.0, "")


def check(facts: Facts) -> Finding | None:
    """Fires when a noticeable part of the time is neither work nor a measured wait."""
    inside, outside = _inside(facts), outside_steps.finding_of(facts, KIND)
    if inside is None or outside is None:
        return inside or outside
    more, less = sorted((inside, outside), key=lambda one: -(one.lost_s_per_step or 0.0))
    return replace(more, claim=f"{more.claim} Besides: {less.claim}")


def _inside(facts: Facts) -> Finding | None:
    """What is unexplained inside the steps."""
    times = facts.mean
    rest_s = unexplained_s(times)
    if rest_s is None or not times.step_s:
        return None
    measured = _measured(facts)
    measured_s = min(sum(part_s for _, part_s, _ in measured), rest_s)
    known = [*measured, *_regions(facts, rest_s)]
    found = _severity(facts, rest_s, max(measured_s, _main_part(known, rest_s)[1]))
    if found is None:
        return None
    main = _main_part([*known, *rest_parts(facts, rest_s)], rest_s)
    finding = Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=found,
        claim=_claim(facts, rest_s, times.step_s, main, max(measured_s, main[1])),
        action=main[2] or _next_step(facts),
        phase=Phase.RESIDUAL,
        share=rest_s / times.step_s,
        ranks=tuple(
            rank.rank.rank
            for rank in facts.ranks_used
            if (unexplained_s(rank.times) or 0.0) >= WARN.share * (rank.times.step_s or 0.0)
        ),
        lost_s_per_step=rest_s,
        evidence={
            "wait_share": rest_s / times.step_s,
            "rest_ms": rest_s * 1e3,
            "unexplained_ms": (rest_s - max(measured_s, main[1])) * 1e3,
            "residual_ms": (times.residual_with_communication_s or 0.0) * 1e3,
            "wait_ms": None if times.wait_s is None else times.wait_s * 1e3,
            "step_time_ms": times.step_s * 1e3,
            "main_part": main[0] or None,
            "main_part_ms": main[1] * 1e3 if main[0] else None,
            "diagnosis_clock": facts.clock,
        },
    )
    where = f"in {main[0]}" if main[0] else "outside data, copies and the model's work"
    return stalled(finding, few_steps_of(facts, Phase.RESIDUAL), WARN, where) or finding


def _severity(facts: Facts, rest_s: float, known_s: float) -> Severity | None:
    """A script without a DataLoader may make its batches here, which is work: that alone only
    warns, and later; what is known to be something else does not have that excuse."""
    step_s, largest = facts.mean.step_s or 0.0, is_largest(facts, Phase.RESIDUAL)
    if facts.mean.input_s is not None:
        return severity(rest_s, step_s, WARN, (CRITICAL,), largest)
    found = severity(rest_s, step_s, WARN_WITHOUT_FETCHES, (), largest)
    known = severity(known_s, step_s, WARN, (CRITICAL,))
    return louder(found, known)


def _main_part(known: Sequence[Known], rest_s: float) -> Known:
    """The largest known part, where it is large enough to be the answer."""
    main = max(known, key=lambda part: part[1], default=NOBODY)
    return main if main[1] >= MAIN_PART * rest_s else NOBODY


def _measured(facts: Facts) -> list[Known]:
    """The parts of the rest that are measured in every run."""
    parts = (rule.part(facts) for rule in (gc_pauses, logging_heavy, recompiling, host_sync))
    return [
        (part.words, part.spent.waited.in_rest_s, part.action) for part in parts if part is not None
    ]


def _regions(facts: Facts, rest_s: float) -> list[Known]:
    """The named regions that fit into the rest: a longer one holds phases."""
    steps = max(1, facts.window.steps_taken * len(facts.ranks_used))
    return [
        (
            f"the region '{region.name}'",
            region.host_s / steps,
            f"Look into the region '{region.name}' first "
            f"({duration(region.host_s / max(region.calls, 1))} a call): do it less often, or "
            "outside the step.",
        )
        for region in facts.regions
        if region.host_s / steps <= rest_s
    ]


def _claim(facts: Facts, rest_s: float, step_s: float, main: Known, known_s: float) -> str:
    what = (
        "is time in which the GPU was idle or did other work than the model's"
        if facts.clock == "gpu"
        else "is spent outside data loading, copies and the model"
    )
    claim = (
        f"{percent(rest_s / step_s)} of a mean step ({duration(rest_s)} of {duration(step_s)}) "
        f"{what}"
    )
    words, part_s, _ = main
    left = percent(max(0.0, 1 - known_s / rest_s))
    if words:
        claim += f": {words} is {percent(part_s / rest_s)} of it, {left} is unexplained"
    elif facts.mean.input_s is not None:
        claim += f"; {left} of it is unexplained: no measurement covers it"
    if facts.mean.input_s is None:
        claim += "; this includes making batches, since no DataLoader was seen"
    return f"{claim}."


def _next_step(facts: Facts) -> str:
    if facts.clock == "gpu":
        return (
            "Look for what keeps the host from launching work between the phases: .item(), .cpu(), "
            "printing and logging in every step."
        )
    if facts.mean.input_s is None:
        return (
            "If the loop makes its batches from stored data, a DataLoader with workers makes them "
            "ahead; if they come from an environment or a simulation, run several of those side "
            "by side. Else look at metrics and the loss, and name a suspect with "
            "traceml.trace_time."
        )
    if len(facts.ranks_used) > 1:
        return "Look at synchronisation between ranks, then at metrics in every step."
    return (
        "Look at what the loop does besides the model: metrics, the loss, copies, locks; "
        "name a suspect with traceml.trace_time."
    )
