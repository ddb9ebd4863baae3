"""Steps in which what each layer holds and keeps is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from traceml.trace.deep.kept_tensors import KeptTensors
from traceml.trace.deep.layer_file import LayerFile, by_place
from traceml.trace.deep.layer_memory import (
    ReadPeak,
    SavedTensors,
    held_bytes,
)
from traceml.trace.deep.layer_names import ModelLayer
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
        self._layers: Sequence[ModelLayer] = ()

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Count what the layers keep in the step that begins."""
        self._layers = layers
        self._saved = SavedTensors(self._session, layers, _peak_reader(self._session))
        self._saved.begin()
        return True

    def see_loss(self, loss: Any) -> None:
        """A backward pass begins: count what its graph keeps."""
        if self._saved is not None:
            self._saved.see_loss(loss)

    def end(self, step: int) -> str | None:
        """The step has ended; why it was not seen to its end, `None` where it was."""
        saved = self._saved
        if saved is None:
            return None
        if saved.end():
            count = len(self._layers)
            line: dict[str, Any] = {"step": step}
            line |= held_bytes(self._layers, self._optimizers())._asdict()
            if saved.saved_bytes is not None:
                unknown = dict.fromkeys(saved.packed, NOT_MEASURED)
                line["saved"] = by_place(saved.saved_bytes | unknown, count)
            if saved.peak_bytes:
                unknown = dict.fromkeys(range(count), NOT_MEASURED)
                line["peak"] = by_place(unknown | saved.peak_bytes, count)
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


def _peak_reader(session: Session) -> ReadPeak | None:
    if session.recorder.gpu is None:
        return None
    index = int(session.device.rpartition(":")[2])
    read = torch._C._cuda_memoryStats

    def read_peak() -> int:
        return int(read(index)["allocated_bytes"]["all"]["peak"])

    return read_peak
