"""High RAM: the memory of the machine, or of the job's control group, is mostly in use.

*Meaning.* The memory of the machine, or of the job's control group, is mostly in use, whoever
fills it.

*Evidence.* `ram_share`, `ram_used_bytes`, `ram_total_bytes`, `run_bytes`.

*Thresholds.* 80 % at the worst moment warns, 97 % is critical: the kernel kills next.

*What to do.* Free what is not needed, or look at what else runs there; the claim says how much is
the run's own.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_share, in_bytes
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory, percent

KIND = Kind.HIGH_RAM

WARN_SHARE = 0.80
CRITICAL_SHARE = 0.97  # what the kernel does next ends a process


def check(facts: Facts) -> Finding | None:
    """Fires when little was left at the worst moment."""
    full, used = facts.host.ram_share.peak, facts.host.ram_bytes.peak
    if full is None or used is None or full < WARN_SHARE:
        return None
    ours = sum(
        (process.rss_bytes.peak or 0.0) + (process.workers_rss_bytes.peak or 0.0)
        for process in facts.processes
    )
    total = facts.host.ram_total_bytes
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.CRITICAL if full >= CRITICAL_SHARE else Severity.WARNING,
        claim=(
            f"The host's memory was up to {percent(full)} full ({memory(used)} of "
            f"{memory(total)}); this run's processes held {memory(ours)}."
        ),
        action=(
            "Free what is not needed, or ask for more memory, before the kernel kills a process."
            if 2 * ours >= used
            else "Look at what else runs on the machine: most of it is not this run's."
        ),
        share=full,
        evidence=Evidence(
            as_share("ram_share", full),
            in_bytes("ram_used_bytes", used),
            in_bytes("ram_total_bytes", total),
            in_bytes("run_bytes", ours),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    doc=Doc(
        "warn, crit", "the host's memory is mostly in use", __doc__, symptoms=(Symptom.MEMORY,)
    ),
)
