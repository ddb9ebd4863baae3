"""The charts of a comparison: how one step became the other, and both side by side."""

from __future__ import annotations

import math

from traceml.compare.record import Comparison, Delta
from traceml.figures.colours import BETTER, WORSE, A, B
from traceml.figures.page import Axis, Bars, Change, Waterfall
from traceml.figures.step_shares import PARTS, stacked_bars
from traceml.figures.units import DIGITS, time_unit
from traceml.figures.words import line
from traceml.model.phase import Phase
from traceml.model.quantities import milliseconds

MAX_LABEL_CHARS = 40


def waterfall(comparison: Comparison) -> Waterfall | None:
    """Returns the parts of the change; as drawn they add up to it exactly."""
    section = comparison.sections.get("step_time")
    parts_ms = comparison.waterfall_ms
    step = Delta() if section is None else section.metrics.get("step_time_ms", Delta())
    if parts_ms is None or step.lhs is None or step.rhs is None:
        return None
    unit = time_unit(max(step.lhs, step.rhs) / 1e3)
    scale = 1e-3 / unit.size
    decimals = _decimals(max(step.lhs, step.rhs) * scale)
    before, after = (round(side * scale, decimals) for side in (step.lhs, step.rhs))
    drawn = {name: round(part * scale, decimals) for name, part in parts_ms.items()}
    rest = Phase.RESIDUAL.value
    # What rounding leaves over goes where what was not told apart already is.
    drawn[rest] = round(after - before - (sum(drawn.values()) - drawn.get(rest, 0.0)), decimals)
    changes = (
        Change(
            PARTS.get(name, name),
            part,
            milliseconds(parts_ms.get(name, 0.0), signed=True),
            WORSE if part > 0 else BETTER,
        )
        for name, part in drawn.items()
        if part
    )
    return Waterfall(
        id="waterfall",
        title="How A's step became B's",
        y=Axis("step time", unit.symbol, low=0.0),
        changes=(
            Change("A", before, milliseconds(step.lhs), A, is_total=True),
            *changes,
            Change("B", after, milliseconds(step.rhs), B, is_total=True),
        ),
        caption="Means per step. Blue is time gained, orange is time lost.",
    )


def before_and_after(comparison: Comparison) -> Bars | None:
    """Returns the phases of both steps; `None` where a side has no step time."""
    section = comparison.sections.get("step_time")
    step = Delta() if section is None else section.metrics.get("step_time_ms", Delta())
    if section is None or step.lhs is None or step.rhs is None:
        return None
    sides = {
        f"A: {line(comparison.a, MAX_LABEL_CHARS)}": {
            name: change.lhs for name, change in section.metrics.items()
        },
        f"B: {line(comparison.b, MAX_LABEL_CHARS)}": {
            name: change.rhs for name, change in section.metrics.items()
        },
    }
    return stacked_bars("before-after", "Phases of a step, before and after", sides)


def _decimals(largest: float) -> int:
    """Returns the number of decimals that keep the significant digits of the longer step."""
    if largest <= 0 or not math.isfinite(largest):
        return DIGITS
    return max(0, DIGITS - 1 - math.floor(math.log10(largest)))
