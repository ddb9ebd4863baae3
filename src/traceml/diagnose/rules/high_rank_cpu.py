"""High CPU of a rank: a training process and its workers use nearly all cores there are for it.

Context, as the machine's own CPU is. Silent where the number of cores is not known.
"""

from __future__ import annotations

from traceml.diagnose.rule import Rule
from traceml.facts.facts import Facts
from traceml.facts.sensors import ProcessFacts
from traceml.model.evidence import Evidence, as_number
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import percent

KIND = Kind.HIGH_CPU

BUSY_SHARE = 0.80  # of a rank's part of the cores


def check(facts: Facts) -> Finding | None:
    """Fires when the worst rank has few cores to spare."""
    used = {process.rank: _cores(process) for process in facts.processes}
    known = {rank: cores for rank, cores in used.items() if cores is not None}
    if facts.host.cores is None or not known:
        return None
    worst = max(known, key=lambda rank: (known[rank], -rank))
    fair_cores = facts.host.cores / len(facts.processes)
    busy = known[worst] / fair_cores
    if busy < BUSY_SHARE:
        return None
    return Finding(
        kind=KIND,
        section=Section.PROCESS,
        severity=Severity.INFO,
        claim=(
            f"Rank {worst} and its workers kept {known[worst]:.1f} cores busy, "
            f"{percent(busy)} of the {fair_cores:.3g} that each rank has."
        ),
        action=(
            "Nothing by itself; further workers would take the cores from the training process."
        ),
        share=busy,
        ranks=tuple(rank for rank in known if known[rank] >= BUSY_SHARE * fair_cores),
        evidence=Evidence(
            as_number("cores_used", known[worst]),
            as_number("cores_per_rank", fair_cores),
            as_number("worst_rank", worst),
        ),
    )


def _cores(process: ProcessFacts) -> float | None:
    own = process.cpu_cores.mean
    return None if own is None else own + (process.workers_cpu_cores.mean or 0.0)


RULE = Rule(kind=KIND, section=Section.PROCESS, check=check, asks_each_node=True)
