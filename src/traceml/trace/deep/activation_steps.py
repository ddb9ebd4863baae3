"""Steps in which the largest number that each layer returns is looked at, without waiting for it.

A number that is infinite or not a number shows at the first layer that returned it; one that comes
near 65,504 shows where float16 will overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from traceml.trace.deep.call_watch import CallWatch
from traceml.trace.deep.late_numbers import (
    LateNumbers,
    can_compute,
    computing_apart,
    for_file,
    plain_numbers,
    sum_type,
)
from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.deep.layer_marks import tensors_in
from traceml.trace.deep.layer_names import LayerName, ModelLayer, without_modules
from traceml.trace.gpu import current_stream, on_stream
from traceml.trace.session import Session

MAX_TENSORS = 20_000
"""Of one step: a loop over thousands of tokens calls its layers very often."""


class _ReturnedNumbers(NamedTuple):
    """What a row of numbers is about."""

    step: int
    layers: Sequence[LayerName]
    places: list[int]
    """The layer that returned each tensor, in the order in which they returned."""


class ActivationSteps:
    """Looks at what layers return."""

    def __init__(self, session: Session, file: LayerFile) -> None:
        self._session, self._file = session, file
        self._calls: CallWatch | None = None
        self._layers: Sequence[ModelLayer] = ()
        self._numbers = LateNumbers()
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self._numbers.forget()
        self._places: list[int] = []
        self._largest: list[torch.Tensor] = []
        self._streams: set[Any] = set()

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Look at what the layers return in the step that begins."""
        if not self._numbers.has_room or not can_compute():
            return False
        self._layers, self._places, self._largest = layers, [], []
        self._streams.clear()
        self._calls = CallWatch(self._session, layers, _nothing, self._leave)
        self._calls.begin()
        return True

    def _leave(self, place: int, result: Any) -> None:
        if torch._C._current_graph_task_id() >= 0 or not can_compute():
            return  # computed again for backward, or somebody else's business
        with computing_apart():
            for tensor in tensors_in(result):
                numbers = plain_numbers(tensor)
                if numbers is not None and len(self._places) < MAX_TENSORS:
                    self._streams.add(current_stream(numbers))
                    self._places.append(place)
                    self._largest.append(_largest(numbers))

    def lose_backward(self) -> None:
        """Does nothing: what layers return is known without the backward pass."""

    def end(self, step: int, steps: int = 1) -> str | None:
        """The step has ended; why it was not seen to its end, `None` where it was."""
        calls = self._calls
        if calls is None:
            return None
        calls.end()
        is_seen = calls.lost is None and not calls.has_failed
        if is_seen and len(self._streams) == 1 and can_compute():
            self._send_for(step, self._streams.pop())
        self._places, self._largest = [], []
        return calls.lost

    def _send_for(self, step: int, stream: Any) -> None:
        """Have all numbers copied to the host; over several streams or devices none would be right
        without waiting."""
        about = _ReturnedNumbers(step, without_modules(self._layers), self._places)
        with computing_apart(), on_stream(stream):
            self._numbers.send_for(about, torch.stack(self._largest), stream)

    def take_out(self) -> bool:
        """Take the hooks out."""
        if self._calls is not None:
            self._calls.end()
            self._calls = None
        self._layers, self._places, self._largest = (), [], []
        return True

    def tell_arrived(self) -> None:
        """Write the steps whose numbers have come from the device by now."""
        for seen, values in self._numbers.arrived():
            largest: dict[int, float] = {}
            for place, value in zip(seen.places, values, strict=True):
                before = largest.get(place, 0.0)
                largest[place] = value if value != value or value > before else before
            self._file.write(
                seen.layers,
                {
                    "step": seen.step,
                    "largest": [for_file(largest.get(n)) for n in range(len(seen.layers))],
                    "returned": list(dict.fromkeys(seen.places)),
                },
            )

    def finish(self) -> None:
        """The process ends: wait a moment for the GPU."""
        self._numbers.wait()
        self.tell_arrived()


def _largest(numbers: torch.Tensor) -> torch.Tensor:
    # Autocast would have a norm computed of a copy in float32, as large again.
    with torch.autocast(numbers.device.type, enabled=False):
        kind = sum_type(numbers.dtype)
        largest: torch.Tensor = torch.linalg.vector_norm(numbers, float("inf"), dtype=kind)
        return largest.float()


def _nothing(place: int, outer: int, arguments: Any, is_again: bool) -> None:
    """What a layer is called with does not matter here."""
