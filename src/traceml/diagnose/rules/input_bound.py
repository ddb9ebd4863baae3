"""Input bound: the step waits for data.

Stays silent when input wait was not measured: a guessed zero would be a lie.
"""

from __future__ import annotations

import math

from traceml.facts.facts import Facts, phase_s, share
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.quantities import count, duration, percent

WARN_SHARE = 0.10  # below this, faster input would not be noticed
CRITICAL_SHARE = 0.20
NOTICEABLE_S = 0.001  # a shorter wait is what fetching costs at all; only its share can matter
BUSY_WORKER = 0.7  # of a core: the worker computes rather than waits for storage
MOST_WORKERS = 32  # asking for more than a node's share of cores helps nobody


def check(facts: Facts) -> Finding | None:
    """Fires when faster input would shorten the step noticeably."""
    wait_s, wait_share = facts.typical(Phase.INPUT), facts.typical_share(Phase.INPUT)
    if wait_s is None or wait_share is None or wait_share < WARN_SHARE:
        return None
    if wait_s < NOTICEABLE_S and wait_share < CRITICAL_SHARE:
        return None
    step_s = facts.mean.step_s or 0.0
    return Finding(
        kind=Kind.INPUT_BOUND,
        section=Section.STEP_TIME,
        severity=Severity.CRITICAL if wait_share >= CRITICAL_SHARE else Severity.WARNING,
        claim=(
            f"Waiting for data takes {percent(wait_share)} of a typical step "
            f"({duration(wait_s)} of {duration(step_s)})."
        ),
        action=_next_step(facts, wait_s),
        phase=Phase.INPUT,
        share=wait_share,
        ranks=tuple(
            rank.rank.rank
            for rank in facts.ranks_used
            if (share(phase_s(rank.times, Phase.INPUT), rank.times.step_s) or 0.0) >= WARN_SHARE
        ),
        lost_s_per_step=wait_s,
        evidence={
            "input_bound_share": wait_share,
            "input_wait_ms": wait_s * 1e3,
            "step_time_ms": step_s * 1e3,
            "traced_step_time_ms": step_s * 1e3 - wait_s * 1e3,
            "diagnosis_clock": facts.clock,
        },
    )


def _next_step(facts: Facts, wait_s: float) -> str:
    """What to try first, from how the batches were made and how long the rest of a step takes."""
    workers = facts.loader_workers
    body_s = max((facts.mean.step_s or 0.0) - wait_s, 1e-9)
    if workers is None:
        return "Give the DataLoader more workers, make each sample cheaper, or speed up storage."
    if workers == 0:
        # A batch takes the whole wait to make; so many makers keep up with the rest of the step.
        needed = max(1, math.ceil(wait_s / body_s))
        return _ask_for(needed, "Batches are made in the training process itself")
    # Workers that cannot keep up make a batch in as many steps as there are workers.
    needed = max(workers + 1, math.ceil(workers * (wait_s + body_s) / body_s))
    busy = [p.workers_cpu_cores.mean for p in facts.processes if p.workers_cpu_cores.mean]
    if busy and max(busy) / workers < BUSY_WORKER:
        return (
            f"The {count(workers, 'worker')} mostly wait themselves "
            f"({max(busy) / workers:.1f} cores each), for storage or to hand batches over: "
            "speed up reading, send smaller batches, then try a larger prefetch_factor."
        )
    return _ask_for(needed, f"{count(workers, 'worker')} cannot keep up")


def _ask_for(needed: int, reason: str) -> str:
    if needed > MOST_WORKERS:
        return f"{reason}: make each sample cheaper first, more workers alone will not hide it."
    return (
        f"{reason}: num_workers={needed} would hide the wait if cores are free; "
        "else make each sample cheaper."
    )
