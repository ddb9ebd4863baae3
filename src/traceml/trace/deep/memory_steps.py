"""Steps in which what each layer holds and keeps is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from traceml.trace.deep.kept_tensors import KeptTensors
from traceml.trace.deep.layer_file import LayerFile, by_place
from traceml.trace.deep.layer_memory import (
    MemoryNow,
    ReadMemory,
    SavedTensors,
    held_bytes,
)
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.loss_and_memory_sampler import resident_bytes
from traceml.trace.session import Session

NOT_MEASURED = -1
"""In the file, in place of a layer's bytes."""


class MemorySteps:
    """Looks at the memory of layers."""

    def __init__(
        self,
        session: Session,
        file: LayerFile,
        kept: KeptTensors,
        optimizers: Callable[[], Sequence[Any]],
    ) -> None:
        self._session, self._file, self._kept = session, file, kept
        self._optimizers = optimizers
        self._saved: SavedTensors | None = None
        self._has_backward = True
        self._layers: Sequence[ModelLayer] = ()

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Count what the layers keep in the step that begins."""
        self._layers, self._has_backward = layers, True
        self._saved = SavedTensors(self._session, layers, _memory_reader(self._session))
        self._saved.begin()
        return True

    def see_loss(self, loss: Any) -> None:
        """A backward pass begins: count what its graph keeps."""
        if self._saved is not None:
            self._saved.see_loss(loss)

    def lose_backward(self) -> None:
        """A backward pass goes through what was computed before the step, and keeps it."""
        self._has_backward = False

    def end(self, step: int, steps: int = 1) -> str | None:
        """The step has ended; why it was not seen to its end, `None` where it was."""
        saved = self._saved
        if saved is None:
            return None
        if saved.end():
            count = len(self._layers)
            line: dict[str, Any] = {"step": step}
            line |= held_bytes(self._layers, self._optimizers())._asdict()
            if saved.saved_bytes is not None and self._has_backward:
                unknown = dict.fromkeys(saved.packed, NOT_MEASURED)
                line["saved"] = by_place(saved.saved_bytes | unknown, count)
                line["input_elements"] = saved.input_elements
            if saved.peak_bytes:
                unknown = dict.fromkeys(range(count), NOT_MEASURED)
                line["peak"] = by_place(unknown | saved.peak_bytes, count)
            if saved.reached_bytes:
                unknown = dict.fromkeys(range(count), NOT_MEASURED)
                line["reached"] = by_place(unknown | saved.reached_bytes, count)
            self._file.write(self._layers, line)
            self._kept.follow(self._layers, saved.outputs, step)
        return saved.lost

    def tell_held(self, layers: Sequence[ModelLayer], step: int) -> None:
        """Write what the layers hold by now."""
        self._file.write(layers, {"step": step} | held_bytes(layers, self._optimizers())._asdict())

    def take_out(self) -> bool:
        """Take everything out of torch."""
        if self._saved is not None:
            self._saved.end()
            self._saved = None
        self._layers = ()
        return True


def _memory_reader(session: Session) -> ReadMemory:
    """How to read the memory that the model's device has taken."""
    if session.recorder.gpu is None:
        return _resident if session.device == "cpu" else _unknown
    index = int(session.device.rpartition(":")[2])
    read = torch._C._cuda_memoryStats

    def allocated() -> MemoryNow:
        found = read(index)["allocated_bytes"]["all"]
        return MemoryNow(int(found["current"]), int(found["peak"]))

    return allocated


def _resident() -> MemoryNow | None:
    found = resident_bytes()
    return None if found is None else MemoryNow(found)


def _unknown() -> None:
    """Returns nothing: of other devices torch does not tell the memory as cheaply."""
