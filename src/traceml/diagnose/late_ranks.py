"""Judges ranks that are late: whether it matters, what makes them late, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

from traceml.diagnose.nodes import late_nodes, node_evidence, node_words
from traceml.diagnose.rule import GPU_IDLE, CodeScope, Doc, Remedy, Rule, Turn, Where, lost
from traceml.diagnose.thresholds import Threshold, severity_of
from traceml.facts.facts import Facts
from traceml.facts.job import Job
from traceml.facts.stragglers import Against, Straggler, excess_share, lost_s
from traceml.model.evidence import Evidence, Piece, as_number, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity, StepSpan
from traceml.model.parallel_place import common_place
from traceml.model.phase import COMPUTE, Phase
from traceml.model.quantities import count, duration

WARN = Threshold(0.10, 0.001)  # of a typical step; ranks of a healthy job differ by less
CRITICAL = Threshold(0.20, 0.003)  # a fifth of the step, and enough to see in a progress bar
WARN_UNSCHEDULED = Threshold(0.15, 0.0015)  # … by more where nobody can say who had no core
SAME_RANK = 0.75
"""Of the run's blocks of steps: a rank that is late in fewer was late by chance."""
COVERS = 0.80
"""Of the excess: a phase that holds less is not the only cause."""
EVENLY = 0.50
"""Of the slowest rank's excess: ranks with at least this much are late together."""
CHANCE = 0.01
"""That a rank is named because of noise where all ranks are equal."""
CRITICAL_CHANCE = 0.0001
"""The same for a critical finding, and where the waiting is inferred."""
MORE_WORK = 0.50
"""Of the others' CPU time: a shared cache makes equal ranks differ by up to a third."""
ALWAYS_LAST = 0.95
"""Of the steps: no rank among equals is the slowest so often by chance …"""
MIN_STEPS_LAST = 8
"""… in at least this many steps."""
TOLD = 0.25
"""Of the excess: a smaller part of it is not worth mentioning."""
MAX_NAMED = 4

CAUSES: Mapping[Kind, tuple[Phase, ...]] = {
    Kind.INPUT_STRAGGLER: (Phase.INPUT,),
    Kind.H2D_STRAGGLER: (Phase.H2D,),
    Kind.COMPUTE_STRAGGLER: COMPUTE,
    Kind.WAIT_STRAGGLER: (Phase.RESIDUAL,),
}
"""The phases of each straggler kind; an excess that no single one explains is a `STRAGGLER`."""


@dataclass(frozen=True, slots=True)
class Late:
    """The ranks that one cause makes late."""

    worst: Straggler
    ranks: tuple[int, ...]
    phase: Phase | None
    names: str
    """In words: `rank 1`, `ranks 2 and 3`, `all 8 ranks of node-b`."""
    places: str
    """Where in the device mesh all of them stand, in words: `dp 1, tp 0`; empty where that is not
    known, or they share no coordinate."""
    other: int | None
    """The rank they are compared with if there is only one; else `None`: the typical rank."""
    lost_s: float
    """What the job would save per step if they kept up."""

    @property
    def slow_work(self) -> Against:
        """The work that makes the slowest of them late: one phase, or all of its own work."""
        return self.worst.own if self.phase is None else self.worst.phases[self.phase]


def cause_of(late: Straggler) -> tuple[Kind, Phase | None]:
    """Returns what makes a rank late, and the phase that holds most of it."""
    excess = {phase: part.excess_s for phase, part in late.phases.items()}
    needed_s = COVERS * late.own.excess_s
    causes = [
        kind
        for kind, phases in CAUSES.items()
        if sum(excess.get(phase, 0.0) for phase in phases) >= needed_s
    ]
    kind = causes[0] if len(causes) == 1 else Kind.STRAGGLER
    if kind is Kind.WAIT_STRAGGLER and late.unmeasured:
        return Kind.STRAGGLER, None
    among = [phase for phase in CAUSES.get(kind, tuple(excess)) if phase in excess]
    return kind, max(among, key=lambda phase: excess[phase])


