"""From where on a lost time matters: its share of the step, and a length somebody would notice."""

from __future__ import annotations

from dataclasses import dataclass

from traceml.model.finding import Severity


@dataclass(frozen=True, slots=True)
class Threshold:
    """Crossed by a part that is both a large share of its whole and long enough by itself."""

    share: float
    min_s: float

    def is_reached(self, part_s: float, whole_s: float) -> bool:
        """Whether the part matters by this line."""
        return part_s >= self.min_s and part_s >= self.share * whole_s


def severity_of(
    part_s: float,
    whole_s: float,
    warn: Threshold,
    critical: tuple[Threshold, ...],
    is_largest: bool = False,
) -> Severity | None:
    """Critical beyond any of its lines; `None` below the line for a warning.

    A part that is too short to warn about is still a remark where it is the largest of the step:
    a length may lower the severity, and never hides where most of the time goes.
    """
    if any(line.is_reached(part_s, whole_s) for line in critical):
        return Severity.CRITICAL
    if warn.is_reached(part_s, whole_s):
        return Severity.WARNING
    return Severity.INFO if is_largest and part_s >= warn.share * whole_s else None


def less_severe(one: Severity, other: Severity) -> Severity:
    """The less severe of the two."""
    return min(one, other, key=lambda severity_of: severity_of.weight)


def most_severe(*found: Severity | None) -> Severity | None:
    """The most severe of them; `None` where there is none."""
    known = [severity_of for severity_of in found if severity_of is not None]
    return max(known, key=lambda severity_of: severity_of.weight, default=None)
