"""What the host did besides the model's work, and how much of it delayed the step.

On the host's clock that is all of it. On the GPU's clock it is the time for which the GPU was idle,
and each idle moment has one cause: `facts.gpu_idle` is the account of them. Records that have no
such account leave the residual and phases in which the GPU waited for the host to these causes:
while the next batch is missing, the cause is the input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from traceml.diagnose.one_off_stalls import stalled
from traceml.diagnose.rule import (
    GPU_IDLE,
    HOST_DELAYS,
    CodeScope,
    Doc,
    Remedy,
    RestPart,
    Rule,
    RuleRole,
    Turn,
    Where,
)
from traceml.diagnose.thresholds import Threshold, severity_of
from traceml.diagnose.time_account import held_s, rest_s, unexplained_s
from traceml.facts.facts import Facts, share
from traceml.facts.few_steps import FewSteps, few_steps
from traceml.facts.pauses import Pauses, pauses
from traceml.facts.times import StepTimes
from traceml.model.evidence import Evidence, as_number, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section
from traceml.model.phase import COMPUTE, Phase
from traceml.model.quantities import count, duration, percent
from traceml.model.record_layout import ROUND_TRIP_NS

WARN = Threshold(0.05, 0.001)  # half of what warns about the whole rest: this has a sure remedy
CRITICAL = Threshold(0.20, 0.003)  # a fifth of the step, and enough to see in a progress bar
MOSTLY_DRY = 0.5
"""Of the watched steps: then the GPU waits for the host, and every delay of the host counts."""
IDLE_SHARE = 0.05
"""Of the step: a GPU that is idle for less hides what the host does."""
MIN_READ_S = 0.00001
"""The host's own part in reading one value that the GPU has ready."""
MANY_SYNCS = 20
"""Per step: not one loss that is read, but a loop that reads values."""

NEGLIGIBLE = 0.001
"""Of a time: a smaller part of it is rounding."""

CAUSES = ("compile", "gc", "logging", "sync")
"""In the order in which they claim idle time: what no queue can hide first, what is inferred
last."""


@dataclass(frozen=True, slots=True)
class Waited:
    """How long the step waited for one activity of the host, as means per step."""

    in_rest_s: float = 0.0
    in_phases_s: float = 0.0
    """Inside forward, backward and optimizer, which are longer for it on the GPU's clock."""

    @property
    def all_s(self) -> float:
        """In the residual and in the phases."""
        return self.in_rest_s + self.in_phases_s


@dataclass(frozen=True, slots=True)
class Spent:
    """The host's time for one activity, as means per step."""

    name: str
    """`gc`, `logging`, `compile` or `sync`."""
    host_s: float
    waited: Waited
    """The part of it that delayed the step; on the host's clock all of it."""
    pauses: Pauses
    ranks: tuple[int, ...]

    @property
    def lost_s(self) -> float:
        """How much shorter the step would be without it."""
        return self.waited.all_s

    @property
    def steps(self) -> str:
        """In how many steps it happened, in words."""
        return f"{count(self.pauses.steps)} of {count(self.pauses.steps_seen, 'step')}"

    @property
    def longest(self) -> str:
        """The longest time of one step, in words."""
        return duration(self.pauses.longest_s)


@dataclass(frozen=True, slots=True)
class HostWork:
    """One activity of the host besides the model's work, and what to do about it."""

    words: str
    spent: Spent
    detail: str
    action: str


def host_cause(
    kind: Kind,
    check: Callable[[Facts], Finding | None],
    part: Callable[[Facts], HostWork | None],
    turn: Turn,
    what_if: Remedy,
    doc: Doc,
    code: CodeScope = CodeScope.NONE,
) -> Rule:
    """Returns the rule for one activity of the host, a cause of steps that a busy host slows
    down."""

    def share_of_step(facts: Facts, _: Finding) -> float | None:
        """Measured also in steps without any of it."""
        found = part(facts)
        return share(0.0 if found is None else found.spent.lost_s, facts.mean.step_s)

    def part_of_rest(facts: Facts) -> RestPart | None:
        found = part(facts)
        if found is None:
            return None
        return RestPart(found.words, found.spent.waited.in_rest_s, found.action)

    return Rule(
        kind=kind,
        section=Section.STEP_TIME,
        check=check,
        doc=doc,
        role=RuleRole.CAUSE,
        explains=(*HOST_DELAYS, *GPU_IDLE),
        where=Where.ON_THE_HOST,
        turn=turn,
        what_if=what_if,
        measure=share_of_step,
        part_of_rest=part_of_rest,
        code=code,
    )


def spent_on(facts: Facts, name: str) -> Spent | None:
    """Returns the host's time for `gc`, `logging`, `compile` or `sync`; `None` where there was
    none."""
    host_s = _spent_s(facts.mean, name)
    if not host_s or not facts.mean.step_s or facts.step_table is None:
        return None
    seen = pauses(facts.step_table, f"{name}_ns")
    if seen is None:
        return None
    return Spent(
        name=name,
        host_s=host_s,
        waited=waited_for(facts)[name],
        pauses=seen,
        ranks=tuple(
            rank.rank.rank
            for rank in facts.ranks_used
            if (share(_spent_s(rank.times, name), rank.times.cpu_step_s) or 0.0) >= WARN.share
        ),
    )


