"""GPUs through NVML: a fake driver at the edge, the real binding where it needs no GPU."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fake_nvml import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPM_METRICS,
    GPU_IS_LOST,
    NEW_READER,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    FakeCounters,
    FakeDriver,
)
from traceml.agent.gpus import REASON_READERS, REASONS, GpuSampler, throttle_words
from traceml.model.sample import GpuSample

Install = Callable[[FakeDriver], GpuSampler]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    def install(driver: FakeDriver) -> GpuSampler:
        monkeypatch.setitem(sys.modules, "pynvml", driver.module())
        return GpuSampler()

    return install


def healthy(index: int) -> GpuSample:
    return GpuSample(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H200",
        utilisation=0.93,
        memory_used_bytes=index + 7,
        memory_total_bytes=100,
        temperature_c=61.0,
        power_w=512.345,
        power_limit_w=700.0,
        sm_clock_mhz=1755.0,
        sm_clock_max_mhz=1980.0,
        throttle_reasons=("power cap",),
    )


def test_every_gpu_of_the_node(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver = FakeDriver()
    sampler = install(driver)
    assert driver.opened == 0  # nothing before it is needed
    assert sampler.sample() == (healthy(0), healthy(1))
    assert sampler.sample() == (healthy(0), healthy(1))
    assert driver.opened == 1


def replaced(sample: GpuSample, **values: Any) -> GpuSample:
    names = GpuSample.__dataclass_fields__
    return GpuSample(**{**{name: getattr(sample, name) for name in names}, **values})


@pytest.mark.parametrize(
    ("function", "unknown"),
    [
        ("nvmlDeviceGetUtilizationRates", ["utilisation"]),
        ("nvmlDeviceGetMemoryInfo", ["memory_used_bytes", "memory_total_bytes"]),
        ("nvmlDeviceGetTemperature", ["temperature_c"]),
        ("nvmlDeviceGetPowerUsage", ["power_w"]),
        ("nvmlDeviceGetEnforcedPowerLimit", ["power_limit_w"]),
        ("nvmlDeviceGetClockInfo", ["sm_clock_mhz"]),
        ("nvmlDeviceGetMaxClockInfo", ["sm_clock_max_mhz"]),
        (NEW_READER, ["throttle_reasons"]),
    ],
)
def test_unsupported_sensor_is_none_and_the_others_stay(
    install: Install, function: str, unknown: list[str]
) -> None:
    driver = FakeDriver(errors={(function, 0): NOT_SUPPORTED})
    expected = replaced(healthy(0), **dict.fromkeys(unknown))
    assert install(driver).sample() == (expected, healthy(1))


@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo"])
@pytest.mark.parametrize("how", ["a binding without it", "an answer that cannot be read"])
def test_a_sensor_that_fails_unexpectedly_is_none_and_told_once(
    install: Install, function: str, how: str
) -> None:
    driver = FakeDriver()
    if how == "a binding without it":
        driver.missing = {function}
    else:
        driver.unforeseen = {(function, gpu): TypeError("no structure") for gpu in (0, 1)}
    sampler = install(driver)
    power = function == "nvmlDeviceGetPowerUsage"
    unknown = ["power_w"] if power else ["memory_used_bytes", "memory_total_bytes"]
    expected = tuple(replaced(healthy(gpu), **dict.fromkeys(unknown)) for gpu in (0, 1))
    assert sampler.sample() == sampler.sample() == expected
    assert sampler.errors.count == 4
    with pytest.raises((AttributeError, TypeError)):
        sampler.errors.raise_next()
    sampler.errors.raise_next()


def with_processes(*busy: tuple[int, int], on_it: Sequence[int] = ()) -> FakeDriver:
    """A driver that tells of processes on GPU 0, and how busy each keeps it, in percent."""
    driver = FakeDriver()
    driver.answers["nvmlDeviceGetComputeRunningProcesses"] = lambda gpu: [
        SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in (on_it if gpu == 0 else [])
    ]
    driver.answers["nvmlDeviceGetProcessUtilization"] = lambda _: [
        SimpleNamespace(pid=pid, timeStamp=5_000_000 + number, smUtil=percent)
        for number, (pid, percent) in enumerate(busy)
    ]
    return driver


OWN = frozenset({11, 12, 13})


@pytest.mark.parametrize(
    ("driver", "share"),
    [
        pytest.param(with_processes((11, 90), on_it=[11]), 0.0, id="the run alone"),
        pytest.param(with_processes((11, 60), (70, 30), on_it=[11, 70]), 0.3, id="another one"),
        pytest.param(with_processes((70, 30), (71, 20), on_it=[12, 70, 71]), 0.5, id="two others"),
        pytest.param(with_processes((70, 30), (70, 10), on_it=[12, 70]), 0.2, id="told twice"),
        pytest.param(with_processes((11, 90), on_it=[11, 70]), 0.0, id="another one is idle"),
        pytest.param(with_processes((70, 90), (71, 90), on_it=[11, 70, 71]), 1.0, id="overlapping"),
        pytest.param(with_processes((70, 90), on_it=[70, 71]), None, id="numbers of a namespace"),
        pytest.param(with_processes((70, 90)), None, id="no process is named"),
    ],
)
def test_how_busy_other_processes_keep_a_gpu(
    install: Install, driver: FakeDriver, share: float | None
) -> None:
    found = install(driver).sample(OWN)
    assert found[0].other_busy_share == (None if share is None else pytest.approx(share))
    assert found[1].other_busy_share is None


def test_only_what_is_new_is_asked_for(install: Install) -> None:
    driver, asked = with_processes((70, 30), on_it=[11, 70]), []
    module = driver.module()
    told = module.nvmlDeviceGetProcessUtilization

    def note(gpu: int, since_us: int) -> Any:
        asked.append(since_us)
        return told(gpu, since_us)

    sampler = install(driver)
    sys.modules["pynvml"].nvmlDeviceGetProcessUtilization = note  # type: ignore[attr-defined]
    sampler.sample(OWN)
    sampler.sample(OWN)
    assert asked == [0, 5_000_000]


@pytest.mark.parametrize(("error", "share"), [(NOT_FOUND, 0.0), (NOT_SUPPORTED, None)])
def test_a_driver_that_does_not_tell_of_processes(
    install: Install, error: int, share: float | None
) -> None:
    """It finds nothing where nobody has computed."""
    driver = with_processes(on_it=[11, 70])
    driver.errors["nvmlDeviceGetProcessUtilization", 0] = error
    sampler = install(driver)
    assert sampler.sample(OWN)[0].other_busy_share == share
    assert sampler.errors.count == 0


def test_a_gpu_whose_name_cannot_be_read_leaves_the_others(install: Install) -> None:
    driver = FakeDriver()
    driver.answers["nvmlDeviceGetName"] = lambda gpu: b"\xff" if gpu == 0 else b"NVIDIA H200"
    sampler = install(driver)
    assert sampler.sample() == (healthy(1),)
    assert sampler.errors.count == 1


def test_memory_that_nvml_marks_as_not_available(install: Install) -> None:
    driver = FakeDriver()
    driver.answers["nvmlDeviceGetMemoryInfo"] = lambda _: SimpleNamespace(used=2**64 - 1, total=100)
    sample = install(driver).sample()[0]
    assert (sample.memory_used_bytes, sample.memory_total_bytes) == (None, 100)


def test_lost_gpu_keeps_its_place_and_is_asked_no_more(install: Install) -> None:
    driver = FakeDriver()
    sampler = install(driver)
    sampler.sample()
    driver.errors["nvmlDeviceGetTemperature", 0] = GPU_IS_LOST
    lost = GpuSample(index=0, uuid="GPU-0", name="NVIDIA H200")
    assert sampler.sample() == (lost, healthy(1))
    driver.calls.clear()
    assert sampler.sample() == (lost, healthy(1))
    assert {gpu for _, gpu in driver.calls} == {1}


def test_gpu_that_cannot_be_opened_leaves_the_others(install: Install) -> None:
    driver = FakeDriver(errors={("nvmlDeviceGetHandleByIndex", 0): GPU_IS_LOST})
    assert install(driver).sample() == (healthy(1),)


def test_names_in_bytes_from_older_bindings(install: Install) -> None:
    driver = FakeDriver()
    driver.answers["nvmlDeviceGetUUID"] = lambda gpu: f"GPU-{gpu}".encode()
    driver.answers["nvmlDeviceGetName"] = lambda _: b"NVIDIA H200"
    assert install(driver).sample() == (healthy(0), healthy(1))


@pytest.mark.parametrize(
    ("driver", "reasons"),
    [
        pytest.param(FakeDriver(), ("power cap",), id="new name"),
        pytest.param(FakeDriver(missing={NEW_READER}), ("thermal",), id="older binding"),
        pytest.param(
            FakeDriver(errors=dict.fromkeys([(NEW_READER, 0), (NEW_READER, 1)], 13)),
            ("thermal",),
            id="older driver",
        ),
        pytest.param(FakeDriver(missing=set(REASON_READERS)), None, id="neither name"),
    ],
)
def test_throttle_reasons_by_either_name(
    install: Install, driver: FakeDriver, reasons: tuple[str, ...] | None
) -> None:
    sampler = install(driver)
    for _ in range(2):
        assert [gpu.throttle_reasons for gpu in sampler.sample()] == [reasons, reasons]


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, ()),
        (0x1, ("idle",)),
        (0x4 | 0x20, ("power cap", "thermal")),
        (0x8 | 0x40, ("hw slowdown", "thermal")),
        (0x20 | 0x40, ("thermal",)),
        (0x80, ("power brake",)),
        (0x4 | 1 << 40, ("power cap", "other")),
    ],
)
def test_throttle_words(bits: int, words: tuple[str, ...]) -> None:
    assert throttle_words(bits) == words


@pytest.mark.parametrize(
    ("driver", "closed"),
    [
        pytest.param(FakeDriver(init_error=DRIVER_NOT_LOADED), 0, id="no driver"),
        pytest.param(FakeDriver(count_error=DRIVER_NOT_LOADED), 1, id="driver unloaded since"),
    ],
)
def test_driver_that_fails_is_no_gpus_and_not_tried_again(
    install: Install, driver: FakeDriver, closed: int
) -> None:
    sampler = install(driver)
    assert sampler.sample() == sampler.sample() == ()
    sampler.close()
    assert (driver.opened, driver.closed) == (1, closed)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = GpuSampler()
    assert sampler.sample() == ()
    sampler.close()


@pytest.mark.parametrize("error", [None, DRIVER_NOT_LOADED], ids=["clean", "driver gone"])
def test_closed_sampler_is_empty(install: Install, error: int | None) -> None:
    driver = FakeDriver(shutdown_error=error)
    sampler = install(driver)
    sampler.sample()
    sampler.close()
    sampler.close()
    assert sampler.sample() == ()
    assert (driver.opened, driver.closed) == (1, 1)


def test_importing_the_sampler_does_not_import_nvml() -> None:
    code = "import sys; sys.path[:] = sys.argv[1:]; import traceml.agent.gpus as _;"
    code += "print('pynvml' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code, *sys.path], capture_output=True, text=True)
    assert answer.stdout.split() == ["False"]


def test_the_fake_speaks_as_the_real_binding_does() -> None:
    real = importlib.import_module("pynvml")
    fake = FakeCounters().module()
    ours = [name for name in vars(fake) if not name.startswith("_")]
    assert [name for name in ours if not hasattr(real, name)] == []
    for name in ("NVML_CLOCK_SM", "NVML_TEMPERATURE_GPU", "NVML_ERROR_GPU_IS_LOST"):
        assert getattr(fake, name) == getattr(real, name)
    assert real.NVML_ERROR_FUNCTION_NOT_FOUND == FUNCTION_NOT_FOUND
    errors = (real.NVML_ERROR_NOT_SUPPORTED, real.NVML_ERROR_NO_PERMISSION)
    assert errors == (NOT_SUPPORTED, NO_PERMISSION)
    assert real.NVML_ERROR_NOT_FOUND == NOT_FOUND
    assert {name: getattr(real, name) for name in GPM_METRICS} == GPM_METRICS
    asked = real.c_nvmlGpmMetricsGet_t()
    for name in vars(fake.c_nvmlGpmMetricsGet_t()):
        assert hasattr(asked, name)
    assert {name for name, *_ in fake.c_nvmlGpmMetricsGet_t().metrics[0]._fields_} <= {
        name for name, *_ in asked.metrics[0]._fields_
    }
    utilisation = (real.NVML_GPU_UTILIZATION_SAMPLES, real.NVML_VALUE_TYPE_DOUBLE)
    assert utilisation == (fake.NVML_GPU_UTILIZATION_SAMPLES, fake.NVML_VALUE_TYPE_DOUBLE)
    assert real.NVMLError(GPU_IS_LOST).value == GPU_IS_LOST
    assert real.nvmlClocksThrottleReasonAll == sum(bit for bit, _ in REASONS)


def has_nvml() -> bool:
    real = importlib.import_module("pynvml")
    try:
        real.nvmlInit()
    except real.NVMLError:
        return False
    real.nvmlShutdown()
    return True


@pytest.mark.skipif(has_nvml(), reason="this machine has an NVIDIA driver")
def test_real_binding_without_a_driver() -> None:
    sampler = GpuSampler()
    assert sampler.sample() == ()
    sampler.close()


@pytest.mark.gpu
@pytest.mark.skipif(not has_nvml(), reason="this machine has no NVIDIA driver")
def test_real_gpus() -> None:
    sampler = GpuSampler()
    gpus = sampler.sample()
    sampler.close()
    assert gpus
    for gpu in gpus:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.utilisation is None or 0 <= gpu.utilisation <= 1
        assert gpu.memory_used_bytes is not None
        assert gpu.memory_total_bytes is not None
        assert gpu.memory_used_bytes <= gpu.memory_total_bytes
        assert gpu.power_w is None or gpu.power_w < 5000
