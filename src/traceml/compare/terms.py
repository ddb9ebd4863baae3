"""The terms of a comparison: what it is judged by, and how much of a change counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traceml.model.finding import Section
from traceml.model.metric import METRICS

TOLERANCE = 0.01
"""A change this small is none, once it is shown to be this small."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A number to judge runs by; the first of its metrics that both sides have."""

    word: str
    name: str
    section: Section
    metrics: tuple[str, ...]
    more_is_better: bool = False
    of_steps: bool = False
    """Whether it differs from run to run as the step time does; a phase may differ more."""


def _endpoints() -> Iterator[Endpoint]:
    """One for each word of the catalogue."""
    words = dict.fromkeys(metric.word for metric in METRICS if metric.word)
    for word in words:
        first, *others = (metric for metric in METRICS if metric.word == word)
        yield Endpoint(
            word,
            first.label,
            first.section,
            (first.key, *(metric.key for metric in others)),
            first.more_is_better,
            first.varies_as_steps_do,
        )


ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {endpoint.word: endpoint for endpoint in _endpoints()}
)
"""By the word that `--metric` takes."""
STEP_TIME, SAMPLE_TIME = ENDPOINTS["step_time"], ENDPOINTS["sample_time"]
PEAK_MEMORY = ENDPOINTS["peak_memory"]


@dataclass(frozen=True, slots=True)
class History:
    """How step times of the same command differed before: the spread of their logarithms."""

    log_spread: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Terms:
    """What a verdict is given by; shares, such as 0.01."""

    tolerance: float = TOLERANCE
    max_regression: float | None = None
    metric: str | None = None
    """A word of `ENDPOINTS`; `None`: step time, then peak memory."""
    history: History | None = None
    fail_on: tuple[str, ...] = ()
