"""What if: how long a step would take without the cause of a finding.

Computed step by step from the same steps as the finding. Ranks that wait for each other take as
long as the slowest, so time removed from one rank counts only until another is the slowest. A
finding that only describes, such as COMPUTE_BOUND, has no prediction. All predictions together save
no more than the step. Each is limited to the time that the account left to its finding. Two kinds
of time may be saved besides, as far as no other finding claims them: where ranks wait for each
other, their waiting; where the host no longer waits for the GPU, the GPU's idle time between its
phases and a part of that in them, because the host then works ahead. A finding that is part of
another saves a part of the same time; the two are not to be added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.host_time import idle_in_rest_s
from traceml.diagnose.late_ranks import names_of
from traceml.diagnose.rule import Remedy, lost
from traceml.diagnose.time_account import held_s, rest_s, stages_of
from traceml.facts.facts import Facts
from traceml.facts.job import HIDDEN_GAPS, Job
from traceml.model.finding import Finding, Kind
from traceml.model.phase import Phase
from traceml.model.quantities import duration

MIN_SHARE = 0.001
"""Of the step: a smaller change is none."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A step as it is, and as it would be without the cause of one finding."""

    finding: Finding
    words: str
    """What would be different."""
    step_s: float
    predicted_s: float
    is_upper_bound: bool = False
    """Whether a step may well become shorter than predicted."""

    @property
    def saved_s(self) -> float:
        """How much shorter a step would be."""
        return self.step_s - self.predicted_s

    @property
    def speedup(self) -> float | None:
        """How many times as fast; `None` where nothing of the step would be left."""
        return self.step_s / self.predicted_s if self.predicted_s > 0 else None

    @property
    def summary(self) -> str:
        """The prediction in words."""
        less, more = (" or less", " or more") if self.is_upper_bound else ("", "")
        times = "" if self.speedup is None else f" ({self.speedup:.{self._decimals}f}×{more})"
        before, after = duration(self.step_s), duration(self.predicted_s)
        return f"{before} → {after}{less} per step{times} {self.words}"

    @property
    def _decimals(self) -> int:
        return 2 if self.speedup is None or self.speedup < 9.995 else 1


def predict(facts: Facts, findings: Iterable[Finding]) -> tuple[WhatIf, ...]:
    """Returns a prediction for every finding whose cause could be removed, in their order."""
    findings = list(findings)
    budget = _Budget({None: _unclaimed_wait_s(facts, findings)}, _unclaimed_idle_s(facts, findings))
    # What is part of another comes after it, what shortens the wall time after the step.
    in_turn = sorted(findings, key=lambda one: (_depth(one, findings), _is_between(one)))
    found = {id(finding): _predict(facts, finding, budget) for finding in in_turn}
    return tuple(what_if for one in findings if (what_if := found[id(one)]) is not None)


def _depth(finding: Finding, findings: Sequence[Finding]) -> int:
    """Returns of how many findings this one is a part, directly or indirectly."""
    leaders = {one.kind: one.part_of for one in findings}
    depth, kind = 0, finding.part_of
    while kind is not None and depth < len(findings):
        depth, kind = depth + 1, leaders.get(kind)
    return depth


def _unclaimed_wait_s(facts: Facts, findings: Iterable[Finding]) -> float:
    """Returns how long a mean rank waits for other ranks without any finding claiming it."""
    job = facts.job
    if job is None or not job.waits or len(job.table.ranks) < 2:
        return 0.0
    stage = Phase.BACKWARD if job.wait_is_hidden else Phase.COMMUNICATION
    return _unclaimed_s(facts, findings, stage)


def _unclaimed_idle_s(facts: Facts, findings: Iterable[Finding]) -> float:
    """Returns for how long the GPU idles, without any finding claiming it, that a host which works
    ahead would hide."""
    if facts.clock != "gpu":
        return 0.0
    unclaimed_s = sum(
        _unclaimed_s(facts, findings, stage) for stage in (Phase.INPUT, Phase.RESIDUAL)
    )
    if facts.gpu_idle is None:
        return unclaimed_s
    worked_s = rest_s(facts.mean) - (idle_in_rest_s(facts) or 0.0)  # which nobody can save
    launching_s = facts.gpu_idle.launching_s or 0.0
    if any(finding.kind is Kind.HOST_BOUND for finding in findings):
        launching_s = 0.0  # that is its time
    return max(0.0, unclaimed_s - worked_s) + HIDDEN_GAPS * launching_s