def waited_for(facts: Facts) -> dict[str, Waited]:
    """Returns how long the step waited for each of `CAUSES`; no moment counts twice.

    The residual is distributed first, then the time in the phases.
    """
    idle = facts.gpu_idle
    rest_left_s = rest_s(facts.mean)
    if idle is not None:
        rest_left_s = max(0.0, min(rest_left_s, idle.between_s) - idle.python_s)
    held = held_s(facts.mean)
    phases_left_s = sum(held[phase] for phase in COMPUTE) if facts.clock == "gpu" else 0.0
    found = {}
    for name in CAUSES:
        wanted_s, in_phases = _wanted(facts, name) if idle is None else (idle.by_cause[name], True)
        in_rest_s = min(wanted_s, rest_left_s)
        beyond_s = wanted_s - in_rest_s
        if beyond_s < NEGLIGIBLE * wanted_s:
            beyond_s = 0.0
        in_phases_s = min(beyond_s, phases_left_s) if in_phases else 0.0
        rest_left_s -= in_rest_s
        phases_left_s -= in_phases_s
        found[name] = Waited(in_rest_s, in_phases_s)
    return found


def idle_in_rest_s(facts: Facts) -> float | None:
    """Returns how long the GPU was idle in the residual of a mean step, which also holds work of
    the GPU's that is not the model's; `None` where that is not known."""
    idle = facts.gpu_idle
    if idle is None:
        return None
    caused_s = sum(waited.in_rest_s for waited in waited_for(facts).values())
    return min(rest_s(facts.mean), idle.python_s + caused_s)


def _wanted(facts: Facts, name: str) -> tuple[float, bool]:
    """Returns how long a cause delayed the step, at most, and whether it also counts inside the
    phases."""
    host_s = _spent_s(facts.mean, name)
    if not host_s:
        return 0.0, False
    if name == "sync":
        return _wanted_by_syncs(facts, host_s)
    if facts.clock != "gpu":
        return host_s, False
    if name == "compile" or _is_dry(facts):  # compiling takes longer than any queue lasts
        return host_s, True
    seen = None if facts.step_table is None else pauses(facts.step_table, f"{name}_ns")
    late_s = 0.0 if seen is None else seen.late_s
    return (late_s, True) if late_s > rest_s(facts.mean) else (host_s, False)


def _wanted_by_syncs(facts: Facts, host_s: float) -> tuple[float, bool]:
    """Returns what waiting for the device cost: not the wait itself, but the idle time it causes.

    Without waiting, the host would run ahead, and a step would take as long as the host's own work
    or the GPU's, whichever is longer. A loop that reads many values costs a round trip for each,
    however short the waits.
    """
    times = facts.mean
    if facts.clock != "gpu" or not times.step_s or times.cpu_step_s is None:
        return 0.0, False
    gpu_s = times.step_s - rest_s(times)
    ahead_s = times.step_s - max(times.cpu_step_s - host_s, gpu_s)
    syncs = facts.syncs_per_step or 0.0
    wanted_s = max(0.0, min(ahead_s, host_s), syncs * ROUND_TRIP_NS * 1e-9)
    fits_in_rest = rest_s(times) >= syncs * MIN_READ_S  # so that is where the loop is
    return wanted_s, syncs >= MANY_SYNCS and _is_dry(facts) and not fits_in_rest


def finding_of(
    part: HostWork | None, facts: Facts, kind: Kind, warn: Threshold = WARN
) -> Finding | None:
    """Returns the finding that this activity takes a noticeable share of the step; `None` if it
    does not."""
    step_s = facts.mean.step_s
    if part is None or not step_s:
        return None
    spent = part.spent
    found = severity_of(spent.lost_s, step_s, warn, (CRITICAL,))
    if found is None:
        return None
    finding = Finding(
        kind=kind,
        section=Section.STEP_TIME,
        severity=found,
        claim=(
            f"{part.words[0].upper()}{part.words[1:]} takes {percent(spent.lost_s / step_s)} of a "
            f"mean step ({duration(spent.lost_s)} of {duration(step_s)}): {part.detail}."
        ),
        action=part.action,
        phase=None if spent.waited.in_phases_s else Phase.RESIDUAL,
        share=spent.lost_s / step_s,
        ranks=spent.ranks,
        lost_s_per_step=spent.lost_s,
        evidence=Evidence(
            in_ms("lost_ms", spent.lost_s),
            in_ms("host_ms", spent.host_s),
            in_ms("step_time_ms", step_s),
            as_number("steps_with", spent.pauses.steps),
            as_number("steps_seen", spent.pauses.steps_seen),
            in_ms("longest_ms", spent.pauses.longest_s),
            as_words("diagnosis_clock", facts.clock),
        ),
    )
    return stalled(finding, _few(facts, spent.name), warn, f"in {part.words}") or finding


def _few(facts: Facts, name: str) -> FewSteps | None:
    return (
        None
        if facts.step_table is None
        else few_steps(facts.step_table, facts.step_table.field(f"{name}_ns"))
    )


def host_delays_count(facts: Facts) -> bool:
    """Returns whether a slower host makes the step slower: always, unless a busy GPU hides it."""
    if facts.clock != "gpu" or _is_dry(facts):
        return True
    return _idle_s(facts) >= IDLE_SHARE * (facts.mean.step_s or 0.0)


def _idle_s(facts: Facts) -> float:
    """Returns how long the GPU was idle in a mean step, for whatever reason but launching."""
    if facts.gpu_idle is not None:
        return facts.gpu_idle.besides_launching_s
    return (facts.mean.input_s or 0.0) + (unexplained_s(facts.mean) or 0.0)


def _is_dry(facts: Facts) -> bool:
    return (facts.queue_dry_share or 0.0) >= MOSTLY_DRY


def _spent_s(times: StepTimes, name: str) -> float | None:
    found: float | None = getattr(times, f"{name}_s")
    return found
