"""Where the host waits for a CUDA device: reading a tensor's value, or asking to synchronise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from traceml.steps.events import SYNC
from traceml.trace.compiling import left_alone
from traceml.trace.copies import PLAIN_TENSORS
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.session import Session
from traceml.trace.spending import Spending

READS = ("item", "cpu", "tolist", "__float__", "__int__", "__bool__")
"""The methods of a tensor that need its value; `to` and `copy_` are among the copies."""


def watch(session: Session, spending: Spending) -> None:
    """Time what waits for the device."""
    # A user's own kind of tensor may do anything when asked where it is.
    is_on_device = session.guard(lambda tensor: tensor.is_cuda, any_thread=True)
    for name in READS:
        read = getattr(torch.Tensor, name)
        timed = _timed_on_device(read, spending.timed(SYNC, read), is_on_device)
        session.replace(torch.Tensor, name, timed)
    for owner in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
        wait = spending.timed(SYNC, owner.synchronize)
        session.replace(owner, "synchronize", wait)


def _timed_on_device(
    read: Callable[..., Any], timed: Callable[..., Any], is_on_device: Callable[[Any], Any]
) -> Callable[..., Any]:
    @functools.wraps(read)
    def value(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            # First what a tensor on the host may cost at most.
            if type(self) in PLAIN_TENSORS:
                if not self.is_cuda:
                    return read(self, *arguments, **options)
            elif not is_on_device(self):
                return read(self, *arguments, **options)
            return timed(self, *arguments, **options)
        except BaseException as error:
            drop_our_frames(error)
            raise

    return left_alone(value)
