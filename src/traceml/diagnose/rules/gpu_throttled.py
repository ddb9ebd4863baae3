"""GPU throttled: heat, power or the hardware hold the GPU's clock down.

*Meaning.* Something held a GPU's clock down.

*Evidence.* NVML's reasons over the samples of the worst GPU: `gpu`, `reason`, `held_back_share`,
`clock_share` (of the highest clock, while that reason held it back), `temperature_c`, `power_w`.

*Thresholds.* Heat, the power brake or a hardware slowdown in 10 % of the samples warns. A
software power cap is how a GPU runs at full load: a remark where the clock is below 95 % of the
highest, and a warning only where it is below 70 % of the highest.

*What to do.* Cooling, power supply, or the power limit, by the reason.

*Silent* where the driver gives no reasons, about clocks that somebody set, and where the run uses
only some of the machine's GPUs.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, RuleRole, Symptom, Where
from traceml.facts.facts import Facts
from traceml.facts.sensors import GpuFacts
from traceml.model.evidence import Evidence, as_number, as_share, as_words, in_celsius, in_watts
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.quantities import percent

KIND = Kind.GPU_THROTTLED

WARN_SHARE = 0.10  # of the samples: a shorter spell costs less than a step's own spread
NEARLY_FULL_CLOCK = 0.95  # of the highest clock: a power cap that leaves more costs next to nothing
LOW_CLOCK = 0.70  # of the highest clock: a power cap at full load leaves more than that
FAULTS = {
    "thermal": "See to the cooling: airflow, dust, the room, a neighbour's heat; nvidia-smi -q -d "
    "TEMPERATURE shows how far the limit is.",
    "power brake": "The power supply asked the GPU to slow down: check the supply and the rack's "
    "power budget.",
    "hw slowdown": "The hardware slowed itself down: check power cables, cooling and the kernel "
    "log (Xid messages).",
}
"""Reasons that should never last, the most specific first, and what to do about each."""
POWER_CAP = "power cap"


def check(facts: Facts) -> Finding | None:
    """Fires when a GPU of the run had its clock held down in a noticeable part of the samples."""
    found = [held for gpu in facts.gpus_used or () if (held := _main_reason(gpu)) is not None]
    if not found or not facts.ranks_used:
        return None
    gpu, reason, severity = max(
        found, key=lambda one: (one[2].weight, one[0].throttling.shares[one[1]], -one[0].index)
    )
    held_share = gpu.throttling.shares[reason]
    clock_share = gpu.throttling.clock_shares.get(reason)
    clock = f", at {percent(clock_share)} of its highest clock" if clock_share is not None else ""
    heat = gpu.temperature_c.peak if reason == "thermal" else None
    warm = f" (up to {heat:.0f} °C)" if heat is not None else ""
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=severity,
        claim=(
            f"GPU {gpu.index} was held back ({reason}) in {percent(held_share)} of the "
            f"samples{clock}{warm}."
        ),
        action=FAULTS.get(reason, _POWER_ACTION),
        share=held_share,
        evidence=Evidence(
            as_number("gpu", gpu.index),
            as_words("reason", reason),
            as_share("held_back_share", held_share),
            as_share("clock_share", clock_share),
            in_celsius("temperature_c", gpu.temperature_c.peak),
            in_watts("power_w", gpu.power_w.mean),
        ),
    )


_POWER_ACTION = (
    "The power limit sets the pace, as it does at full load: raise it (nvidia-smi -pl) if the "
    "machine allows, or leave it."
)


def _main_reason(gpu: GpuFacts) -> tuple[GpuFacts, str, Severity] | None:
    """Returns the main reason; a fault comes before the power cap, at which any fully used GPU
    runs."""
    shares = gpu.throttling.shares
    for reason in FAULTS:
        if shares.get(reason, 0.0) >= WARN_SHARE:
            return gpu, reason, Severity.WARNING
    if shares.get(POWER_CAP, 0.0) < WARN_SHARE:
        return None
    clock_share = gpu.throttling.clock_shares.get(POWER_CAP)
    if clock_share is None or clock_share >= LOW_CLOCK:
        is_felt = clock_share is None or clock_share < NEARLY_FULL_CLOCK
        return (gpu, POWER_CAP, Severity.INFO) if is_felt else None
    return gpu, POWER_CAP, Severity.WARNING


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    asks_each_node=True,
    role=RuleRole.CAUSE,
    explains=(Kind.COMPUTE_STRAGGLER, Kind.SLOWDOWN),
    where=Where.ANYWHERE,
    doc=Doc(
        "info, warn",
        "heat, power or hardware hold the clock down",
        __doc__,
        symptoms=(
            Symptom.SLOW_BUSY_GPU,
            Symptom.SLOWER_LATER,
        ),
    ),
)
