"""Where the host waits for a CUDA device: reading a tensor's value, or asking to synchronise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from traceml.trace.compiling import left_alone
from traceml.trace.session import Session
from traceml.trace.spending import Spending
from traceml.trace.steps import SYNC

READS = ("item", "cpu", "tolist", "__float__", "__int__", "__bool__")
"""The methods of a tensor that need its value; `to` and `copy_` are among the copies."""


def watch(session: Session, spending: Spending) -> None:
    """Time what waits for the device."""
    for name in READS:
        read = getattr(torch.Tensor, name)
        session.replace(torch.Tensor, name, _timed_on_device(read, spending.timed(SYNC, read)))
    for owner in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
        wait = spending.timed(SYNC, owner.synchronize)
        session.replace(owner, "synchronize", wait)


def _timed_on_device(read: Callable[..., Any], timed: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(read)
    def value(self: Any, *arguments: Any, **options: Any) -> Any:
        if not self.is_cuda:  # first: it is all that a tensor on the host may cost
            return read(self, *arguments, **options)
        return timed(self, *arguments, **options)

    return left_alone(value)
