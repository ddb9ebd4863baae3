"""What the host did besides the model's work, and what of it the step had to wait for."""

from __future__ import annotations

from dataclasses import dataclass

from traceml.diagnose.lines import Line, severity
from traceml.facts.facts import Facts, share
from traceml.facts.pauses import Pauses, pauses
from traceml.facts.times import StepTimes
from traceml.model.finding import Finding, Kind, Section
from traceml.model.phase import Phase
from traceml.model.quantities import count, duration, percent

WARN = Line(0.05, 0.001)  # half of what warns about the whole rest: this part has a sure remedy
CRITICAL = Line(0.20, 0.003)  # a fifth of the step, and enough to see in a progress bar
MOSTLY_DRY = 0.5  # of the watched steps: the GPU waits for the host, whose every delay counts
IDLE_SHARE = 0.05  # of the step: a GPU that stands still for less hides what the host does


@dataclass(frozen=True, slots=True)
class Spent:
    """What the host spent on one thing, as means per step."""

    host_s: float
    lost_s: float
    """What of it the step had to wait for; the same on the host's own clock."""
    pauses: Pauses
    ranks: tuple[int, ...]

    @property
    def steps(self) -> str:
        """In how many steps it happened, in words."""
        return f"{count(self.pauses.steps)} of {count(self.pauses.steps_seen, 'step')}"

    @property
    def longest(self) -> str:
        """The most that one step spent, in words."""
        return duration(self.pauses.longest_s)


@dataclass(frozen=True, slots=True)
class Part:
    """One thing the host did besides the model's work, and what to do about it."""

    words: str
    spent: Spent
    detail: str
    action: str


def unexplained_s(times: StepTimes) -> float | None:
    """What is left of the body after copies, compute and communication."""
    if times.residual_s is None:
        return None
    return times.residual_s - (times.communication_s or 0.0)


def spent_on(facts: Facts, name: str) -> Spent | None:
    """What the host spent on `gc`, `logging`, `compile` or `sync`; `None` where it was nothing."""
    host_s = _spent_s(facts.mean, name)
    if not host_s or not facts.mean.step_s or facts.parts is None:
        return None
    seen = pauses(facts.parts, f"{name}_ns")
    if seen is None:
        return None
    return Spent(
        host_s=host_s,
        lost_s=_lost_s(facts, host_s, seen.late_s),
        pauses=seen,
        ranks=tuple(
            rank.rank.rank
            for rank in facts.ranks_used
            if (share(_spent_s(rank.times, name), rank.times.cpu_step_s) or 0.0) >= WARN.share
        ),
    )


def finding_of(part: Part | None, facts: Facts, kind: Kind, warn: Line = WARN) -> Finding | None:
    """The claim that this part takes a noticeable share of the step, where it does."""
    step_s = facts.mean.step_s
    if part is None or not step_s:
        return None
    spent = part.spent
    found = severity(spent.lost_s, step_s, warn, (CRITICAL,))
    if found is None:
        return None
    return Finding(
        kind=kind,
        section=Section.STEP_TIME,
        severity=found,
        claim=(
            f"{part.words[0].upper()}{part.words[1:]} takes {percent(spent.lost_s / step_s)} of a "
            f"mean step ({duration(spent.lost_s)} of {duration(step_s)}): {part.detail}."
        ),
        action=part.action,
        phase=Phase.RESIDUAL,
        share=spent.lost_s / step_s,
        ranks=spent.ranks,
        lost_s_per_step=spent.lost_s,
        evidence={
            "lost_ms": spent.lost_s * 1e3,
            "host_ms": spent.host_s * 1e3,
            "step_time_ms": step_s * 1e3,
            "steps_with": spent.pauses.steps,
            "steps_seen": spent.pauses.steps_seen,
            "longest_ms": spent.pauses.longest_s * 1e3,
            "diagnosis_clock": facts.clock,
        },
    )


def host_delays_count(facts: Facts) -> bool:
    """Whether a slower host makes a slower step: always, unless a busy GPU hides it."""
    if facts.clock != "gpu" or _is_dry(facts):
        return True
    return _idle_s(facts) >= IDLE_SHARE * (facts.mean.step_s or 0.0)


def _lost_s(facts: Facts, host_s: float, late_s: float) -> float:
    """On the GPU's clock only what the GPU stood still for, or what made single steps late."""
    if facts.clock != "gpu" or _is_dry(facts):
        return host_s
    return max(min(host_s, _idle_s(facts)), late_s)


def _idle_s(facts: Facts) -> float:
    """How long the GPU stood still in a step, be it for data or for anything else."""
    return (facts.mean.input_s or 0.0) + (unexplained_s(facts.mean) or 0.0)


def _is_dry(facts: Facts) -> bool:
    return (facts.queue_dry_share or 0.0) >= MOSTLY_DRY


def _spent_s(times: StepTimes, name: str) -> float | None:
    found: float | None = getattr(times, f"{name}_s")
    return found
