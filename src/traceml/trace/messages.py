"""Parameters, metrics and artifacts that a script logs: packed into the ring, never waited for."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from traceml.trace.interruptions import is_interruption

if TYPE_CHECKING:
    from traceml.trace.session import Session

MOST_NAMES = 1024
"""Metric names whose JSON form is kept at hand."""
MOST_PENDING = 4096
"""Logged GPU tensors whose values may be outstanding."""


def _plain(value: Any) -> Any:
    """A value as JSON knows it; anything else as its text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value)


def _number(value: Any) -> str | None:
    """A metric's value as strict JSON; what is not finite travels as text, what is none not."""
    if hasattr(value, "detach"):
        value = value.detach()  # torch warns of numbers taken from a graph
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if is_interruption(error):
            raise
        return None
    return repr(number) if isfinite(number) else f'"{number}"'


class Messages:
    """The writing end of a rank's messages."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
        self._names: dict[str, str] = {}
        self.forget()
        self.params = session.guard(self._params, any_thread=True)
        self.metrics = session.guard(self._metrics, any_thread=True)
        self.artifact = session.guard(self._artifact, any_thread=True)
        self.write = session.guard(self._write, any_thread=True)
        """For what the tracer itself has to say; its kind is in it."""

    def forget(self) -> None:
        """Begin anew: in a forked child the parent's lock may be held for ever."""
        self._lock = RLock()
        self._pending: list[tuple[int, int, str, Any, Any]] = []

    def _params(self, values: Mapping[str, Any]) -> None:
        self._write({"kind": "params", "values": _plain(values)})

    def _artifact(self, path: str | Path, name: str | None) -> None:
        where = Path(path).absolute()
        self._write({"kind": "artifact", "path": str(where), "name": str(name or where.name)})

    def _write(self, message: dict[str, Any]) -> None:
        self._put(self._encode(message).encode(errors="replace"))

    def _put(self, payload: bytes) -> None:
        ring = self._session.ring or self._session.open()
        if ring is None:
            return
        if len(payload) > ring.longest_message:
            raise ValueError(
                f"a logged message has {len(payload)} bytes, "
                f"more than the ring's {ring.longest_message}"
            )
        with self._lock:
            ring.write_message(payload)

    def _metrics(self, values: Mapping[str, Any], step: int | None) -> None:
        """Write metric values; those still on a GPU follow when they have arrived."""
        at = self._session.tracer.steps if step is None else int(step)
        now = time.time_ns()
        ready = []
        for name, value in values.items():
            if type(value) is float and isfinite(value):
                ready.append(f"{self._quoted(name)}:{value!r}")
            elif getattr(value, "is_cuda", False):
                self._fetch_later(at, now, str(name), value)
            elif (number := _number(value)) is not None:
                ready.append(f"{self._quoted(name)}:{number}")
            else:
                self._drop()
        if ready:
            self._write_metrics(at, now, ",".join(ready))

    def _drop(self) -> None:
        """Count a value that is no number: the user's slip, not a failure of ours."""
        ring = self._session.ring or self._session.open()
        if ring is not None:
            ring.count_dropped()

    def _quoted(self, name: str) -> str:
        """A metric's name in JSON; the same few names come again and again."""
        quoted = self._names.get(name)
        if quoted is None:
            if len(self._names) >= MOST_NAMES:
                self._names.clear()
            quoted = self._names[name] = self._encode(str(name))
        return quoted

    def _write_metrics(self, step: int, unix_ns: int, values: str) -> None:
        # Put together by hand: an encoder takes three times as long for five numbers.
        self._put(
            f'{{"kind":"metrics","step":{step},"unix_ns":{unix_ns},"values":{{{values}}}}}'.encode()
        )

    def _fetch_later(self, step: int, now: int, name: str, value: Any) -> None:
        import torch

        if len(self._pending) >= MOST_PENDING:
            raise ValueError(f"more than {MOST_PENDING} logged values wait for the GPU")
        host = torch.empty((), dtype=value.dtype, device="cpu", pin_memory=True)
        host.copy_(value.detach().reshape(()), non_blocking=True)
        mark: Any = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no types here
        mark.record()
        if not self._pending:
            self._session.tracer.looks.append(self.look)
        self._pending.append((step, now, name, host, mark))

    def look(self) -> None:
        """After each step, as long as any wait: write the values that came from the GPU."""
        pending = self._pending
        while pending and pending[0][4].query():
            step, now, name, host, _ = pending.pop(0)
            self._write_metrics(step, now, f"{self._quoted(name)}:{_number(host)}")
        if not pending:
            self._session.tracer.looks.remove(self.look)
