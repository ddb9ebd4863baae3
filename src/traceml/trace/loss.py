"""The losses that gradients are asked for, read without ever waiting for the device.

On the host every loss is read: that takes less than a microsecond. On a CUDA device a loss is
copied into pinned memory now and then and read when it has arrived, and a reference to the last one
is kept, so that it can be read when the process ends. Under a `GradScaler` the loss is the one that
the script gave it, before it was scaled.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

import torch

from traceml.trace.compiling import is_compiling
from traceml.trace.gpu import on_stream
from traceml.trace.interruptions import drop_our_frames, is_interruption
from traceml.trace.recorder import IN_C
from traceml.trace.session import Session

SENT_EVERY_NS = 100_000_000
"""Sending for a loss on a CUDA device takes the host 30 to 60 µs: no more often than this …"""
GAP_GROWS_BY_NS = 3_000_000
"""… but the first losses without a gap, since many are lost there; each gap is so much longer than
the one before."""
MAX_UNREAD = 128
"""Losses after which it is asked whether the one that was sent for has come, if the gap is not over
before: of more than twice as many, `steps.losses` does not remember the step."""
MAX_KEPT_BYTES = 512
"""A loss that lies in larger memory (one of many numbers) is not kept: it would keep all of it."""
POLL_S = 0.001
GRAPH_TREES = "torch._inductor.cudagraph_trees"
"""Loaded where compiled code runs as CUDA graphs. Torch records a graph anew where what it returned
lives longer than it did before: there a copy of the loss is kept, and not the loss."""

_modes_watching: Any = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_function_modes: Any = getattr(torch._C, "_len_torch_function_stack", lambda: 0)
_Tensor = torch.Tensor
TENSOR_OF_TORCH: Any = torch.Tensor.__base__
"""It has the methods as torch has them: those of `Tensor` may be wrapped, by us too. (torch 2.1 has
another name for it.)"""
_item, _copy, _clone = TENSOR_OF_TORCH.item, TENSOR_OF_TORCH.copy_, TENSOR_OF_TORCH.clone
_detach, _numel = TENSOR_OF_TORCH.detach, TENSOR_OF_TORCH.numel
_device_of = TENSOR_OF_TORCH.get_device
_stream_number: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def show_torch_to_c() -> None:
    """Tell `recorder.c`, where it is built, which functions of torch's it may call."""
    if IN_C is not None:
        modes = torch.is_grad_enabled, _function_modes, _modes_watching
        on_device = _device_of, _detach, _stream_number, GRAPH_TREES
        IN_C.use_torch(_Tensor, *modes, _numel, _item, *on_device)


class _OnDevice:
    """What of CUDA's is kept between two backward passes, but for the last loss (`latest_loss` of
    the recorder), in one object.

    A forked child lets go of it whole: nothing in it may be touched there.
    """

    __slots__ = ("coming", "hosts", "marks", "unscaled")

    def __init__(self) -> None:
        self.hosts: dict[torch.dtype, torch.Tensor] = {}
        self.marks: dict[int, Any] = {}
        self.coming: tuple[torch.Tensor, Any, int] | None = None
        """Where a loss that was sent for arrives, the mark behind it, and its number."""
        self.unscaled: tuple[Any, torch.Tensor] | None = None
        """A reference to what a `GradScaler` made, and the loss that it was made from."""


