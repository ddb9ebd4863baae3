"""Latency and throughput of a model, measured on request: warmed up, synchronised, in
percentiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch

from traceml.trace.verbs import log_metrics

DEFAULT_WARMUP = 10
"""Calls that are not timed: the first ones allocate, choose kernels, and compile."""
DEFAULT_CALLS = 100
MIN_CALLS = 5
"""Whose latency is measured, however long they take."""
DEFAULT_MAX_S = 10.0

now_ns: Callable[[], int] = perf_counter_ns


@dataclass(frozen=True, slots=True)
class InferenceTimes:
    """How long a model takes for a batch.

    A latency is from the call until the result is there, on the host's clock and with the device
    synchronised; throughput is of calls one after the other without waiting in between.
    """

    device: str
    calls: int
    batch_size: int | None
    """`None` where the batch holds no tensor with a dimension."""
    latency_mean_ms: float
    latency_p50_ms: float
    latency_p90_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    latency_min_ms: float
    latency_max_ms: float
    gpu_p50_ms: float | None
    """Of the same calls, by CUDA events on the GPU's clock; `None` without one GPU."""
    throughput_per_s: float | None
    """Samples a second, or calls where the batch size is not known."""

    def metrics(self, name: str = "inference") -> dict[str, float]:
        """The measured numbers as metrics: `inference/latency_p50_ms` and so on."""
        found = {
            key: getattr(self, key)
            for key in self.__dataclass_fields__
            if key.endswith(("_ms", "_per_s"))
        }
        return {f"{name}/{key}": value for key, value in found.items() if value is not None}


def time_inference(
    model: Any,
    batch: Any,
    *,
    name: str = "inference",
    warmup: int = DEFAULT_WARMUP,
    calls: int = DEFAULT_CALLS,
    max_s: float = DEFAULT_MAX_S,
    step: int | None = None,
) -> InferenceTimes:
    """Measure latency and throughput of a model for a batch, and log them as metrics of the run.

    The batch is passed as `model(batch)`, `model(*batch)` for a tuple or list, `model(**batch)` for
    a mapping. The model is called in evaluation mode and without gradients, and is afterwards in
    the mode it was in. The warm-up, the latency and the throughput may take a third of `max_s`
    seconds each and what is left of the one before; then no further call is begun, but a few are
    always made. Without a run nothing is logged.
    """
    if warmup < 0 or calls < 1 or not max_s > 0:
        raise ValueError(
            f"time_inference(warmup={warmup}, calls={calls}, max_s={max_s}): "
            "expected warmup >= 0, calls >= 1 and max_s > 0"
        )
    call = _call(model, batch)
    devices = _devices(model, batch)
    # Not `inference_mode()`: what a model keeps from a call, such as a table, could not be trained
    # with afterwards.
    with _evaluating(model), torch.no_grad():
        began_ns, third_ns = now_ns(), int(max_s * 1e9 / 3)
        _warm_up(call, devices, warmup, began_ns + third_ns)
        latencies_ms, gpu_ms = _latencies(call, devices, calls, began_ns + 2 * third_ns)
        per_s = _calls_per_s(call, devices, len(latencies_ms), began_ns + 3 * third_ns)
    size = _batch_size(batch)
    found = _times(latencies_ms, gpu_ms, per_s, size, devices)
    better = {key: key.endswith("_per_s") for key in found.metrics(name)}
    log_metrics(found.metrics(name), step, higher_is_better=better)
    return found


def _call(model: Any, batch: Any) -> Callable[[], Any]:
    if isinstance(batch, Mapping):
        return lambda: model(**batch)
    if isinstance(batch, (tuple, list)):
        return lambda: model(*batch)
    return lambda: model(batch)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode; afterwards each module is in the mode it was in."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [module.training for module in modules]
    try:
        if isinstance(model, torch.nn.Module):
            model.eval()
        yield
    finally:
        _set_back(list(zip(modules, modes, strict=True)))


