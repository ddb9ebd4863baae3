"""The loss that gradients are asked for, read without ever waiting for the device.

Under a `GradScaler` this is the scaled loss. Its scale lies on the device and changes now and then,
so the number is left as it is: its sign and whether it is finite are the loss's own, except that
a scaled loss in half precision may overflow where the loss does not.
"""

from __future__ import annotations

from typing import Any

import torch

from traceml.trace.session import Session

_modes_watching: Any = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


class Loss:
    """Reads losses: on the host at once, on a CUDA device a step or more later."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pid = 0
        self._hosts: dict[torch.dtype, torch.Tensor] = {}
        self._marks: dict[int, Any] = {}
        self.coming: tuple[torch.Tensor, Any] | None = None
        """Where a loss that was sent for arrives, and the mark behind it."""

    def read(self, tensors: Any) -> float | None:
        """The loss among what `backward` was called with, if it is one number and on the host.

        A vector is no loss; of several tensors none is the loss.
        """
        if isinstance(tensors, (list, tuple)) and len(tensors) == 1:
            tensors = tensors[0]
        # Subclasses may do anything when asked for their value: a DTensor communicates.
        if type(tensors) is not torch.Tensor or not _is_number(tensors) or _modes_watching():
            return None
        kind = tensors.device.type
        if kind == "cpu":
            return tensors.detach().item()  # detached: torch warns of numbers taken from a graph
        if kind == "cuda":
            self._send_for(tensors)
        return None

    def _send_for(self, loss: torch.Tensor) -> None:
        """Have a loss copied to the host, behind what the device still has to do."""
        if self.coming is not None or _is_capturing():
            return
        host, device = self._host(loss.dtype), loss.device.index
        host.copy_(loss.detach().reshape(()), non_blocking=True)
        mark = self._marks.get(device)
        if mark is None:
            mark = self._marks[device] = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch
        mark.record(torch.cuda.current_stream(device))
        self._pid = self._session.pid
        self.coming = host, mark

    def _host(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._hosts:
            self._hosts[dtype] = torch.empty((), dtype=dtype, device="cpu", pin_memory=True)
        return self._hosts[dtype]

    def arrived(self) -> float | None:
        """The loss that was sent for, once the device has got there."""
        if self.coming is None or _is_capturing():
            return None
        if self._pid != self._session.pid:  # the parent's, in a forked child
            self.coming = None
            return None
        host, mark = self.coming
        if not mark.query():
            return None
        self.coming = None
        return host.item()


def _is_number(tensor: torch.Tensor) -> bool:
    return tensor.numel() == 1 and tensor.is_floating_point()


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured: it must see nothing of us."""
    return torch.cuda.is_current_stream_capturing()