class Losses:
    """Reads losses: on the host at once, on a CUDA device a step or more later."""

    def __init__(self, session: Session) -> None:
        self.on_device = _OnDevice()
        self._read_with_care = session.guard(self._loss_among)
        self._recorder = session.recorder
        self._stream: Any = None
        """The stream of the last loss."""
        self._sent = 0
        session.forgets.append(self.forget)

    def forget(self) -> None:
        """Begin anew in a forked child; the session keeps the parent's for ever (see `forked`)."""
        self.on_device = _OnDevice()
        self._sent = 0

    # What backward was called with

    def read(self, tensors: Any) -> float | int | None:
        """The loss among what `backward` was called with, if it is one number.

        One on a CUDA device comes later: an integer is its number, by which it is known then.
        A vector is no loss; of several tensors none is the loss. On a CUDA device only the first
        backward pass of a step is asked, so that the values are always of the same loss.
        """
        if (  # on the host, and nothing about it is special: in every step, so with few calls
            type(tensors) is _Tensor
            and tensors.is_cpu
            and not self._recorder.is_loss_scaled
            and not _modes_watching()
            and not _function_modes()
        ):
            return _number(tensors)
        kept = None if self._recorder.is_loss_scaled else self.keep(tensors)
        found: float | int | None = self._read_with_care(tensors) if kept is None else kept or None
        return found

    def keep(self, loss: Any) -> int | None:
        """The plain case on a CUDA device: keep a loss, in case it is the last, and no more.

        Its number; 0 where the step has one already, `None` where more is to be done. `recorder.c`
        does the same.
        """
        recorder = self._recorder
        if (
            type(loss) is not _Tensor
            or recorder.loss_number >= recorder.loss_due_number
            or perf_counter_ns() >= recorder.loss_due_ns
            or _function_modes()
            or _modes_watching()
            or GRAPH_TREES in sys.modules
        ):
            return None
        device, step = _device_of(loss), recorder.step_key()
        if device < 0 or device != recorder.loss_device:
            return None
        if step == recorder.loss_step:
            return 0
        if (
            _numel(loss) != 1
            or not loss.requires_grad  # so it holds a floating-point number, or a complex one …
            or loss._base is not None  # … and owns its memory
            or _stream_number(device) != recorder.loss_stream
        ):
            return None
        number = recorder.loss_number + 1
        recorder.latest_loss = _detach(loss), loss._version, number
        recorder.loss_number, recorder.loss_step = number, step
        return number

    def _loss_among(self, tensors: Any) -> float | int | None:
        if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
            tensors = tensors[0]
        # Subclasses may do anything when asked for their value: a DTensor communicates.
        if type(tensors) is not _Tensor or _modes_watching():
            return None
        if _function_modes():
            with torch._C.DisableTorchFunction():
                return self._read(tensors)
        return self._read(tensors)

    def _read(self, loss: torch.Tensor) -> float | int | None:
        if self._recorder.is_loss_scaled:
            loss = self._before_scaling(loss)
        if loss.is_cpu:
            return _number(loss)
        is_one = loss.is_cuda and loss.numel() == 1 and loss.is_floating_point()
        step_key = self._recorder.step_key()
        if not is_one or step_key == self._recorder.loss_step or _is_capturing():
            return None
        self._recorder.loss_step = step_key
        return self._await(loss)

    def _await(self, graph_loss: torch.Tensor) -> int:
        """Send for a loss if it is time to; else keep it, in case it is the last."""
        recorder, loss, now = self._recorder, graph_loss.detach(), perf_counter_ns()
        recorder.loss_number = awaited = recorder.loss_number + 1
        recorder.loss_due_number = awaited + MAX_UNREAD
        self._see_stream(loss.get_device())
        recorder.latest_loss = None
        if self.on_device.coming is None and now >= recorder.loss_due_ns:
            self._send_for(loss, awaited)
        elif _owns_its_memory(graph_loss):
            if GRAPH_TREES in sys.modules:
                loss = _clone(loss)
            recorder.latest_loss = loss, loss._version, awaited
        return awaited

    def _see_stream(self, device: int) -> None:
        """Know the current stream of a device, on which a loss is computed."""
        recorder, stream = self._recorder, _stream_number(device)
        if (device, stream) != (recorder.loss_device, recorder.loss_stream):
            recorder.loss_device, recorder.loss_stream = device, stream
            self._stream = torch.cuda.current_stream(device)

    def _send_for(self, loss: torch.Tensor, awaited: int) -> None:
        """Have a loss copied to the host, behind what its stream still has to do."""
        on_device, device = self.on_device, loss.get_device()
        host = on_device.hosts.get(loss.dtype)
        if host is None:
            host = torch.empty((), dtype=loss.dtype, device="cpu", pin_memory=True)
            on_device.hosts[loss.dtype] = host
        _copy(host, loss.reshape(()), True)  # without waiting
        mark = on_device.marks.get(device)
        if mark is None:
            mark = on_device.marks[device] = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch
        mark.record(self._stream)
        self._sent += 1
        gap_ns = min(SENT_EVERY_NS, self._sent * GAP_GROWS_BY_NS)
        self._recorder.loss_due_ns = perf_counter_ns() + gap_ns
        on_device.coming = host, mark, awaited

    def arrived(self) -> tuple[float, int] | None:
        """The loss that was sent for, once the device has got there."""
        coming = self.on_device.coming
        if coming is None or _is_capturing():
            return None
        host, mark, awaited = coming
        if not mark.query():
            return None
        self.on_device.coming = None
        return _item(host), awaited

    # The end of the process

    def read_last(self, until_s: float) -> Iterator[tuple[float, int]]:
        """What was sent for and the very last loss, as far as they come before a moment."""
        yield from self._wait(until_s)
        if self.on_device.coming is None and self._send_for_latest():
            yield from self._wait(until_s)

    def _send_for_latest(self) -> bool:
        """Whether the last loss was sent for: not where that could hold up the process's end."""
        latest, self._recorder.latest_loss = self._recorder.latest_loss, None
        if latest is None or _is_capturing():
            return False
        loss, version, awaited = latest
        # Changed in place since, or its memory on the host would have to be pinned first. (So no
        # complex number comes: of its kind none was ever sent for.)
        if loss._version != version or loss.dtype not in self.on_device.hosts:
            return False
        with on_stream(self._stream):
            self._send_for(loss, awaited)
        return True

    def _wait(self, until_s: float) -> Iterator[tuple[float, int]]:
        while self.on_device.coming is not None:
            arrived = self.arrived()
            if arrived is not None:
                yield arrived
            elif time.monotonic() >= until_s or _is_capturing():
                return
            else:
                time.sleep(POLL_S)

    # Scaled losses

    def keep_unscaled(self, loss: Any, scaled: Any) -> None:
        """A `GradScaler` made one tensor of another: what backward gets is the scaled one."""
        if type(loss) is torch.Tensor and scaled is not loss and loss.numel() == 1:
            self.on_device.unscaled = weakref.ref(scaled), loss.detach()
            self._recorder.is_loss_scaled = True

    def _before_scaling(self, loss: torch.Tensor) -> torch.Tensor:
        unscaled = self.on_device.unscaled
        if unscaled is None or unscaled[0]() is not loss:
            return loss
        self.on_device.unscaled = None
        self._recorder.is_loss_scaled = False
        return unscaled[1]


