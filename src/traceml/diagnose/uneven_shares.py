"""Judges ranks that get more to work on than their peers: what it costs, and who has the most."""

from __future__ import annotations

from collections.abc import Callable

from traceml.diagnose.late_ranks import named
from traceml.diagnose.rule import GPU_IDLE, Doc, Remedy, Rule, Turn, Where, lost
from traceml.diagnose.thresholds import Threshold, severity_of
from traceml.facts.facts import Facts
from traceml.facts.uneven_work import UnevenWork
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_ms
from traceml.model.finding import Finding, Kind, Section
from traceml.model.parallel_place import common_place
from traceml.model.phase import Phase
from traceml.model.quantities import count, duration

WARN = Threshold(0.10, 0.001)  # of the step, as for a late rank
CRITICAL = Threshold(0.20, 0.003)


def uneven_rule(
    kind: Kind, source: str, gets: str, action: Callable[[Facts], str], remedy: str, doc: Doc
) -> Rule:
    """Returns the rule for one way in which work is spread unevenly.

    `source` is what of the records counts the work, `gets` says in words how a rank comes by it
    (`gets … in its batches`), with `{much}` for how much.
    """
    return Rule(
        kind=kind,
        section=Section.STEP_TIME,
        check=lambda facts: _find(facts, kind, source, gets, action),
        explains=(*GPU_IDLE, Kind.UNEVEN_GPU_UTILIZATION),
        where=Where.FOR_A_RANK,
        turn=Turn.LATE_RANK,
        what_if=Remedy(remedy, lost),
        measure=lambda facts, _: _lost_share(facts, source),
        doc=doc,
    )


def _find(
    facts: Facts, kind: Kind, source: str, gets: str, action: Callable[[Facts], str]
) -> Finding | None:
    work, job, step_s = facts.uneven_work, facts.job, facts.mean.step_s
    if work is None or job is None or work.source != source or not step_s or not job.waits:
        return None
    lost_s = job.saved_s(work.extra_s)
    severity = severity_of(lost_s, step_s, WARN, (CRITICAL,))
    if severity is None:
        return None
    rows = work.rows_with_most(job)
    ranks = tuple(job.table.ranks[row] for row in rows)
    return Finding(
        kind=kind,
        section=Section.STEP_TIME,
        severity=severity,
        claim=(
            f"{_who(facts, work, rows, gets)} Its time follows from that (correlation "
            f"{work.correlation:.2f} over ranks and steps), not from a slow machine; the others "
            f"wait {duration(lost_s)} per step for it."
        ),
        action=action(facts),
        phase=_longer_phase(facts),
        share=lost_s / step_s,
        skew=work.largest - 1,
        ranks=ranks,
        lost_s_per_step=lost_s,
        evidence=Evidence(
            as_number("most_elements", max(work.by_rank[row] for row in rows) if rows else None),
            as_number("mean_elements", float(work.by_rank.mean())),
            as_number("largest_to_mean", work.largest),
            as_number("correlation", work.correlation),
            as_share("lost_share", lost_s / step_s),
            in_ms("lost_ms", lost_s),
            in_ms("step_time_ms", step_s),
            as_words("diagnosis_clock", facts.clock),
        ),
    )


def _who(facts: Facts, work: UnevenWork, rows: tuple[int, ...], gets: str) -> str:
    """Returns a sentence that says who gets how much more."""
    job = facts.job
    if job is None or not rows:
        much = f"{work.largest:.1f} times the mean of its peers"
        return f"In each step another rank {gets.format(much=much)}."
    ranks = tuple(job.table.ranks[row] for row in rows)
    most = max(rows, key=lambda row: float(work.by_rank[row]))
    others = [row for row in job.peers_of(most) if row not in rows]
    usual = float(work.by_rank[others].mean()) if others else float(work.by_rank.mean())
    place = common_place([rank.place for rank in facts.ranks if rank.rank.rank in ranks])
    beside = f" ({place})" if place else ""
    times = f"{work.by_rank[most] / usual:.1f} times as many" if usual > 0 else "far more"
    much = (
        f"{times} elements per step as its peers ({count(round(float(work.by_rank[most])))} "
        f"against {count(round(usual))})"
    )
    names = named(ranks)
    return f"{names[0].upper()}{names[1:]}{beside} {gets.format(much=much)}."


def _longer_phase(facts: Facts) -> Phase:
    times = facts.mean
    is_backward = (times.backward_s or 0.0) > (times.forward_s or 0.0)
    return Phase.BACKWARD if is_backward else Phase.FORWARD


def _lost_share(facts: Facts, source: str) -> float | None:
    work, job, step_s = facts.uneven_work, facts.job, facts.mean.step_s
    if job is None or not step_s:
        return None
    if work is None or work.source != source:
        return 0.0
    return job.saved_s(work.extra_s) / step_s
