"""The terms of a comparison: the metric that decides, and how large a change counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from traceml.model.finding import Section

TOLERANCE = 0.01
"""A change that is shown to be smaller than this counts as none."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A metric to judge runs by: the first of its names that both sides have."""

    word: str
    name: str
    section: Section
    metrics: tuple[str, ...]
    more_is_better: bool = False
    of_steps: bool = False
    """Whether it varies from run to run as the step time does; a phase may vary more."""


def _of_step(word: str, name: str, metric: str, of_steps: bool = False) -> Endpoint:
    return Endpoint(word, name, Section.STEP_TIME, (metric,), of_steps=of_steps)


STEP_TIME = _of_step("step_time", "Step time", "step_time_ms", of_steps=True)
SAMPLE_TIME = _of_step("sample_time", "Time per sample", "sample_time_ms", of_steps=True)
PEAK_MEMORY = Endpoint(
    "peak_memory",
    "Peak memory",
    Section.STEP_MEMORY,
    ("peak_allocated_bytes", "peak_reserved_bytes"),
)
ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {
        endpoint.word: endpoint
        for endpoint in (
            STEP_TIME,
            SAMPLE_TIME,
            _of_step("wall_step_time", "Wall time per step", "wall_step_ms"),
            _of_step("step_time_p50", "Median step time", "step_time_p50_ms"),
            _of_step("step_time_p95", "95th percentile of the step time", "step_time_p95_ms"),
            _of_step("step_time_p99", "99th percentile of the step time", "step_time_p99_ms"),
            _of_step("input", "Input wait", "input_wait_ms"),
            _of_step("h2d", "Copy to the device", "h2d_ms"),
            _of_step("compute", "Compute", "compute_ms"),
            _of_step("forward", "Forward", "forward_ms"),
            _of_step("backward", "Backward", "backward_ms"),
            _of_step("optimizer", "Optimizer", "optimizer_ms"),
            _of_step("communication", "Communication", "communication_ms"),
            _of_step("residual", "Rest of the step", "residual_ms"),
            _of_step("between", "Time between steps", "between_ms"),
            Endpoint(
                "throughput",
                "Throughput",
                Section.STEP_TIME,
                ("samples_per_s", "steps_per_s"),
                more_is_better=True,
            ),
            PEAK_MEMORY,
            Endpoint(
                "host_memory",
                "Peak host memory",
                Section.STEP_MEMORY,
                ("peak_rss_bytes",),
            ),
        )
    }
)
"""By the value of `--metric`."""


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
    """A key of `ENDPOINTS`; `None` means step time, then peak memory."""
    history: EarlierSpread | None = None
    fail_on: tuple[str, ...] = ()
