"""Which part of the step changed when the steps did."""

from __future__ import annotations

import numpy as np

from traceml.facts.step_table import Floats, StepTable
from traceml.model.phase import Phase


def growth_by_phase(parts: StepTable, onset_step: int) -> dict[Phase, float]:
    """How many seconds each phase takes longer from a step on, as means over ranks and steps."""
    later = parts.numbers >= onset_step
    grown = {}
    for phase in Phase:
        table = parts.phase(phase)
        before_s, after_s = _mean(table[:, ~later]), _mean(table[:, later])
        if before_s is not None and after_s is not None:
            grown[phase] = after_s - before_s
    return grown


def _mean(table: Floats) -> float | None:
    known = table[np.isfinite(table)]
    return float(known.mean()) if len(known) else None