def _unclaimed_s(facts: Facts, findings: Iterable[Finding], stage: Phase) -> float:
    claimed_s = sum(
        finding.lost_s_per_step or 0.0
        for finding in findings
        if finding.part_of is None and stage in stages_of(finding)
    )
    return max(0.0, held_s(facts.mean)[stage] - claimed_s)


@dataclass(slots=True)
class _Budget:
    """What the predictions of one diagnosis may still save."""

    wait_s: dict[Kind | None, float]
    """Waiting for other ranks that no prediction has counted yet: under `None`, what no finding
    claims; under a kind, what its own prediction counted and its parts may share."""
    idle_s: float
    """The idle time of the GPU that a host which works ahead would hide, that no finding claims and
    none has counted."""
    saved_s: float = 0.0
    """The sum of the predictions so far that are not part of another."""
    left_s: dict[Kind, float] = field(default_factory=dict)
    """By finding: the part of its saving that its own parts have not taken yet."""

    def take(self, finding: Finding, wanted_s: float, step_s: float, frees_host: bool) -> float:
        """Returns as much of a saving as the finding lost and is still available, and takes it."""
        leader = finding.part_of if finding.part_of in self.left_s else None
        left_s = step_s - self.saved_s if leader is None else self.left_s[leader]
        lost_s = wanted_s if finding.lost_s_per_step is None else finding.lost_s_per_step
        if frees_host:
            idle_s = max(0.0, min(wanted_s - lost_s, self.idle_s))
            self.idle_s -= idle_s
            lost_s += idle_s
        saved_s = max(0.0, min(wanted_s, lost_s + self.wait_s[leader], left_s))
        beyond_s = max(0.0, saved_s - lost_s)
        self.wait_s[leader] -= beyond_s
        if leader is None:
            self.saved_s += saved_s
        else:
            self.left_s[leader] -= saved_s
        self.left_s.setdefault(finding.kind, saved_s)
        self.wait_s.setdefault(finding.kind, beyond_s)
        return saved_s


def _predict(facts: Facts, finding: Finding, budget: _Budget) -> WhatIf | None:
    remedy, job = _remedy(finding), facts.job
    if remedy is None or job is None or finding.is_one_off:
        return None
    step_s = facts.mean.wall_s if remedy.between else facts.mean.step_s
    saved_s = remedy.saved_s(job, finding)
    if not step_s or saved_s is None:
        return None
    saved_s = budget.take(finding, saved_s, step_s, remedy.frees_host(job, finding))
    if saved_s < MIN_SHARE * step_s:
        return None
    ranks = names_of(facts, finding.ranks) if finding.ranks else "every rank"
    words = remedy.words.format(ranks=ranks)
    is_upper_bound = remedy.saves_at_least(finding)
    return WhatIf(finding, words, step_s, max(0.0, step_s - saved_s), is_upper_bound)


def _is_between(finding: Finding) -> bool:
    remedy = _remedy(finding)
    return remedy is not None and remedy.between


def _remedy(finding: Finding) -> Remedy | None:
    return all_rules().of(finding.kind).remedy_of(finding)


def without_phase(phase: Phase) -> Callable[[Job, Finding], float]:
    """Returns the saving of a phase that is removed from every rank."""
    return lambda job, _: job.saved_s(job.table.phase(phase))


def evidence_s(finding: Finding, key: str) -> float:
    """Returns a time among the evidence of a finding in seconds; 0 where it was not measured."""
    found = finding.evidence.get(key)
    return 1e-3 * found if isinstance(found, float) else 0.0


def without_host_time(name: str) -> Callable[[Job, Finding], float | None]:
    """Returns the saving of the host's time; on the GPU's clock only what delayed the step."""
    return lambda job, finding: (
        job.saved_s(job.table.in_rest(name)) if job.table.clock == "cpu" else lost(job, finding)
    )
