"""Counters of a GPU: between readings, or as the driver kept them; what fails is not measured."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from fake_nvml import (
    FUNCTION_NOT_FOUND,
    GPM_METRICS,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    FakeCounters,
)
from traceml.agent.gpus import MAX_INTERVALS, GpuSampler
from traceml.model.sample import GpuInterval

BUSY, TENSOR = (
    GPM_METRICS[name]
    for name in ("NVML_GPM_METRIC_GRAPHICS_UTIL", "NVML_GPM_METRIC_ANY_TENSOR_UTIL")
)
DRAM = GPM_METRICS["NVML_GPM_METRIC_DRAM_BW_UTIL"]
GPM_CALLS = {"nvmlGpmSampleGet", "nvmlGpmMetricsGet", "nvmlGpmSampleAlloc"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A sampler of a machine with two GPUs, and its clock."""

    def __init__(self, driver: FakeCounters) -> None:
        self.driver, self.clock = driver, Clock()
        self.sampler = GpuSampler(self.clock)
        self.sampler.counted = frozenset({"GPU-0"})

    def after(self, *gaps_s: float) -> tuple[GpuInterval, ...]:
        """The intervals of GPU 0 in a sample after so many readings of the counters."""
        for gap_s in gaps_s:
            self.clock.now_s += gap_s
            self.sampler.read_counters()
        return self.sampler.sample()[0].intervals


Watch = Callable[..., Watched]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    def watch(driver: FakeCounters) -> Watched:
        monkeypatch.setitem(sys.modules, "pynvml", driver.module())
        watched = Watched(driver)
        watched.sampler.sample()  # opens the driver, and takes the first reading
        return watched

    return watch


def test_an_interval_lies_between_two_readings(watch: Watch) -> None:
    percents = {BUSY: 99.7, 2: 88.0, 3: 44.0, TENSOR: 32.0, DRAM: 43.0, 12: 2.0, 13: 1.0, 11: 0.0}
    watched = watch(FakeCounters(percents=percents))
    watched.clock.now_s += 0.25
    watched.sampler.read_counters()
    watched.clock.now_s += 0.25
    assert watched.sampler.sample()[0].intervals == tuple(
        GpuInterval(
            begin,
            begin + 0.25,
            busy_share=0.997,
            sm_share=0.88,
            occupancy=0.44,
            tensor_share=0.32,
            fp32_share=0.02,
            dram_share=0.43,
            fp16_share=0.01,
            fp64_share=0.0,
        )
        for begin in (1000.0, 1000.25)
    )


def test_each_interval_is_told_once_and_only_of_the_gpus_that_are_trained_on(
    watch: Watch,
) -> None:
    watched = watch(FakeCounters())
    assert len(watched.after(0.25, 0.25)) == 2
    assert watched.sampler.sample()[0].intervals == ()
    assert [gpu for name, gpu in watched.driver.calls if name in GPM_CALLS - {"nvmlGpmSampleAlloc"}]
    assert all(gpu == 0 for name, gpu in watched.driver.calls if name == "nvmlGpmSampleGet")
    watched.sampler.counted = None  # a rank that cannot say which GPU it has
    watched.after(0.25, 0.25)
    assert any(gpu == 1 for name, gpu in watched.driver.calls if name == "nvmlGpmSampleGet")


def test_a_sample_at_once_after_a_reading_takes_none_of_its_own(watch: Watch) -> None:
    watched = watch(FakeCounters())
    assert len(watched.after(0.25)) == 1  # it ends with a sample, which reads the counters too
    assert watched.after(0.049) == ()
    (interval,) = watched.after(0.201)
    assert interval.length_s == pytest.approx(0.25)


def test_nothing_is_counted_before_anybody_trains_on_a_gpu(watch: Watch) -> None:
    driver = FakeCounters()
    watched = watch(driver)
    watched.sampler.counted = frozenset()
    driver.calls.clear()
    assert watched.after(0.25, 0.25) == ()
    assert not any(name in GPM_CALLS for name, _ in driver.calls)


