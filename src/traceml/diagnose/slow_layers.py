"""What the rules about slow layers share: what a layer costs the job, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceml.diagnose.thresholds import Threshold
from traceml.facts.facts import Facts
from traceml.model.evidence import Piece, as_number
from traceml.model.finding import Severity
from traceml.model.layer_names import MODEL
from traceml.model.quantities import count

WARN = Threshold(0.05, 0.001)
"""Of the step: enough to be worth a search for the reason."""
MAX_NAMED = 3
"""Further layers that are told by name; of the others their number is."""


def saved_s(facts: Facts, removed_s: Mapping[int, float]) -> float:
    """Returns how much shorter a mean step of the job would be without this time of each rank."""
    return 0.0 if facts.job is None else facts.job.saved_in_each_step_s(removed_s)


def severity_of_layer(facts: Facts, lost_s: float) -> Severity:
    """Returns a warning where the job loses a noticeable share of its step; else it is a remark."""
    is_felt = WARN.is_reached(lost_s, facts.mean.step_s or 0.0)
    return Severity.WARNING if is_felt else Severity.INFO


def shown_layer(name: str) -> str:
    """Returns a layer's name as people read it."""
    return name or MODEL


def also_named(layers: Sequence[str]) -> str:
    """Returns a sentence about further layers; empty where there are none."""
    if not layers:
        return ""
    names = ", ".join(map(shown_layer, layers[:MAX_NAMED]))
    more = len(layers) - MAX_NAMED
    return f"The same holds for {names}{f' and {count(more)} more' if more > 0 else ''}."


def factor_pieces(factor: float, interval: tuple[float, float]) -> tuple[Piece, ...]:
    """Returns a factor and the limits of its interval as evidence."""
    return (
        as_number("factor", round(factor, 3)),
        as_number("factor_low", round(interval[0], 3)),
        as_number("factor_high", round(interval[1], 3)),
    )
