"""What if: how long a step would take if the cause of a finding were gone.

Computed step by step from the window that the finding was made from: ranks that wait for each other
take as long as the slowest, so what is gone from one rank counts only until the next one is the
slowest. What a finding merely describes, such as compute, has no entry: nothing can be removed.

All savings of one diagnosis together are no more than the step. Each is limited to the lost time
that the account of the step left to its finding; where ranks wait for each other, it may also save
what others wait meanwhile, as far as no finding claims that wait. What is part of another finding
saves a part of what that saves, and is not to be added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from traceml.diagnose.account import held_s, places_of
from traceml.diagnose.catalogue import catalogue
from traceml.diagnose.rule import Remedy, lost
from traceml.diagnose.uneven import named
from traceml.facts.facts import Facts
from traceml.facts.job import Job
from traceml.model.finding import Finding, Kind
from traceml.model.phase import Phase
from traceml.model.quantities import duration

LEAST_SHARE = 0.001  # of the step: a smaller change is no change


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A step as it is, and as it would be without the cause of one finding."""

    finding: Finding
    words: str
    """What would be different."""
    step_s: float
    predicted_s: float

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
        times = "" if self.speedup is None else f" ({self.speedup:.{self._decimals}f}×)"
        return (
            f"{duration(self.step_s)} → {duration(self.predicted_s)} per step{times} {self.words}"
        )

    @property
    def _decimals(self) -> int:
        return 2 if self.speedup is None or self.speedup < 9.995 else 1


def predict(facts: Facts, findings: Iterable[Finding]) -> tuple[WhatIf, ...]:
    """A prediction for every finding whose cause could be gone, in their order."""
    findings = list(findings)
    budget = _Budget({None: _unclaimed_wait_s(facts, findings)})
    # What is part of another comes after it, what shortens the wall time after the step.
    in_turn = sorted(findings, key=lambda one: (_depth(one, findings), _is_between(one)))
    found = {id(finding): _predict(facts, finding, budget) for finding in in_turn}
    return tuple(what_if for one in findings if (what_if := found[id(one)]) is not None)


def _depth(finding: Finding, findings: Sequence[Finding]) -> int:
    """Of how many findings this one is a part, directly or as a part of a part."""
    leaders = {one.kind: one.part_of for one in findings}
    depth, kind = 0, finding.part_of
    while kind is not None and depth < len(findings):
        depth, kind = depth + 1, leaders.get(kind)
    return depth


def _unclaimed_wait_s(facts: Facts, findings: Iterable[Finding]) -> float:
    """What a mean rank waits for other ranks and no finding claims."""
    job = facts.job
    if job is None or not job.waits or len(job.parts.ranks) < 2:
        return 0.0
    place = Phase.BACKWARD if job.wait_is_hidden else Phase.COMMUNICATION
    claimed_s = sum(
        finding.lost_s_per_step or 0.0
        for finding in findings
        if finding.part_of is None and place in places_of(finding)
    )
    return max(0.0, held_s(facts.mean)[place] - claimed_s)


@dataclass(slots=True)
class _Budget:
    """What the predictions of one diagnosis may still save."""

    wait_s: dict[Kind | None, float]
    """Waits for other ranks that no prediction has counted yet: under `None` those that no finding
    claims, under a kind those that its own prediction counted and its parts may share."""
    saved_s: float = 0.0
    """By all so far that are no part of another."""
    left_s: dict[Kind, float] = field(default_factory=dict)
    """By finding: what of its saving nothing that is part of it has taken yet."""

    def take(self, finding: Finding, wanted_s: float, step_s: float) -> float:
        """As much of a saving as the finding lost and there is left."""
        leader = finding.part_of if finding.part_of in self.left_s else None
        left_s = step_s - self.saved_s if leader is None else self.left_s[leader]
        lost_s = wanted_s if finding.lost_s_per_step is None else finding.lost_s_per_step
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
    saved_s = budget.take(finding, saved_s, step_s)
    if saved_s < LEAST_SHARE * step_s:
        return None
    words = remedy.words.format(ranks=named(finding.ranks) if finding.ranks else "every rank")
    return WhatIf(finding, words, step_s, max(0.0, step_s - saved_s))


def _is_between(finding: Finding) -> bool:
    remedy = _remedy(finding)
    return remedy is not None and remedy.between


def _remedy(finding: Finding) -> Remedy | None:
    return catalogue().of(finding.kind).remedy_of(finding)


def without_phase(phase: Phase) -> Callable[[Job, Finding], float]:
    """Saves the phase, gone from every rank."""
    return lambda job, _: job.saved_s(job.parts.phase(phase))


def without_host_time(name: str) -> Callable[[Job, Finding], float | None]:
    """Saves the host's time; on the GPU's clock only what the step had to wait for it."""
    return lambda job, finding: (
        job.saved_s(job.parts.in_rest(name)) if job.parts.clock == "cpu" else lost(job, finding)
    )
