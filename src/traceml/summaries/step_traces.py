"""The part of the summary about the steps that were recorded with torch's profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:  # who reads a summary need not load what builds one
    from traceml.facts.step_traces import StepTraceFacts

VIEWER = "ui.perfetto.dev"
"""The page that opens such a trace; it is read by the browser and sent nowhere."""


class StepTraceSummary(Struct, frozen=True):
    """A recorded step whose trace was kept."""

    file: str
    """Its name in the run folder: a Chrome trace in JSON, compressed with gzip."""
    rank: int = 0
    step: int = 0
    """Counted from 1."""
    chosen_as: str = "typical"
    """`typical` or `worst`."""
    time_ms: float | None = None
    """On the host's clock, while it was recorded."""
    size_bytes: int | None = None


class KinetoSummary(Struct, frozen=True):
    """What `--kineto` recorded."""

    asked: int = 0
    """Of how many steps each rank was to keep a trace."""
    recorded: int = 0
    """How many steps were recorded, over all ranks."""
    traces: tuple[StepTraceSummary, ...] = ()
    """By rank and step."""
    recorded_median_ms: float | None = None
    """The median time of all recorded steps, while they were recorded."""
    median_ms: float | None = None
    """That of all other steps after warm-up."""
    slowest_step: int | None = None
    slowest_ms: float | None = None
    """The slowest of the others."""
    cost_ms: float | None = None
    """What recording and writing took from training, on the rank where it took the most."""
    notes: tuple[str, ...] = ()
    """Why steps were not recorded."""


def kineto_summary(found: StepTraceFacts | None) -> KinetoSummary | None:
    """Returns what was recorded; `None` where no traces were asked for."""
    if found is None:
        return None
    return KinetoSummary(
        asked=found.asked,
        recorded=found.recorded,
        traces=tuple(
            StepTraceSummary(
                file=each.file,
                rank=each.rank,
                step=each.step,
                chosen_as="worst" if each.is_worst else "typical",
                time_ms=_ms(each.took_s),
                size_bytes=each.size_bytes,
            )
            for each in found.traces
        ),
        recorded_median_ms=_ms(found.recorded_median_s),
        median_ms=_ms(found.median_s),
        slowest_step=found.slowest_step,
        slowest_ms=_ms(found.slowest_s),
        cost_ms=_ms(found.cost_s),
        notes=found.notes,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)