def watch_scaling(session: Session, losses: Losses) -> None:
    """Know the loss that a `GradScaler` scales."""
    scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    original, keep = scaler.scale, session.guard(losses.keep_unscaled)

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        try:
            scaled = original(self, outputs)
            if not is_compiling():
                keep(outputs, scaled)
            return scaled
        except BaseException as error:
            drop_our_frames(error)
            raise

    session.replace(scaler, "scale", scale)


def _owns_its_memory(loss: torch.Tensor) -> bool:
    """Whether keeping this loss keeps no more than a few numbers alive."""
    if loss._base is None and loss.requires_grad:
        return True  # no view: only of a tensor without a graph that cannot be told
    return loss.untyped_storage().nbytes() <= MAX_KEPT_BYTES


def number_on_host(loss: Any) -> float | None:
    """The value of a loss that lies on the host; `None` for one that would have to be waited for,
    and for what is no loss."""
    if _modes_watching() or _function_modes() or type(loss) is not _Tensor or not loss.is_cpu:
        return None
    return _number(loss)


def _number(tensor: torch.Tensor) -> float | None:
    """The value of a tensor on the host that holds one real number."""
    try:
        value = _item(tensor) if tensor.numel() == 1 else None
    except NotImplementedError as error:  # a sparse or nested tensor has none that torch gives
        if is_interruption(error):
            raise
        return None
    return value if type(value) is float else None


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured: it must see nothing of us."""
    return torch.cuda.is_current_stream_capturing()
