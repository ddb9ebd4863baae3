"""Parameters, metrics and artifacts that a script logs: packed into the ring, never waited for."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceml.trace.session import Session

MOST_PENDING = 4096
"""Logged GPU tensors whose values may be outstanding."""


def _plain(value: Any) -> Any:
    """A value as JSON knows it; anything else as its text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value)


def _number(value: Any) -> Any:
    """A metric's value as strict JSON; what is not finite travels as text."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


class Messages:
    """The writing end of a rank's messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
        self.forget()
        self.send = session.guard(self._send, any_thread=True)
        self.metrics = session.guard(self._metrics, any_thread=True)
        session.at_step.append(self.look)

    def forget(self) -> None:
        """Begin anew: in a forked child the parent's lock may be held for ever."""
        self._lock = RLock()
        self._pending: list[tuple[int, int, str, Any, Any]] = []

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        """Write one message, whatever the user put into it."""
        self._write(kind, _plain(content))

    def _write(self, kind: str, content: dict[str, Any]) -> None:
        ring = self._session.open()
        if ring is None:
            return
        payload = self._encode({"kind": kind, **content}).encode(errors="replace")
        if len(payload) > ring.longest_message:
            raise ValueError(
                f"a logged {kind} message has {len(payload)} bytes, "
                f"more than the ring's {ring.longest_message}"
            )
        with self._lock:
            ring.write_message(payload)

    def _metrics(self, values: Mapping[str, Any], step: int | None) -> None:
        """Write metric values; those still on a GPU follow when they have arrived."""
        at = self._session.tracer.steps if step is None else int(step)
        now = time.time_ns()
        ready = {}
        for name, value in values.items():
            if getattr(value, "is_cuda", False):
                self._fetch_later(at, now, str(name), value)
            else:
                ready[str(name)] = _number(value)
        if ready:
            self._write("metrics", {"step": at, "unix_ns": now, "values": ready})

    def _fetch_later(self, step: int, now: int, name: str, value: Any) -> None:
        import torch

        if len(self._pending) >= MOST_PENDING:
            raise ValueError(f"more than {MOST_PENDING} logged values wait for the GPU")
        host = torch.empty((), dtype=value.dtype, pin_memory=True)
        host.copy_(value.detach().reshape(()), non_blocking=True)
        mark: Any = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no types here
        mark.record()
        self._pending.append((step, now, name, host, mark))

    def look(self) -> None:
        """After each step: write the values that have arrived from the GPU."""
        pending = self._pending
        while pending and pending[0][4].query():
            step, now, name, host, _ = pending.pop(0)
            values = {name: _number(host)}
            self._write("metrics", {"step": step, "unix_ns": now, "values": values})