def _set_back(modes: Sequence[tuple[torch.nn.Module, bool]]) -> None:
    """Put modules into the modes they were in, parents before what is in them.

    By `train()`, which a module may have made its own: LoRA's takes the weights apart again that
    `eval()` has merged.
    """
    for module, mode in modes:
        if module.training != mode:
            module.train(mode)
    for module, mode in modes:
        module.training = mode  # where `train()` is deaf, or another parent's has spoken since


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _tensors(inner)


def _devices(model: Any, batch: Any) -> list[torch.device]:
    """The devices that the model and the batch are on; the CPU where there is no tensor."""
    held: list[torch.Tensor] = []
    if isinstance(model, torch.nn.Module):
        held += [*model.parameters(), *model.buffers()]
    found = dict.fromkeys(tensor.device for tensor in (*held, *_tensors(batch)))
    on_device = [device for device in found if device.type != "cpu"]
    return on_device or [torch.device("cpu")]


def _synchronise(devices: Sequence[torch.device]) -> None:
    """Wait until the devices have nothing left to do."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()


def _warm_up(
    call: Callable[[], Any], devices: Sequence[torch.device], calls: int, until_ns: int
) -> None:
    for _ in range(calls):
        call()
        _synchronise(devices)
        if now_ns() >= until_ns:
            return


def _latencies(
    call: Callable[[], Any], devices: Sequence[torch.device], calls: int, until_ns: int
) -> tuple[list[float], list[float]]:
    """Each call by itself, in milliseconds: on the host's clock, and on that of the only GPU."""
    by_events = len(devices) == 1 and devices[0].type == "cuda"
    host_ms: list[float] = []
    gpu_ms: list[float] = []
    while len(host_ms) < calls:
        marks = _marks(devices[0]) if by_events else None
        start_ns = now_ns()
        if marks is not None:
            marks[0].record(torch.cuda.current_stream(devices[0]))
        call()
        if marks is not None:
            marks[1].record(torch.cuda.current_stream(devices[0]))
        _synchronise(devices)
        end_ns = now_ns()
        host_ms.append((end_ns - start_ns) * 1e-6)
        if marks is not None:
            gpu_ms.append(marks[0].elapsed_time(marks[1]))
        if end_ns >= until_ns and len(host_ms) >= MIN_CALLS:
            break
    return host_ms, gpu_ms


def _marks(device: torch.device) -> tuple[Any, Any]:
    event: Any = torch.cuda.Event
    with torch.cuda.device(device):
        return event(enable_timing=True), event(enable_timing=True)


def _calls_per_s(
    call: Callable[[], Any], devices: Sequence[torch.device], calls: int, until_ns: int
) -> float | None:
    """Calls a second, one after the other and without waiting; `None` where the clock is too
    coarse."""
    start_ns = now_ns()
    made = 0
    while made < calls:
        call()
        made += 1
        if now_ns() >= until_ns:
            break
    _synchronise(devices)
    took_ns = now_ns() - start_ns
    return made * 1e9 / took_ns if took_ns > 0 else None


def _batch_size(batch: Any) -> int | None:
    return next((int(tensor.shape[0]) for tensor in _tensors(batch) if tensor.dim()), None)


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile with linear interpolation between the two nearest values, as numpy's."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def _times(
    latencies_ms: Sequence[float],
    gpu_ms: Sequence[float],
    calls_per_s: float | None,
    batch_size: int | None,
    devices: Sequence[torch.device],
) -> InferenceTimes:
    return InferenceTimes(
        device=", ".join(map(str, devices)),
        calls=len(latencies_ms),
        batch_size=batch_size,
        latency_mean_ms=math.fsum(latencies_ms) / len(latencies_ms),
        latency_p50_ms=percentile(latencies_ms, 0.5),
        latency_p90_ms=percentile(latencies_ms, 0.9),
        latency_p95_ms=percentile(latencies_ms, 0.95),
        latency_p99_ms=percentile(latencies_ms, 0.99),
        latency_min_ms=min(latencies_ms),
        latency_max_ms=max(latencies_ms),
        gpu_p50_ms=percentile(gpu_ms, 0.5) if gpu_ms else None,
        throughput_per_s=None if calls_per_s is None else calls_per_s * (batch_size or 1),
    )
