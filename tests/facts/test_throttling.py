"""Reasons are shares of the samples in which the driver gave any answer."""

import pytest

from traceml.facts.sensors import NOT_THROTTLED, throttling
from traceml.model.sample import GpuSample


def gpu(reasons: tuple[str, ...] | None, mhz: float | None = 2000.0) -> GpuSample:
    return GpuSample(
        0, "GPU-0", "x", sm_clock_mhz=mhz, sm_clock_max_mhz=2000.0, throttle_reasons=reasons
    )


def test_each_reason_has_its_share() -> None:
    samples = [gpu(("thermal", "hw slowdown")), gpu(("thermal",)), gpu(()), gpu(("idle",))]
    assert throttling(samples).shares == {"thermal": 0.5, "hw slowdown": 0.25}


def test_a_sample_without_an_answer_is_no_sample() -> None:
    assert throttling([gpu(None), gpu(None), gpu(("thermal",))]).shares == {"thermal": 1.0}
    assert throttling([gpu(None)]) == NOT_THROTTLED
    assert throttling([]) == NOT_THROTTLED


def test_the_clock_is_that_of_the_samples_that_were_held_back() -> None:
    samples = [gpu(("power cap",), 1000.0), gpu(("power cap",), 1200.0), gpu((), 2000.0)]
    assert throttling(samples).clock_shares == {"power cap": pytest.approx(0.55)}
    assert throttling([gpu(("power cap",), None)]).clock_shares == {}


def test_each_reason_has_the_clock_of_its_own_samples() -> None:
    samples = [gpu(("power cap",), 1900.0), gpu(("power cap", "thermal"), 800.0)]
    clocks = throttling(samples).clock_shares
    assert clocks == {"power cap": pytest.approx(0.675), "thermal": pytest.approx(0.4)}
