"""A section's median and worst: a value, and the rank that has it."""

from __future__ import annotations

from collections.abc import Mapping

from traceml.figures.words import cell
from traceml.model.quantities import NOT_MEASURED
from traceml.summaries.record import Global, RankValue


def value(places: Mapping[str, RankValue], key: str | None) -> float | None:
    """What was measured; `None` where it was not."""
    return None if key is None or key not in places else places[key].value


def rank(places: Mapping[str, RankValue], key: str) -> str:
    """Who has it."""
    place = places.get(key)
    return NOT_MEASURED if place is None or place.idx is None else cell(place.idx)


def skew(found: Global, key: str) -> float | None:
    """How much larger the worst value is than the median, as a share of the median."""
    median, worst = value(found.median, key), value(found.worst, key)
    return None if worst is None or not median else worst / median - 1
