"""Appends what was seen of a step's layers to a file of the run: one line of JSON each.

A line is one write to the page cache, so that what was written survives the process. The names of
the layers are written once; the lines of steps refer to them by number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from traceml.model.environment import LAYERS
from traceml.trace.deep.layer_names import LayerName, ModelLayer
from traceml.trace.interruptions import is_interruption
from traceml.trace.session import Session

MAX_FILE_BYTES = 64 << 20
"""Of one process; after that the rest of the run adds nothing."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class LayerFile:
    """The writing end of a process's layers."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked child writes a file of its own."""
        self._file: int | None = None
        self._bytes = 0
        self._names: tuple[str, ...] = ()
        self._set = 0
        self.is_full = False

    def write(self, layers: Sequence[ModelLayer | LayerName], line: Mapping[str, Any]) -> None:
        """Write what was seen of these layers in a step."""
        names = tuple(layer.name for layer in layers)
        if names != self._names:
            self._names = names
            self._set += 1
            kinds = [layer.kind for layer in layers]
            of_torch = [place for place, layer in enumerate(layers) if layer.is_of_torch]
            self._append({"set": self._set, "names": names, "kinds": kinds, "of_torch": of_torch})
        self._append({"set": self._set, **line})

    def say(self, why: str) -> None:
        """Write why layers are not seen, or not all of them."""
        self._append({"why": why})

    def _append(self, line: Mapping[str, Any]) -> None:
        payload = _encode(line).encode(errors="replace") + b"\n"
        if self.is_full or self._bytes + len(payload) > MAX_FILE_BYTES:
            self.is_full = True
            return
        try:
            self._bytes += os.write(self._opened(), payload)
        except OSError as error:
            if is_interruption(error):
                raise
            self.is_full = True  # the disk is: what is there can be read

    def _opened(self) -> int:
        if self._file is None:
            path = self._session.run_folder / LAYERS.format(pid=os.getpid())
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
        return self._file


def by_place(values: Mapping[int, int], count: int) -> list[int]:
    """Values of layers as a list; a layer without one has none of it."""
    return [values.get(place, 0) for place in range(count)]
