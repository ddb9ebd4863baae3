"""High GPU temperature: a GPU runs hot enough to slow down soon.

*Meaning.* A GPU runs hot enough to slow down soon. Whether it did is said by GPU_THROTTLED.

*Evidence.* `gpu`, `temperature_c`, `temperature_peak_c`.

*Thresholds.* 85 °C on average, or 90 °C once, warns; 90 °C on average is critical.

*What to do.* See to its cooling: airflow, fans, the room, neighbours.

*Silent* where the run uses only some of the machine's GPUs.
"""

from __future__ import annotations

from traceml.diagnose.rule import Doc, Rule, Symptom
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, as_number, in_celsius
from traceml.model.finding import Finding, Kind, Section, Severity

KIND = Kind.HIGH_GPU_TEMPERATURE

WARN_C = 85.0  # most data-centre GPUs lower their clock a few degrees above
CRITICAL_C = 90.0  # all the time: the next step is that the GPU shuts down


def check(facts: Facts) -> Finding | None:
    """Fires when the hottest GPU of the run was hot all along, or touched the limit."""
    hot = [
        (mean_c, peak_c, gpu)
        for gpu in facts.gpus_used or ()
        for mean_c, peak_c in [(gpu.temperature_c.mean, gpu.temperature_c.peak)]
        if mean_c is not None and peak_c is not None
        if mean_c >= WARN_C or peak_c >= CRITICAL_C
    ]
    if not hot:
        return None
    mean_c, peak_c, hottest = max(hot, key=lambda one: (one[0], one[1], -one[2].index))
    return Finding(
        kind=KIND,
        section=Section.SYSTEM,
        severity=Severity.CRITICAL if mean_c >= CRITICAL_C else Severity.WARNING,
        claim=f"GPU {hottest.index} ran at {mean_c:.0f} °C, up to {peak_c:.0f} °C.",
        action=(
            f"See to its cooling: airflow, fans, the room, neighbours. From {CRITICAL_C:.0f} °C on "
            "a GPU slows itself down."
        ),
        evidence=Evidence(
            as_number("gpu", hottest.index),
            in_celsius("temperature_c", mean_c),
            in_celsius("temperature_peak_c", peak_c),
        ),
    )


RULE = Rule(
    kind=KIND,
    section=Section.SYSTEM,
    check=check,
    doc=Doc(
        "warn, crit",
        "a GPU is hot enough to slow down soon",
        __doc__,
        symptoms=(Symptom.SLOWER_LATER,),
    ),
)
