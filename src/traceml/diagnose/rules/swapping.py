"""Swapping: the machine moves memory to and from a disk while the run trains.

*Meaning.* The machine moves memory to and from a disk while the run trains.

*Evidence.* `swap_bytes_per_s`, `swap_used_bytes`, `ram_free_bytes`.

*Thresholds.* 1 MiB a second on average, both ways together; swap that is in use and at rest is
fine.

*What to do.* Fewer workers, a smaller `prefetch_factor`, other jobs elsewhere.

*Silent* where the system does not count it.
"""

from __future__ import annotations

from traceml.diagnose import settings_advice
from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, in_bytes, in_bytes_per_s
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import memory

KIND = Kind.SWAPPING

BYTES_PER_S = 1 << 20  # the kernel puts aside what nobody uses by the kibibyte


def check(facts: Facts) -> Finding | None:
    """Fires when pages went to and fro all the time."""
    moved, used = facts.host.swap_bytes_per_s.mean, facts.host.swap_bytes.peak
    if moved is None or moved < BYTES_PER_S:
        return None
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.WARNING,
        claim=f"The machine swapped {memory(moved)} a second, with {memory(used)} of swap in use.",
        action=f"Free memory ({memory(facts.host.ram_free_bytes)} was left): {_less(facts)}.",
        evidence=Evidence(
            in_bytes_per_s("swap_bytes_per_s", moved),
            in_bytes("swap_used_bytes", used),
            in_bytes("ram_free_bytes", facts.host.ram_free_bytes),
        ),
    )


def _less(facts: Facts) -> str:
    ours = (settings_advice.fewer_workers(facts), settings_advice.less_prefetching(facts))
    return settings_advice.listed((*ours, "less data held in memory", "other jobs elsewhere"), "or")


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    doc=Doc(
        "warn",
        "memory moves to and from a disk",
        __doc__,
        symptoms=(
            Symptom.SLOW_CPU,
            Symptom.STUTTER,
            Symptom.SLOWER_LATER,
        ),
    ),
)
