"""The one formatter, under the name that the rooms which print know it by."""

from traceml.model.quantities import (
    NOT_MEASURED,
    count,
    duration,
    memory,
    milliseconds,
    percent,
    rate,
)

__all__ = ["NOT_MEASURED", "count", "duration", "memory", "milliseconds", "percent", "rate"]
