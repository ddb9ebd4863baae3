"""From where on a lost time matters: its share of the step, and a length somebody would notice."""

from __future__ import annotations

from dataclasses import dataclass

from traceml.model.finding import Severity


@dataclass(frozen=True, slots=True)
class Line:
    """Crossed by a part that is both a large share of its whole and long enough by itself."""

    share: float
    least_s: float

    def is_crossed(self, part_s: float, whole_s: float) -> bool:
        """Whether the part matters by this line."""
        return part_s >= self.least_s and part_s >= self.share * whole_s


def severity(
    part_s: float, whole_s: float, warn: Line, critical: tuple[Line, ...]
) -> Severity | None:
    """Critical beyond any of its lines; `None` below the line for a warning."""
    if any(line.is_crossed(part_s, whole_s) for line in critical):
        return Severity.CRITICAL
    return Severity.WARNING if warn.is_crossed(part_s, whole_s) else None
