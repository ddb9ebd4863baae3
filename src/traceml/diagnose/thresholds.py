"""When a loss of time matters: thresholds for its share of the step and for its length."""

from __future__ import annotations

from dataclasses import dataclass

from traceml.model.finding import Severity


@dataclass(frozen=True, slots=True)
class Threshold:
    """Reached by a time that is both a large share of its whole and long enough in seconds."""

    share: float
    """Of the whole, 0–1."""
    min_s: float
    """Seconds: a shorter time is not worth a finding, whatever its share."""

    def is_reached(self, part_s: float, whole_s: float) -> bool:
        """Returns whether the time reaches the threshold, in share and in length."""
        return part_s >= self.min_s and part_s >= self.share * whole_s


def severity_of(
    part_s: float,
    whole_s: float,
    warn: Threshold,
    critical: tuple[Threshold, ...],
    is_largest: bool = False,
) -> Severity | None:
    """Returns critical if any of the critical thresholds is reached; `None` below the warning.

    The largest part of the step is still a remark if only its length is below the warning: a short
    step may lower the severity, but never hides where most of the time goes.
    """
    if any(line.is_reached(part_s, whole_s) for line in critical):
        return Severity.CRITICAL
    if warn.is_reached(part_s, whole_s):
        return Severity.WARNING
    return Severity.INFO if is_largest and part_s >= warn.share * whole_s else None


def less_severe(one: Severity, other: Severity) -> Severity:
    """Returns the less severe of the two."""
    return min(one, other, key=lambda severity_of: severity_of.weight)


def most_severe(*found: Severity | None) -> Severity | None:
    """Returns the most severe of them; `None` where there is none."""
    known = [severity_of for severity_of in found if severity_of is not None]
    return max(known, key=lambda severity_of: severity_of.weight, default=None)
