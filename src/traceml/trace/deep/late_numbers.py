"""Numbers that a device computes and the host reads some steps later, without waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, NamedTuple

import torch

from traceml.trace.failure import ended_by_device_error
from traceml.trace.forked import keep_for_ever
from traceml.trace.gpu import current_stream, on_stream

MAX_COMING = 4
"""Rows on their way from the device; with more of them, no further one is sent for."""
LAST_WAIT_S = 0.05
"""How long the end of the process may be held up for the GPU."""


class _Coming(NamedTuple):
    """A row of numbers on its way."""

    about: Any
    host: torch.Tensor
    mark: Any
    """The CUDA event behind the copy; `None` for numbers that are on the host already."""


class LateNumbers:
    """Rows of numbers, each with what it is about; the first sent is the first to come."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child, which has neither CUDA events nor pinned memory."""
        self._coming: deque[_Coming] = deque()
        self._free: deque[torch.Tensor] = deque(maxlen=MAX_COMING)
        """Pinned memory to use again."""

    @property
    def has_room(self) -> bool:
        """Whether one more row may be sent for."""
        return len(self._coming) < MAX_COMING

    @property
    def is_expecting(self) -> bool:
        """Whether a row is on its way."""
        return bool(self._coming)

    def send_for(self, about: Any, numbers: torch.Tensor, stream: Any = None) -> None:
        """Have a row of float32 copied to the host, behind what its stream still has to do.

        The stream is the one on which it was computed; by default the current one.
        """
        if numbers.is_cpu:
            self._coming.append(_Coming(about, numbers, None))
        elif numbers.is_cuda:  # of no other device is it known how not to wait for it
            with on_stream(stream or current_stream(numbers)):
                if not torch.cuda.is_current_stream_capturing():
                    self._coming.append(_Coming(about, *self._copied(numbers)))

    def _copied(self, numbers: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Where the numbers arrive, and the mark behind them on the current stream."""
        host = self._free_row(len(numbers))
        if host is None:
            host = torch.empty(len(numbers), pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch
        mark.record()
        return host, mark

    def _free_row(self, length: int) -> torch.Tensor | None:
        """A row of that length that nothing is on its way to."""
        for place, row in enumerate(self._free):
            if len(row) == length:
                del self._free[place]
                return row
        return None

    def arrived(self) -> Iterator[tuple[Any, list[float]]]:
        """The rows that have come by now, each with what it is about."""
        while self._coming and _is_there(self._coming[0]):
            come = self._coming.popleft()
            values: list[float] = come.host.tolist()
            if come.mark is not None:
                self._free.append(come.host)
            yield come.about, values

    def wait(self) -> None:
        """The process ends: wait a moment for the device, unless it has failed."""
        if ended_by_device_error():
            keep_for_ever(self)  # pinned memory that is freed asks the device
            self._coming = deque(row for row in self._coming if row.mark is None)
        deadline = monotonic() + LAST_WAIT_S
        while self._coming and not _is_there(self._coming[-1]) and monotonic() < deadline:
            sleep(0.001)


def _is_there(row: _Coming) -> bool:
    return row.mark is None or bool(row.mark.query())


def can_compute() -> bool:
    """Whether a computation of ours is nobody else's business: no CUDA graph is being captured,
    neither a mode of the script's nor a profiler sees every operation, and no function transform
    (`torch.func`) does, whose tensors are plain ones by their type alone."""
    is_profiled = torch.autograd._profiler_enabled()  # type: ignore[attr-defined] # of C
    is_watched = bool(torch._C._len_torch_dispatch_stack() or is_profiled or _is_transformed())
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch
    return not is_watched and not (on_gpu and torch.cuda.is_current_stream_capturing())


def _is_transformed() -> bool:
    """Whether a function transform is at work, such as `torch.func.vmap`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


@contextmanager
def computing_apart() -> Iterator[None]:
    """In here operations are ours alone: no graph, and no function mode of the script's."""
    with torch._C.DisableTorchFunction(), torch.no_grad():  # a mode sees `no_grad` itself, too
        yield


HALF = (torch.float16, torch.bfloat16)


def sum_type(dtype: torch.dtype) -> torch.dtype | None:
    """In which type to take the norm of numbers of a type: the squares of half-precision ones
    overflow in their own."""
    return torch.float32 if dtype in HALF else None


def plain_numbers(thing: Any) -> torch.Tensor | None:
    """A tensor as this rank holds it, if it is made of plain numbers; of complex ones, their
    parts."""
    local = getattr(thing, "_local_tensor", thing)
    if type(local) not in (torch.Tensor, torch.nn.Parameter) or not local.numel():
        return None
    if local.layout != torch.strided or local.is_meta:
        return None
    if local.is_complex():
        return torch.view_as_real(local.detach().resolve_conj())
    return local.detach() if local.is_floating_point() else None


NOT_FINITE = -1.0
"""What the file has in place of a norm that is infinite or not a number."""


def for_file(norm: float | None) -> float | None:
    """A norm as the file has it, with five digits; JSON has no infinity."""
    if norm is None:
        return None
    is_finite = abs(norm) < float("inf")  # not so for NaN
    return float(f"{norm:.5g}") if is_finite else NOT_FINITE
