"""The ranks' own time in a summary: each one's, and how it is distributed over many of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traceml.summaries.record import RankRow

QUANTILES = {"median": 0.50, "p95": 0.95, "p99": 0.99}

Metrics = Mapping[str, "float | None"]


@dataclass(frozen=True, slots=True)
class OwnTimeSpread:
    """How long the ranks of a run work for themselves, from the fastest to the slowest."""

    ranks: int
    best_ms: float
    best_rank: str
    quantiles_ms: Mapping[str, float]
    """By the names of `QUANTILES`."""
    worst_ms: float
    worst_rank: str


def own_ms(metrics: Metrics) -> float | None:
    """Returns a rank's own time per step, without its wait for other ranks. Ranks that wait for
    each other all take equally long; the late one is the one that waits least."""
    step_ms, communication_ms = metrics.get("step_time_ms"), metrics.get("communication_ms")
    return None if step_ms is None else step_ms - (communication_ms or 0.0)


def waits_are_known(rows: Iterable[RankRow]) -> bool:
    """Returns whether the ranks' waiting for each other was measured."""
    return any(row.metrics.get("communication_ms") is not None for row in rows)


def own_time_spread(rows: Mapping[str, RankRow]) -> OwnTimeSpread | None:
    """Returns the distribution over the ranks; `None` where none was timed.

    A quantile is the time of a rank that has it: the lower one of two, as the summary's median is.
    """
    known = sorted(
        (own, name) for name, row in rows.items() if (own := own_ms(row.metrics)) is not None
    )
    if not known:
        return None
    (best_ms, best_rank), (worst_ms, worst_rank) = known[0], known[-1]
    quantiles = {name: known[int(part * (len(known) - 1))][0] for name, part in QUANTILES.items()}
    return OwnTimeSpread(len(known), best_ms, best_rank, quantiles, worst_ms, worst_rank)
