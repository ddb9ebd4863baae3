"""Small summaries to compare, said in a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from traceml.summaries.record import PRODUCER, Summary


def run(
    average: dict[str, float | None] | None = None,
    peak_bytes: float | None = None,
    **fields: Any,
) -> Summary:
    """One of our own summaries, with these step times and this peak of the worst rank."""
    document = {"producer": {"name": PRODUCER}, **fields}
    if average is not None:
        document["step_time"] = {
            **document.get("step_time", {}),
            "global": {"average": average, **document.get("step_time", {}).get("global", {})},
        }
    if peak_bytes is not None:
        worst = {"peak_allocated_bytes": {"value": peak_bytes, "idx": "1"}}
        document["step_memory"] = {
            "global": {"average": {"peak_allocated_bytes": 1.0}, "worst": worst}
        }
    return msgspec.convert(document, Summary)


def runs(times_ms: Sequence[float], **fields: Any) -> list[Summary]:
    """One run for each step time."""
    return [run({"step_time_ms": time_ms}, **fields) for time_ms in times_ms]


def by_seed(times_ms: Sequence[float]) -> list[Summary]:
    """The same, each with a seed of its own."""
    return [
        run({"step_time_ms": time_ms}, params={"seed": seed})
        for seed, time_ms in enumerate(times_ms)
    ]
