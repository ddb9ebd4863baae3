"""High CPU: the machine's cores are mostly busy.

*Meaning.* System: the machine's cores are mostly busy. Process: a rank and its workers use nearly
all the cores that there are for it. Context: a busy CPU is no fault; whether training waits for
it is said by CPU_STARVED.

*Evidence.* System: `cpu_share`, `cpu_peak_share`, `cores`, `run_cores`. Process: `cores_used`,
`cores_per_rank`, `worst_rank`.

*Thresholds.* 80 % on average, of all cores or of a rank's equal part of those the job may use.

*What to do.* Where others take a core or more, ask whose they are; else nothing.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, as_share
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import percent

KIND = Kind.HIGH_CPU

BUSY_SHARE = 0.80
OTHERS_CORES = 1.0  # kept busy by somebody else: less is the system's own work


def check(facts: Facts) -> Finding | None:
    """Fires when the cores were busy most of the time."""
    busy = facts.host.cpu_share.mean
    if busy is None or busy < BUSY_SHARE:
        return None
    ours = _cores_of_the_run(facts)
    others = None
    if ours is not None and facts.host.cores is not None:
        others = max(0.0, busy * facts.host.cores - ours)
    used = "" if ours is None else f"; this run kept {ours:.1f} cores busy"
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.INFO,
        claim=f"The machine's CPU was {percent(busy)} busy{used}.",
        action=(
            f"Other processes took about {others:.1f} cores: ask whose they are."
            if others is not None and others >= OTHERS_CORES
            else "Nothing by itself; more workers or threads than cores would wait for each other."
        ),
        share=busy,
        evidence=Evidence(
            as_share("cpu_share", busy),
            as_share("cpu_peak_share", facts.host.cpu_share.peak),
            as_number("cores", facts.host.cores),
            as_number("run_cores", ours),
        ),
    )


def _cores_of_the_run(facts: Facts) -> float | None:
    own = [process.cpu_cores.mean for process in facts.processes]
    below = [process.workers_cpu_cores.mean for process in facts.processes]
    known = [cores for cores in (*own, *below) if cores is not None]
    return sum(known) if known else None


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    doc=Doc("info", "the cores are mostly busy", __doc__, symptoms=(Symptom.SLOW_CPU,)),
)
