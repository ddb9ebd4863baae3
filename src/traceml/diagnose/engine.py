"""Asks every rule, and puts what they found in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from traceml.diagnose.account import settle
from traceml.diagnose.explain import explain, has_verdict
from traceml.diagnose.rules import (
    balanced,
    bandwidth_bound,
    checkpoint_heavy,
    comm_bound,
    compute_bound,
    compute_straggler,
    cpu_starved,
    evaluation_heavy,
    exception,
    fragmentation,
    gc_pauses,
    gpu_memory_imbalance,
    gpu_throttled,
    gpu_utilization,
    h2d_bound,
    h2d_straggler,
    hang,
    high_cpu,
    high_gpu_memory,
    high_gpu_power,
    high_gpu_temperature,
    high_pressure,
    high_ram,
    high_rank_cpu,
    host_bound,
    host_sync,
    imbalance,
    incomplete_data,
    input_bound,
    input_straggler,
    killed,
    logging_heavy,
    loss_spike,
    memory_balanced,
    memory_creep,
    near_gpu_limit,
    no_data,
    no_gpu,
    no_memory_data,
    no_process_data,
    no_stability_data,
    no_system_data,
    non_finite_loss,
    out_of_memory,
    process_normal,
    recompiling,
    slowdown,
    small_kernels,
    stable,
    straggler,
    swapping,
    system_normal,
    tensor_cores_idle,
    uneven_gpu_utilization,
    wait_heavy,
    wait_straggler,
    warmup,
)
from traceml.diagnose.stalls import with_stalls
from traceml.diagnose.user_code import name_lines
from traceml.facts.facts import Facts
from traceml.model.finding import Finding, Kind, Section, Severity, consequence

Rule = Callable[[Facts], "Finding | None"]

RULES: tuple[Rule, ...] = (
    bandwidth_bound.check,
    checkpoint_heavy.check,
    comm_bound.check,
    compute_bound.check,
    compute_straggler.check,
    cpu_starved.check,
    evaluation_heavy.check,
    exception.check,
    fragmentation.check,
    gc_pauses.check,
    gpu_memory_imbalance.check,
    gpu_throttled.check,
    gpu_utilization.check,
    h2d_bound.check,
    h2d_straggler.check,
    hang.check,
    high_cpu.check,
    high_gpu_memory.check,
    high_gpu_power.check,
    high_gpu_temperature.check,
    high_pressure.check,
    high_ram.check,
    high_rank_cpu.check,
    host_bound.check,
    host_sync.check,
    imbalance.check,
    incomplete_data.check,
    input_bound.check,
    input_straggler.check,
    killed.check,
    logging_heavy.check,
    loss_spike.check,
    memory_creep.check,
    near_gpu_limit.check,
    no_data.check,
    no_gpu.check,
    no_memory_data.check,
    no_process_data.check,
    no_stability_data.check,
    no_system_data.check,
    non_finite_loss.check,
    out_of_memory.check,
    recompiling.check,
    slowdown.check,
    small_kernels.check,
    straggler.check,
    swapping.check,
    tensor_cores_idle.check,
    uneven_gpu_utilization.check,
    wait_heavy.check,
    wait_straggler.check,
    warmup.check,
)

CALM: Mapping[Section, Callable[[Facts], Finding]] = {
    Section.STEP_TIME: balanced.check,
    Section.STEP_MEMORY: memory_balanced.check,
    Section.SYSTEM: system_normal.check,
    Section.PROCESS: process_normal.check,
    Section.STABILITY: stable.check,
}
"""What to say of a section in which no rule found more than a remark."""


LEADERS = (Section.STABILITY, Section.STEP_TIME, Section.STEP_MEMORY)
"""The sections whose findings may be the one to read first, in this order among equals."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of a run, and the one to read first."""

    primary: Finding
    sections: Mapping[Section, tuple[Finding, ...]]
    """At least one finding each, the worst first."""


def diagnose(facts: Facts) -> Diagnosis:
    """What is to be said about a run, section by section."""
    found = [finding for rule in RULES if (finding := rule(facts)) is not None]
    calm = [check(facts) for section, check in CALM.items() if not has_verdict(section, found)]
    said = [name_lines(facts, with_stalls(finding, facts)) for finding in (*found, *calm)]
    told = explain(settle(facts, said))
    sections = {section: tuple(f for f in told if f.section is section) for section in CALM}
    return Diagnosis(primary(sections), sections)


def primary(sections: Mapping[Section, tuple[Finding, ...]]) -> Finding:
    """The finding to read first: what ended the run, what will end it, what slows it, a remark.

    Of equals the more severe leads, then stability, then the step, then memory. What the machine
    and the processes show is context, and never leads. Where nothing is more than a remark, the
    step's is told; where no step was measured, what ended the run before.
    """
    found = [finding for section in LEADERS for finding in sections[section]]
    first = min(found, key=reading_order)
    if first.severity is not Severity.INFO:
        return first
    ended = next((finding for finding in found if finding.kind is Kind.KILLED), None)
    step = sections[Section.STEP_TIME][0]
    return ended if ended is not None and step.kind is Kind.NO_DATA else step


def reading_order(finding: Finding) -> tuple[int, int]:
    """By consequence, and severity among equals."""
    return consequence(finding.kind, finding.severity), -finding.severity.weight
