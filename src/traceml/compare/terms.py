"""The terms of a comparison: the metric that decides, and how large a change counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traceml.compare.students_t import CONFIDENCE
from traceml.model.finding import Section
from traceml.model.metric import METRICS

TOLERANCE = 0.01
"""A change that is shown to be smaller than this counts as none."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A metric to judge runs by: the first of its names that both sides have."""

    word: str
    name: str
    section: Section | None
    """`None` for a metric that the script logged."""
    metrics: tuple[str, ...]
    more_is_better: bool = False
    of_steps: bool = False
    """Whether it varies from run to run as the step time does; a phase may vary more."""


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
"""By the value of `--metric`."""
STEP_TIME, SAMPLE_TIME = ENDPOINTS["step_time"], ENDPOINTS["sample_time"]
PEAK_MEMORY = ENDPOINTS["peak_memory"]


@dataclass(frozen=True, slots=True)
class EarlierSpread:
    """The run-to-run spread of earlier runs of the same command, as a standard deviation of
    logarithms."""

    log_spread: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Terms:
    """How a verdict is reached; shares in 0–1."""

    tolerance: float = TOLERANCE
    max_regression: float | None = None
    metric: str | None = None
    """A key of `ENDPOINTS` or the name of a logged metric; `None` means step time, then peak
    memory."""
    history: EarlierSpread | None = None
    higher_is_better: bool | None = None
    """Of a logged metric, where the user says it; `None` means as the script or the name says."""
    fail_on: tuple[str, ...] = ()
    looks: int = 1
    """How often the runs may be judged, while more of them are added, until a verdict is clear."""

    @property
    def significance(self) -> float:
        """The p-value below which one look shows a change: an equal share of 0.05, so that all
        looks together find a change in equal runs in at most 5 of 100 cases (Bonferroni)."""
        return (1 - CONFIDENCE) / self.looks

    @property
    def confidence(self) -> float:
        """The confidence of one look's interval."""
        return CONFIDENCE if self.looks == 1 else 1 - self.significance
