"""Steps in which what each layer holds and keeps is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from traceml.trace.deep.layer_file import LayerFile, by_place
from traceml.trace.deep.layer_memory import (
    ReadAllocator,
    SavedTensors,
    can_count_saved,
    has_marked_parameters,
    held_bytes,
)
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.session import Session

MARKED = (
    "parameters of this model have attributes of their own, which functions may want back in the "
    "backward pass: what layers keep for it was not counted"
)


class MemorySteps:
    """Looks at the memory of layers."""

    def __init__(
        self, session: Session, file: LayerFile, optimizers: Callable[[], Sequence[Any]]
    ) -> None:
        self._session, self._file, self._optimizers = session, file, optimizers
        self._saved: SavedTensors | None = None
        self._has_said = False
        self._layers: Sequence[ModelLayer] = ()

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Count what the layers keep in the step that begins."""
        if not can_count_saved():
            return False
        if has_marked_parameters(layers):
            if not self._has_said:
                self._file.say(MARKED)
                self._has_said = True
            return False
        self._layers = layers
        self._saved = SavedTensors(self._session, layers, _allocator(self._session))
        self._saved.begin()
        return True

    def end(self, step: int) -> bool:
        """The step has ended; whether it was seen to its end."""
        saved = self._saved
        if saved is None:
            return False
        if saved.end():
            count = len(self._layers)
            line: dict[str, Any] = {"step": step}
            line |= held_bytes(self._layers, self._optimizers())._asdict()
            line["saved"] = by_place(saved.saved_bytes, count)
            if saved.peak_bytes:
                line["peak"] = by_place(saved.peak_bytes, count)
            self._file.write(self._layers, line)
        return not saved.was_evaluated

    def tell_held(self, layers: Sequence[ModelLayer], step: int) -> None:
        """Write what the layers hold by now."""
        self._file.write(layers, {"step": step} | held_bytes(layers, self._optimizers())._asdict())

    def take_out(self) -> bool:
        """Take everything out of torch; whether nothing of it is left there."""
        if self._saved is not None:
            self._saved.end()
            if not self._saved.is_out:
                return False
            self._saved = None
        self._layers = ()
        return True


def _allocator(session: Session) -> ReadAllocator | None:
    if session.recorder.gpu is None:
        return None
    index = int(session.device.rpartition(":")[2])
    read = torch._C._cuda_memoryStats

    def read_allocated() -> tuple[int, int]:
        allocated = read(index)["allocated_bytes"]["all"]
        return allocated["current"], allocated["peak"]

    return read_allocated
