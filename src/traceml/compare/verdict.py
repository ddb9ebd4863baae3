"""The verdict on two runs: step time decides, then peak memory."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import hypot, sqrt

from traceml.compare.record import Delta, Verdict
from traceml.compare.waterfall import COMPUTE_WHOLE, grouped_ms
from traceml.model.phase import COMPUTE, Phase
from traceml.model.quantities import memory, milliseconds
from traceml.summaries.record import PRODUCER, PrimaryDiagnosis, SectionSummary, StepSeries, Summary

OWN_ALLOWANCE_PCT = 3.0
"""Two quiet runs of one command stay within this; warm-up is excluded from our averages."""
FOREIGN_ALLOWANCE_PCT = 25.0
"""A foreign average includes warm-up and says nothing of its spread."""
TOLERANCE_PCT = 1.0
"""A change this small is none, once it is shown to be this small."""
MEMORY_PCT = 5.0
MEMORY_BYTES = 8 * 2**20
"""Peaks move by a few blocks of the caching allocator (2 MiB each) from run to run."""
SHOWN_SHARE = 0.01
"""A phase that explains less than this of the change is told with the rest."""
_Z_95 = 1.96

_PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes")
_WORDS = {Phase.H2D.value: "copies to the device", Phase.RESIDUAL.value: "rest"}


class Status(str, Enum):
    """What a comparison can conclude."""

    IMPROVEMENT = "IMPROVEMENT"
    REGRESSION = "REGRESSION"
    NO_CHANGE = "NO CHANGE"
    MIXED = "MIXED"
    INCONCLUSIVE = "INCONCLUSIVE"


def judge(
    a: Summary,
    b: Summary,
    step_time: Mapping[str, Delta],
    step_memory: Mapping[str, Delta],
    waterfall: Mapping[str, float] | None,
) -> Verdict:
    """The verdict on two summaries, given how their metrics moved."""
    allowance_pct = _allowance_pct(a, b)
    step = step_time.get("step_time_ms", Delta())
    peak = _peak(step_memory)
    step_status = _step_status(step, allowance_pct, _shown_equal(a.steps, b.steps, step))
    memory_status = _memory_status(peak)
    if _measured(a) == _measured(b):
        status, why = Status.NO_CHANGE, "The two summaries hold the same measurements."
    else:
        status = _combine(step_status, memory_status)
        why = _step_why(step, step_status, allowance_pct, waterfall)
        if memory_status is not Status.NO_CHANGE:
            why = f"{why[:-1]}; {_memory_words(peak)}."
    return Verdict(
        status=status.value,
        why=why,
        next=_next(status, step_status, waterfall, b.primary_diagnosis, allowance_pct),
        allowance_pct=allowance_pct,
    )


def _measured(summary: Summary) -> tuple[SectionSummary | None, ...]:
    return (summary.step_time, summary.step_memory, summary.process, summary.system)


def _allowance_pct(a: Summary, b: Summary) -> float:
    own = a.producer.name == b.producer.name == PRODUCER
    return OWN_ALLOWANCE_PCT if own else FOREIGN_ALLOWANCE_PCT


def _step_status(step: Delta, allowance_pct: float, shown_equal: bool) -> Status | None:
    """What the step time alone says; `None` where a side has none."""
    if step.delta is None:
        return None
    if step.pct_change is not None and abs(step.pct_change) > allowance_pct:
        return Status.IMPROVEMENT if step.delta < 0 else Status.REGRESSION
    return Status.NO_CHANGE if shown_equal else Status.INCONCLUSIVE


def _shown_equal(a: StepSeries | None, b: StepSeries | None, step: Delta) -> bool:
    """Whether the interval of the difference, from the steps of both runs, is within tolerance."""
    errors = [_standard_error_ms(series) for series in (a, b)]
    if step.lhs is None or step.delta is None or errors[0] is None or errors[1] is None:
        return False
    reach_ms = abs(step.delta) + _Z_95 * hypot(errors[0], errors[1])
    return reach_ms <= step.lhs * TOLERANCE_PCT / 100


def _standard_error_ms(series: StepSeries | None) -> float | None:
    if series is None or series.stdev_ms is None or not series.effective_count:
        return None
    return series.stdev_ms / sqrt(series.effective_count) if series.effective_count > 0 else None


def _peak(step_memory: Mapping[str, Delta]) -> Delta:
    both = (step_memory[name] for name in _PEAKS if name in step_memory)
    return next((peak for peak in both if peak.delta is not None), Delta())


def _memory_status(peak: Delta) -> Status:
    if peak.delta is None or abs(peak.delta) <= MEMORY_BYTES:
        return Status.NO_CHANGE
    if peak.pct_change is not None and abs(peak.pct_change) <= MEMORY_PCT:
        return Status.NO_CHANGE
    return Status.IMPROVEMENT if peak.delta < 0 else Status.REGRESSION


def _combine(step: Status | None, peak: Status) -> Status:
    if step is None:
        return Status.INCONCLUSIVE
    if step in (Status.NO_CHANGE, Status.INCONCLUSIVE):
        return step if peak is Status.NO_CHANGE else peak
    return step if peak in (step, Status.NO_CHANGE) else Status.MIXED


def _step_why(
    step: Delta,
    status: Status | None,
    allowance_pct: float,
    waterfall: Mapping[str, float] | None,
) -> str:
    if step.delta is None:
        missing = " and ".join(
            side for side, value in (("A", step.lhs), ("B", step.rhs)) if value is None
        )
        return f"Step time was not measured in {missing}, so there is nothing to judge by."
    if step.delta == 0:
        change = "Step time is the same"
    else:
        share = "" if step.pct_change is None else f" ({step.pct_change:+.1f}%)"
        verb = "fell" if step.delta < 0 else "rose"
        change = f"Step time {verb} by {milliseconds(abs(step.delta))}{share}"
    if status is Status.NO_CHANGE:
        return f"{change}, within the tolerance of {TOLERANCE_PCT:g}%."
    if status is Status.INCONCLUSIVE:
        if step.pct_change is None:
            return f"{change} from nothing, which no share can express."
        return f"{change}, within the ±{allowance_pct:g}% by which two runs alike may differ."
    parts = _parts_words(waterfall, step.delta)
    return f"{change}: {parts}." if parts else f"{change}."


def _parts_words(waterfall: Mapping[str, float] | None, total_ms: float) -> str:
    """The phases worth naming, largest first; what is not named goes with the rest."""
    if not waterfall:
        return ""
    parts = grouped_ms(waterfall)
    rest_ms = parts.pop(Phase.RESIDUAL.value)
    shown = []
    for name, part_ms in sorted(parts.items(), key=lambda item: -abs(item[1])):
        if abs(part_ms) < SHOWN_SHARE * abs(total_ms):
            rest_ms += part_ms
        else:
            shown.append(f"{_WORDS.get(name, name)} {milliseconds(part_ms, signed=True)}")
    if rest_ms or not shown:
        shown.append(f"rest {milliseconds(rest_ms, signed=True)}")
    return ", ".join(shown)


def _memory_words(peak: Delta) -> str:
    share = "" if peak.pct_change is None else f" ({peak.pct_change:+.1f}%)"
    verb = "fell" if (peak.delta or 0) < 0 else "rose"
    return f"peak memory {verb} from {memory(peak.lhs)} to {memory(peak.rhs)}{share}"


def _next(
    status: Status,
    step_status: Status | None,
    waterfall: Mapping[str, float] | None,
    diagnosis: PrimaryDiagnosis,
    allowance_pct: float,
) -> str:
    if status is Status.MIXED:
        return "Decide whether the step time gained is worth the memory, or the reverse."
    if status is Status.REGRESSION and step_status is Status.REGRESSION and waterfall:
        return f"Look at {_culprit(waterfall)} in B first: it grew most."
    if status is Status.REGRESSION:
        return "Find what grew between A and B: model, batch, or what is kept between steps."
    if status is Status.INCONCLUSIVE and step_status is None:
        return "Compare runs that took at least a few training steps with tracing on."
    if status is Status.INCONCLUSIVE:
        return (
            f"Run both sides again: one run each can show only a change beyond ±{allowance_pct:g}%."
        )
    if status is Status.IMPROVEMENT and diagnosis.status and diagnosis.action:
        return f"B is {diagnosis.status}: {diagnosis.action}"
    return "Nothing to do."


def _culprit(waterfall: Mapping[str, float]) -> str:
    name = max(waterfall, key=lambda phase: waterfall[phase])
    if name in COMPUTE:
        return f"the {name} pass" if name != Phase.OPTIMIZER.value else "the optimizer"
    words = {
        Phase.INPUT.value: "the input path",
        COMPUTE_WHOLE: "the compute phases",
        Phase.RESIDUAL.value: "the time outside the named phases",
    }
    return words.get(name, _WORDS.get(name, name))
