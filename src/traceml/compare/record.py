"""A comparison as one record: what the JSON file holds and every output consumes."""

from __future__ import annotations

import msgspec
from msgspec import Struct

SCHEMA_VERSION = 1
"""History: 1 first."""
FORMAT = "A -> B | delta = B - A"


class Delta(Struct, frozen=True):
    """One number on both sides; `None` is not measured, and so is a change from or to it."""

    lhs: float | None = None
    rhs: float | None = None
    delta: float | None = None
    pct_change: float | None = None
    """In percent of `lhs`."""

    @staticmethod
    def between(lhs: float | None, rhs: float | None) -> Delta:
        """The change from A's value to B's."""
        if lhs is None or rhs is None:
            return Delta(lhs, rhs)
        delta = rhs - lhs
        return Delta(lhs, rhs, delta, 100 * delta / lhs if lhs else None)


class DiagnosisChange(Struct, frozen=True):
    """What each side was diagnosed with, in words; `changed` is judged by the kinds."""

    lhs: str | None = None
    rhs: str | None = None
    changed: bool | None = None


class SectionComparison(Struct, frozen=True):
    """One section of the two summaries."""

    diagnosis: DiagnosisChange
    metrics: dict[str, Delta]


class Overview(Struct, frozen=True):
    """The runs as a whole."""

    primary_diagnosis: DiagnosisChange
    duration_s: Delta


class Verdict(Struct, frozen=True):
    """The claim, the sentence that supports it, and what to do about it."""

    status: str
    why: str
    next: str
    allowance_pct: float
    """How far two runs of the same command are taken to differ by themselves."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Two runs, side by side."""

    schema_version: int = SCHEMA_VERSION
    format: str = FORMAT
    a: str
    b: str
    verdict: Verdict
    overview: Overview
    waterfall_ms: dict[str, float] | None
    """By phase: the parts of the step time's change; they sum to it."""
    sections: dict[str, SectionComparison]
    warnings: tuple[str, ...]

    @property
    def has_common_metric(self) -> bool:
        """Whether any metric was measured on both sides."""
        return any(
            metric.delta is not None
            for section in self.sections.values()
            for metric in section.metrics.values()
        )


def to_json(comparison: Comparison) -> bytes:
    """The comparison as strict JSON, indented for people."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n"