def straggler_rule(kind: Kind, next_step: Callable[[Facts, Late], str], doc: Doc) -> Rule:
    """Returns the rule for ranks that one cause makes late; `next_step` says what to do about
    them."""
    return Rule(
        kind=kind,
        section=Section.STEP_TIME,
        check=lambda facts: find(facts, kind, next_step),
        doc=doc,
        explains=(*GPU_IDLE, Kind.UNEVEN_GPU_UTILIZATION),
        where=Where.FOR_A_RANK,
        turn=Turn.LATE_RANK,
        what_if=Remedy("if {ranks} kept up with the others", lost),
        measure=_excess_share,
        code=CodeScope.LATE_PHASE,
    )


def _excess_share(facts: Facts, finding: Finding) -> float | None:
    if facts.job is None:
        return None
    times = {rank.rank.rank: rank.times for rank in facts.ranks}
    by_row = [times[rank] for rank in facts.job.table.ranks]
    return excess_share(facts.job, by_row, finding.ranks)


def find(facts: Facts, kind: Kind, action: Callable[[Facts, Late], str]) -> Finding | None:
    """Returns the finding that some ranks are late for this cause; `None` where none is."""
    late = _late(facts, kind)
    if late is None or facts.job is None:
        return None
    worst, part = late.worst, late.slow_work
    nodes = late_nodes(facts, late.ranks)
    return Finding(
        kind=kind,
        section=Section.STEP_TIME,
        severity=_severity(facts, worst) or Severity.WARNING,
        claim=f"{_claim(facts.job, late)}{_why(facts, worst, is_alone=len(late.ranks) == 1)}",
        action=f"{node_words(facts, nodes) if nodes else ''}{action(facts, late)}",
        phase=late.phase,
        share=worst.own.excess_s / worst.typical_s,
        skew=part.excess_s / part.others_s if part.others_s > 0 else None,
        ranks=late.ranks,
        nodes=nodes.names if nodes else (),
        lost_s_per_step=late.lost_s,
        steps=None if worst.since_step is None else StepSpan(worst.since_step),
        evidence=Evidence(
            *(node_evidence(facts, nodes) if nodes else ()),
            *_evidence(facts.job, late),
            *_scheduled(facts, worst),
        ),
    )


def _late(facts: Facts, kind: Kind) -> Late | None:
    matter = [late for late in facts.stragglers if _severity(facts, late) is not None]
    if not matter or facts.job is None:
        return None
    min_s = EVENLY * matter[0].own.excess_s
    found = [late for late in matter if late.own.excess_s >= min_s and cause_of(late)[0] is kind]
    if not found:
        return None
    ranks = tuple(sorted(late.rank for late in found))
    table = facts.job.table
    peers = [table.ranks[row] for row in facts.job.peers_of(table.ranks.index(found[0].rank))]
    others = [rank for rank in peers if rank not in ranks]
    return Late(
        worst=found[0],
        ranks=ranks,
        phase=cause_of(found[0])[1],
        names=names_of(facts, ranks),
        places=common_place([rank.place for rank in facts.ranks if rank.rank.rank in ranks]),
        other=others[0] if len(peers) == 2 and len(ranks) == 1 else None,
        lost_s=lost_s(facts.job, ranks),
    )


def held_up(facts: Facts) -> tuple[Straggler, ...]:
    """Returns the ranks that are late only because they waited for a CPU core."""
    return tuple(
        late
        for late in facts.stragglers
        if _core_wait_s(facts, late) >= EVENLY * late.own.excess_s
        and _severity(facts, late) is None
        and _severity_of(facts, late, late.own.excess_s) is not None
    )


def _severity(facts: Facts, late: Straggler) -> Severity | None:
    """Returns how much a late rank matters; `None` where it does not, or may be chance.

    Time that it waited for a core is not counted: something else ran there.
    """
    return _severity_of(facts, late, late.own.excess_s - _core_wait_s(facts, late))


