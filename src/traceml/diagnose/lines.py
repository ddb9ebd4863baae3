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
    part_s: float,
    whole_s: float,
    warn: Line,
    critical: tuple[Line, ...],
    is_largest: bool = False,
) -> Severity | None:
    """Critical beyond any of its lines; `None` below the line for a warning.

    A part that is too short to warn about is still a remark where it is the largest of the step:
    a length may lower the severity, and never hides where most of the time goes.
    """
    if any(line.is_crossed(part_s, whole_s) for line in critical):
        return Severity.CRITICAL
    if warn.is_crossed(part_s, whole_s):
        return Severity.WARNING
    return Severity.INFO if is_largest and part_s >= warn.share * whole_s else None


def quieter(one: Severity, other: Severity) -> Severity:
    """The less severe of the two."""
    return min(one, other, key=lambda severity: severity.weight)


def louder(*found: Severity | None) -> Severity | None:
    """The most severe of them; `None` where there is none."""
    known = [severity for severity in found if severity is not None]
    return max(known, key=lambda severity: severity.weight, default=None)
