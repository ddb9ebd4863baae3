"""Copies between host and device: those to the device are a phase, those from it are waits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from traceml.steps.events import BEGIN, END, H2D, SYNC
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.recorder import Recorder
from traceml.trace.session import Session
from traceml.trace.spending import Spending

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
"""The kinds of tensors whose attributes run no code of anybody else's."""

BESIDE = -1
"""A copy to the device that is no phase of the loop."""

_GPU_KINDS = ("cuda", "mps")
_NAMES_OF_DEVICES = (torch.device, str, int)


def watch(session: Session, spending: Spending) -> None:
    """Time the methods of tensors that copy from device to device."""
    for name, direction in WAYS.items():
        function = getattr(torch.Tensor, name)
        begin = session.recorder.shortcut(f"begin_{name}", _beginning(session, direction))
        waits = spending.timed(SYNC, function)
        session.replace(torch.Tensor, name, _timed(session, function, begin, waits))


def _beginning(session: Session, direction: Callable[..., Any]) -> Callable[..., Any]:
    """What is called as a method of a tensor begins: tells what the copy is, if it is one."""
    recorder = session.recorder
    begin_phase = session.guard_step(lambda _: _begin(recorder))
    # A user's own kind of tensor may do anything when asked for its device.
    ask_safely = session.guard(direction, any_thread=True)

    def begin(tensor: Any, arguments: Any, options: Any) -> int | None:
        ask = direction if type(tensor) in PLAIN_TENSORS else ask_safely
        cause: int | None = ask(tensor, arguments, options)
        if cause != H2D:
            return cause
        target = arguments[0] if arguments else options.get("device")
        if type(target) in _NAMES_OF_DEVICES:
            recorder.copy_target = target  # the same object will mean the same device
        return H2D if begin_phase(None) else BESIDE

    return begin


def _timed(
    session: Session,
    function: Callable[..., Any],
    begin: Callable[..., Any],
    waits: Callable[..., Any],
) -> Callable[..., Any]:
    note = session.recorder.shortcut("note", session.guard(session.recorder.note))

    @functools.wraps(function)
    def copy(self: Any, *arguments: Any, **options: Any) -> Any:
        if is_compiling():
            return function(self, *arguments, **options)
        cause: int | None = None
        try:
            cause = begin(self, arguments, options)
            if cause == H2D:
                try:
                    return function(self, *arguments, **options)
                finally:
                    note(END, H2D)
            if cause == SYNC:
                return waits(self, *arguments, **options)
            return function(self, *arguments, **options)
        except BaseException as error:
            if cause in (H2D, BESIDE):
                session.failures.note("h2d")
            drop_our_frames(error)
            raise

    return left_alone(copy)


def _begin(recorder: Recorder) -> bool:
    """Whether a phase begins: not where a copy goes over a stream of its own, beside what the
    loop's stream does."""
    is_aside = recorder.gpu is not None and not recorder.gpu.is_on_its_stream()
    if not is_aside:
        recorder.note(BEGIN, H2D)
    return not is_aside


def _way(source: Any, target: str, arguments: Any, options: Any) -> int | None:
    """What a copy of a tensor to a kind of device is: a phase, a wait, or of no interest."""
    if target in _GPU_KINDS:
        return H2D if source.is_cpu else None
    if target == "cpu" and source.is_cuda and not _is_non_blocking(arguments, options):
        return SYNC
    return None


def _is_non_blocking(arguments: Any, options: Any) -> bool:
    """Whether the host goes on at once; among positional arguments it is the first flag."""
    flags = (argument for argument in arguments if type(argument) is bool)
    return bool(options.get("non_blocking", next(flags, False)))


def _way_of_cuda(tensor: Any, arguments: Any, options: Any) -> int | None:
    return H2D if tensor.is_cpu else None


def _way_of_to(tensor: Any, arguments: Any, options: Any) -> int | None:
    target = arguments[0] if arguments else options.get("device")
    if type(target) is torch.device:
        kind = target.type
    elif type(target) is str:
        kind = target.partition(":")[0]
    elif type(target) is int:
        kind = "cuda"
    elif isinstance(target, torch.Tensor):
        kind = target.device.type
    else:
        return None
    return _way(tensor, kind, arguments, options)


def _way_of_copy(tensor: Any, arguments: Any, options: Any) -> int | None:
    source = arguments[0] if arguments else options.get("other")
    if not isinstance(source, torch.Tensor):
        return None
    return _way(source, tensor.device.type, arguments, options)


WAYS: dict[str, Callable[[Any, Any, Any], int | None]] = {
    "to": _way_of_to,
    "cuda": _way_of_cuda,
    "copy_": _way_of_copy,
}
"""The methods of tensors that copy, and what tells which way."""