def _core_wait_s(facts: Facts, late: Straggler) -> float:
    """Returns how much longer a late rank waited for a core, on the host's clock; 0 where not
    known."""
    if facts.clock != "cpu" or late.core_wait is None:
        return 0.0
    return min(max(0.0, late.core_wait.excess_s), late.own.excess_s)


def _severity_of(facts: Facts, late: Straggler, excess_s: float) -> Severity | None:
    job = facts.job
    if job is None or late.typical_s <= 0:
        return None
    if late.late_blocks is not None and late.late_blocks < SAME_RANK:
        return None
    sure = late.standard_errors >= _errors_of_chance(CRITICAL_CHANCE, len(job.table.ranks))
    likely = late.standard_errors >= _errors_of_chance(CHANCE, len(job.table.ranks))
    likely = likely or _computes_more(facts, late) or _is_always_last(facts, late)
    if not (sure if job.wait_is_hidden else likely):
        return None
    # Ranks that go their own ways hold up nobody.
    critical = (CRITICAL,) if sure and job.waits else ()
    unscheduled = facts.clock == "cpu" and late.core_wait is None
    warn = WARN_UNSCHEDULED if unscheduled else WARN
    return severity_of(excess_s, late.typical_s, warn, critical)


def _computes_more(facts: Facts, late: Straggler) -> bool:
    """Returns whether a rank used so much more CPU time that noise cannot be the reason.

    Where cores are short, step times vary by more than a rank's extra work, but its CPU time hardly
    does.
    """
    if facts.clock != "cpu" or late.cpu is None:
        return False
    return late.cpu.excess_s >= MORE_WORK * late.cpu.others_s


def _is_always_last(facts: Facts, late: Straggler) -> bool:
    """Returns whether a rank was the slowest in nearly every step, by more than a step of the
    others.

    Noise affects ranks in turns, however large it is; a few uneven steps do not show that.
    """
    is_last = late.slowest_share is not None and late.slowest_share >= ALWAYS_LAST
    enough = facts.window.steps_analyzed >= MIN_STEPS_LAST
    return is_last and enough and late.own.excess_s >= late.typical_s


def _errors_of_chance(chance: float, ranks: int) -> float:
    """Returns how many standard errors the slowest of so many equal ranks exceeds with this
    probability."""
    return NormalDist().inv_cdf(1 - chance / ranks)


def names_of(facts: Facts, ranks: tuple[int, ...]) -> str:
    """Returns ranks in words, by their machines where those say it better."""
    nodes = late_nodes(facts, ranks)
    return named(ranks) if nodes is None else nodes.words