def test_a_metric_that_fails_alone_is_none_and_a_strange_value_too(watch: Watch) -> None:
    percents = {BUSY: 50.0, DRAM: 100.4, TENSOR: float("nan")}
    watched = watch(FakeCounters(percents=percents, metric_errors={12: NOT_SUPPORTED}))
    (interval,) = watched.after(0.25)
    assert (interval.busy_share, interval.dram_share) == (0.5, 1.0)
    assert interval.tensor_share is None and interval.fp32_share is None


@pytest.mark.parametrize(
    "gap_s",
    [pytest.param(5.1, id="nobody asked for long"), pytest.param(-2.0, id="the clock jumped back")],
)
def test_readings_that_do_not_belong_together_are_not_compared(watch: Watch, gap_s: float) -> None:
    watched = watch(FakeCounters())
    assert watched.after(gap_s) == ()
    assert len(watched.after(0.25)) == 1


SECOND_US = 1_000_000
UTILISATION = [(1000 * SECOND_US + at * SECOND_US // 5, 10.0 * at) for at in range(-9, 16)]


@pytest.mark.parametrize(
    "driver",
    [
        pytest.param(FakeCounters(has_gpm=False), id="an older GPU"),
        pytest.param(FakeCounters(missing={"nvmlGpmMetricsGet"}), id="an older binding"),
        pytest.param(
            FakeCounters(errors={("nvmlGpmQueryDeviceSupport", 0): FUNCTION_NOT_FOUND}),
            id="an older driver",
        ),
        pytest.param(
            FakeCounters(errors={("nvmlGpmSampleAlloc", 1): NO_PERMISSION}),
            id="no memory for the second buffer",
        ),
        pytest.param(
            FakeCounters(errors={("nvmlGpmSampleGet", 0): NOT_SUPPORTED}), id="divided by MIG"
        ),
        pytest.param(
            FakeCounters(errors={("nvmlGpmMetricsGet", 0): NO_PERMISSION}), id="not allowed"
        ),
    ],
)
def test_without_gpm_the_drivers_own_samples_count_and_all_of_them(
    watch: Watch, driver: FakeCounters
) -> None:
    watched = watch(driver)
    assert watched.after(0.25) == ()  # where only comparing fails, it shows here
    assert driver.buffers == []
    driver.samples = [each for each in UTILISATION if each[0] <= 1002 * SECOND_US]
    found = watched.after(2.0)
    assert all(interval.sm_share is None for interval in found)
    assert [round(interval.length_s, 6) for interval in found] == [0.2] * len(found)
    assert [interval.busy_share for interval in found[-3:]] == [0.8, 0.9, 1.0]
    first = found[0].begin_unix_s
    assert first >= 1000.0  # what was before the run is not the run's
    driver.samples = UTILISATION
    assert [interval.busy_share for interval in watched.after(1.0)] == [1.0] * 5
    driver.calls.clear()
    watched.after(1.0, 1.0)
    assert not any(name in GPM_CALLS for name, _ in driver.calls)


GPM_NAMES = (
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleAlloc",
    "nvmlGpmSampleFree",
    "nvmlGpmSampleGet",
    "nvmlGpmMetricsGet",
    "c_nvmlGpmMetricsGet_t",
    "NVML_GPM_METRICS_GET_VERSION",
    *GPM_METRICS,
)
SAMPLES_NAMES = (
    "nvmlDeviceGetSamples",
    "NVML_GPU_UTILIZATION_SAMPLES",
    "NVML_VALUE_TYPE_DOUBLE",
    "NVML_ERROR_NOT_FOUND",
)


@pytest.mark.parametrize("name", GPM_NAMES)
def test_a_binding_that_lacks_any_part_of_gpm_has_the_utilisation(watch: Watch, name: str) -> None:
    driver = FakeCounters(missing={name})
    watched = watch(driver)
    driver.samples = UTILISATION
    found = watched.after(1.0, 1.0)
    assert found and all(each.busy_share is not None for each in found)
    assert all(each.sm_share is None for each in found)
    assert (driver.buffers, watched.sampler.errors.count) == ([], 0)  # nothing unexpected


@pytest.mark.parametrize("name", SAMPLES_NAMES)
def test_a_binding_that_lacks_both_has_no_counters_and_all_else(watch: Watch, name: str) -> None:
    watched = watch(FakeCounters(missing={name}, has_gpm=False, samples=UTILISATION))
    assert watched.after(1.0, 1.0) == ()
    assert watched.sampler.sample()[0].utilisation == 0.93
    assert watched.sampler.errors.count == 0


@pytest.mark.parametrize("begun", [False, True], ids=["from the start", "in mid-run"])
@pytest.mark.parametrize("function", sorted(GPM_CALLS))
def test_an_error_nobody_foresaw_costs_only_these_counters(
    watch: Watch, function: str, begun: bool
) -> None:
    """Two GPUs; GPU 0's counters fail in a way that is no NVML error."""
    driver = FakeCounters()
    unforeseen = {(function, gpu): ValueError("not a pointer") for gpu in (0, 1)}
    if not begun:
        driver.unforeseen = unforeseen
    watched = watch(driver)
    driver.unforeseen, driver.samples = unforeseen, UTILISATION
    found = watched.after(1.0, 1.0)
    if begun and function == "nvmlGpmSampleAlloc":
        assert found and found[0].sm_share is not None  # it is not called again
        return
    assert [each.sm_share for each in found] == [None] * len(found)
    assert found and found[-1].busy_share is not None
    assert [gpu.utilisation for gpu in watched.sampler.sample()] == [0.93, 0.93]
    assert driver.buffers == []
    assert watched.sampler.errors.count == 1
    with pytest.raises(ValueError, match="not a pointer"):
        watched.sampler.errors.raise_next()
    watched.after(1.0, 1.0)
    watched.sampler.errors.raise_next()  # it was reported: nothing is raised again


def test_a_gpu_that_falls_off_the_bus_leaves_the_other_ones_counters(watch: Watch) -> None:
    driver = FakeCounters(percents={BUSY: 50.0})
    watched = watch(driver)
    watched.sampler.counted = None
    watched.after(0.25, 0.25)
    for function in (*GPM_CALLS, "nvmlDeviceGetSamples", *driver.answers):
        driver.errors[function, 0] = GPU_IS_LOST
    watched.clock.now_s += 0.25
    lost, alive = watched.sampler.sample()
    assert (lost.utilisation, lost.intervals) == (None, ())
    assert [each.busy_share for each in alive.intervals] == [0.5]
    assert watched.sampler.errors.count == 0


def test_a_gpu_without_any_counter_is_not_asked_again(watch: Watch) -> None:
    errors = {("nvmlDeviceGetSamples", 0): NOT_SUPPORTED}
    driver = FakeCounters(has_gpm=False, errors=errors)
    watched = watch(driver)
    assert watched.after(1.0) == ()
    driver.calls.clear()
    assert watched.after(1.0, 1.0, 1.0) == ()
    counting = GPM_CALLS | {"nvmlDeviceGetSamples", "nvmlGpmQueryDeviceSupport"}
    assert not any(name in counting for name, _ in driver.calls)


def test_buffers_are_given_back_at_the_end(watch: Watch) -> None:
    driver = FakeCounters()
    watched = watch(driver)
    assert len(driver.buffers) == 2
    watched.sampler.close()
    assert driver.buffers == []


def test_what_nobody_takes_is_bounded(watch: Watch) -> None:
    watched = watch(FakeCounters())
    assert len(watched.after(*[0.25] * (MAX_INTERVALS + 10))) == MAX_INTERVALS