def named(ranks: tuple[int, ...]) -> str:
    """Returns ranks in words: `rank 1`, `ranks 2 and 3`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MAX_NAMED:
        shown = ", ".join(str(rank) for rank in ranks[:MAX_NAMED])
        return f"{count(len(ranks), 'rank')} ({shown}, …)"
    return f"ranks {', '.join(str(rank) for rank in ranks[:-1])} and {ranks[-1]}"


def _claim(job: Job, late: Late) -> str:
    worst, one = late.worst, len(late.ranks) == 1
    whom = "a typical rank" if late.other is None else f"rank {late.other}"
    if job.peers and late.other is None:
        whom = "a typical rank of the same work"
    place = f" ({late.places})" if late.places else ""
    since = "" if worst.since_step is None else f", all since step {count(worst.since_step)}"
    own = f"{duration(worst.own.rank_s)} of own work against {duration(worst.own.others_s)}"
    claim = (
        f"{late.names[0].upper()}{late.names[1:]}{place} {'takes' if one else 'take up to'} "
        f"{duration(worst.own.excess_s)} longer per step than {whom} "
        f"({own}{since}): {_where(late)}."
    )
    if not job.waits:
        return f"{claim} The ranks do not wait for each other."
    is_pair = late.other is not None and len(job.table.ranks) == 2
    who = f"Rank {late.other} waits" if is_pair else "The others wait"
    waiting = f"{who} for {'it' if one else 'them'}, {duration(late.lost_s)} per step"
    if job.wait_is_hidden:
        waiting += (
            "; communication was not measured, so this is inferred from the work outside backward"
        )
    return f"{claim} {waiting}."


_WORDS = {
    Phase.INPUT: "waiting for data",
    Phase.H2D: "copying to the device",
    Phase.RESIDUAL: "the rest of the step, outside data loading, copies and compute,",
}
_INSIDE = {
    "gc_s": "garbage collection",
    "logging_s": "logging",
    "compile_s": "compiling",
}


def inside_rest(late: Late) -> tuple[str, str, Against] | None:
    """Returns the host activity that is most of the excess in the residual: field, words and
    times."""
    for name, part in late.worst.inside_rest.items():
        if part.excess_s >= COVERS * late.slow_work.excess_s:
            return name, _INSIDE[name], part
    return None


def _where(late: Late) -> str:
    phase, part = late.phase, late.slow_work
    if phase is None:
        return "no measured phase accounts for it"
    words = _WORDS.get(phase, phase.value)
    against = f"{words} takes {duration(part.rank_s)} against {duration(part.others_s)}"
    if phase is Phase.RESIDUAL and (inside := inside_rest(late)) is not None:
        return f"{against}, most of it {inside[1]}"
    if cause_of(late.worst)[0] is Kind.STRAGGLER:
        return f"several phases take longer; in the largest, {against}"
    return against


def _why(facts: Facts, late: Straggler, is_alone: bool) -> str:
    """Returns a sentence on CPU time or core wait that explains the excess; empty where neither
    does."""
    if facts.clock != "cpu" or late.cpu is None:
        return ""
    excess_s, waited_s = late.own.excess_s, _core_wait_s(facts, late)
    worked_s = min(max(0.0, late.cpu.excess_s), excess_s - waited_s)
    blocked_s = excess_s - waited_s - worked_s
    reasons = [
        (worked_s, f"computes {duration(worked_s)} longer"),
        (
            blocked_s,
            f"is blocked {duration(blocked_s)} longer (asleep, or waiting for a disk, a lock or "
            "another process)",
        ),
        (waited_s, f"waits {duration(waited_s)} longer for a CPU core"),
    ]
    told = [words for part_s, words in reasons if part_s >= TOLD * excess_s]
    who = "Its training thread" if is_alone else f"The training thread of rank {late.rank}"
    return f" {who} {' and '.join(told)} per step." if told else ""


def _scheduled(facts: Facts, late: Straggler) -> tuple[Piece, ...]:
    if facts.clock != "cpu" or late.cpu is None or late.core_wait is None:
        return ()
    return (
        in_ms("cpu_excess_ms", late.cpu.excess_s),
        in_ms("core_wait_excess_ms", late.core_wait.excess_s),
    )


def _evidence(job: Job, late: Late) -> tuple[Piece, ...]:
    worst, part = late.worst, late.slow_work
    certainty = (
        "not measured" if not job.waits else "inferred" if job.wait_is_hidden else "measured"
    )
    return (
        as_number("rank", worst.rank),
        in_ms("worst_ms", part.rank_s),
        in_ms("median_ms", part.others_s),
        as_share("skew", part.excess_s / part.others_s if part.others_s > 0 else None),
        as_number("score", worst.own.excess_s / worst.typical_s),
        in_ms("excess_ms", worst.own.excess_s),
        in_ms("own_worst_ms", worst.own.rank_s),
        in_ms("own_median_ms", worst.own.others_s),
        in_ms("typical_step_ms", worst.typical_s),
        *(in_ms(f"{phase.value}_excess_ms", a.excess_s) for phase, a in worst.phases.items()),
        in_ms("lost_ms", late.lost_s),
        as_share("slowest_share", worst.slowest_share),
        as_number("since_step", worst.since_step),
        as_words("waiting", certainty),
        as_words("diagnosis_clock", job.table.clock),
    )
