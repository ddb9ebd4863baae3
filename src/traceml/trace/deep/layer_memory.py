"""How much memory each layer holds, and keeps for the backward pass, in one step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from traceml.trace import autograd_graph
from traceml.trace.autograd_graph import (
    can_number_operations,
    can_see_saved_tensors,
    next_operation,
)
from traceml.trace.deep.call_watch import CallWatch
from traceml.trace.deep.layer_marks import tensors_in
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import OUTSIDE
from traceml.trace.failed_batch import first_shape
from traceml.trace.session import Session
from traceml.trace.tensor_memory import KeptMemory, gradient_of, id_of, storage_of, tensor_bytes

MAX_OUTPUTS = 20_000
"""Tensors of one step that are followed: a loop over thousands of tokens returns very many."""


class MemoryNow(NamedTuple):
    """The memory that is taken at a moment."""

    current_bytes: int
    """Of the GPU: allocated by torch. Of the host: what the process holds."""
    peak_bytes: int | None = None
    """The most that was allocated so far; `None` on the host."""


ReadMemory = Callable[[], MemoryNow | None]


_weak_reference: Any = StorageWeakRef
"""Refers to the memory of a tensor without keeping it."""


class ReturnedMemory(NamedTuple):
    """The memory of a tensor that a layer returned."""

    place: int
    size: int
    memory: int
    """Identifies it as long as it is there (`id_of`)."""
    storage: Any
    """Knows whether the memory is still there, and does not keep it."""


class _OpenCall(NamedTuple):
    """A call of a layer that has not returned."""

    given: set[int]
    """The memory of its arguments."""
    peak: int | None
    """The most that was allocated before it; `None` without a GPU."""


class SavedTensors:
    """Counts what autograd keeps for the backward pass, by the layer that saved it, in one step.

    The graph is read as backward begins, and nothing of it changes: each operation has a number,
    and which layer was being called at which number is known. What a hook has packed (activation
    checkpointing, offloading to the host) cannot be seen, and nothing is said of layers with it;
    tensors that share memory count once, parameters and buffers not at all.
    """

    def __init__(
        self,
        session: Session,
        layers: Sequence[ModelLayer],
        read_memory: ReadMemory,
    ) -> None:
        self._calls = CallWatch(session, layers, self._enter, self._leave)
        self._read_memory = read_memory
        self._own = {id_of(tensor) for tensor in _held_by(layers)}
        self._begins: list[int] = []
        self._working: list[int] = []
        """The layer that works from each of these numbers of operations on."""
        self.saved_bytes: dict[int, int] | None = None
        """By layer, without what the layers that it calls keep; of several backward passes in one
        step, the most; `None` where no backward pass was seen."""
        self.packed: set[int] = set()
        """The layers of which a hook has packed what is kept: how much that is, is not known."""
        self.peak_bytes: dict[int, int] = {}
        """By layer: the most that was allocated on the GPU while it was being called, where that
        was more than ever before. The allocator's peak is the user's to read and is never reset, so
        that a lower one cannot be seen."""
        self.reached_bytes: dict[int, int] = {}
        """By layer: the most that was taken at a moment of its calls that was looked at: as it, or
        a layer that it calls, began or returned. Its peak is at least this."""
        self._highest: list[int] = []
        """For each open call: the highest memory use seen so far."""
        self.input_elements = 0
        """Of the first tensor that the model was called with; of several calls, the most. What is
        kept goes with it."""
        self.outputs: list[ReturnedMemory] = []
        """What the layers returned, the innermost layer first; none of it is kept alive."""
        self._returned: set[int] = set()
        self._open_calls: list[_OpenCall] = []
        self.see_loss = session.guard(self._count_saved, failed=self._calls.fail)
        """Count what the graph behind a loss keeps, before backward releases it."""

    def begin(self) -> None:
        """Count from here on."""
        self._calls.begin()

    def end(self) -> bool:
        """Count no more; whether the step was seen to its end."""
        was_on = self._calls.is_on
        self._calls.end()
        return was_on and self._calls.lost is None

    @property
    def lost(self) -> str | None:
        """Why the step was not seen to its end; `None` where it was."""
        return self._calls.lost

    def _count_saved(self, loss: Any) -> None:
        if not self._calls.is_on or not self._begins:
            return
        if not can_number_operations() or not can_see_saved_tensors():
            return
        found: dict[int, int] = {}
        kept = KeptMemory()
        nodes = reversed(autograd_graph.nodes_of(loss))
        for node, tensor in autograd_graph.saved_and_packed(nodes):
            place = self._place(node._sequence_nr())
            if place == OUTSIDE:
                continue
            if tensor is None:
                self.packed.add(place)
                continue
            if id_of(tensor) not in self._own and not _is_parameter(tensor):
                found[place] = found.get(place, 0) + kept.add(tensor)
        before = self.saved_bytes or {}
        self.saved_bytes = {
            place: max(found.get(place, 0), before.get(place, 0)) for place in found | before
        }

    def _place(self, number: int) -> int:
        """The layer that was being called when an operation got its number."""
        place = bisect_right(self._begins, number) - 1
        return self._working[place] if place >= 0 else OUTSIDE

    def _note_working(self, place: int) -> None:
        self._begins.append(next_operation())
        self._working.append(place)

    def _enter(self, place: int, outer: int, arguments: Any, is_again: bool) -> None:
        self._note_working(place)
        if outer == OUTSIDE and not is_again:
            elements = prod(first_shape(arguments) or (0,))
            self.input_elements = max(elements, self.input_elements)
        given = {id_of(tensor) for tensor in tensors_in(arguments)}
        now = self._read_memory()
        self._open_calls.append(_OpenCall(given, None if now is None else now.peak_bytes))
        self._highest.append(0 if now is None else now.current_bytes)

    def _leave(self, place: int, result: Any) -> None:
        call, now = self._open_calls.pop(), self._read_memory()
        self._note_outputs(place, result, call.given)
        peak = None if now is None else now.peak_bytes
        if peak is not None and call.peak is not None and peak > call.peak:
            self.peak_bytes[place] = max(peak, self.peak_bytes.get(place, 0))
        self._note_reached(place, 0 if now is None else now.current_bytes)
        self._note_working(self._calls.open[-1] if self._calls.open else OUTSIDE)

    def _note_reached(self, place: int, current_bytes: int) -> None:
        """A layer returns: what was reached inside it was reached inside its callers, too."""
        highest = max(self._highest.pop(), current_bytes)
        if highest:
            self.reached_bytes[place] = max(highest, self.reached_bytes.get(place, 0))
        if self._highest:
            self._highest[-1] = max(highest, self._highest[-1])

    def _note_outputs(self, place: int, result: Any, given: set[int]) -> None:
        for tensor in tensors_in(result):
            memory = id_of(tensor)
            if memory in self._returned or memory in self._own or len(self.outputs) == MAX_OUTPUTS:
                continue
            if memory in given:
                continue  # not the layer's: a data set that the batch is a view of, for one
            self._returned.add(memory)
            if type(tensor) is torch.Tensor and tensor.layout == torch.strided:
                storage = storage_of(tensor)
                if storage is not None:
                    # Of a view its part; torch.jit.trace would write numel() into its graph.
                    size = min(tensor.nbytes, storage.nbytes())
                    reference = _weak_reference(storage)
                    self.outputs.append(ReturnedMemory(place, size, memory, reference))


def _is_parameter(tensor: torch.Tensor) -> bool:
    """Whether this is a parameter, or another look at one: FSDP trains with copies of its own."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


class HeldBytes(NamedTuple):
    """What each layer holds by itself, without the layers below it, in bytes."""

    parameters: list[int]
    buffers: list[int]
    gradients: list[int]
    optimizer: list[int]


def held_bytes(layers: Sequence[ModelLayer], optimizers: Iterable[Any]) -> HeldBytes:
    """What each layer holds; a parameter or buffer that several layers share counts for the
    first."""
    states = _state_bytes(optimizers)
    held = HeldBytes([], [], [], [])
    seen: set[int] = set()
    seen_buffers: set[int] = set()
    for layer in layers:
        own = [p for p in _tensors(layer.module._parameters) if id(p) not in seen]
        seen.update(map(id, own))
        held.parameters.append(sum(map(tensor_bytes, own)))
        buffers = {id_of(b): tensor_bytes(b) for b in _tensors(layer.module._buffers)}
        held.buffers.append(sum(size for b, size in buffers.items() if b not in seen_buffers))
        seen_buffers.update(buffers)
        gradients = [each for each in map(gradient_of, own) if each is not None]
        held.gradients.append(sum(map(tensor_bytes, gradients)))
        held.optimizer.append(sum(states.get(id(p), 0) for p in own))
    return held


def _state_bytes(optimizers: Iterable[Any]) -> dict[int, int]:
    """By the parameter's identity: what optimizers keep for it."""
    found: dict[int, int] = {}
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            if isinstance(state, dict):
                kept = sum(map(tensor_bytes, _tensors(state)))
                found[id(parameter)] = found.get(id(parameter), 0) + kept
    return found


def _held_by(layers: Sequence[ModelLayer]) -> list[torch.Tensor]:
    return [
        tensor
        for layer in layers
        for held in (layer.module._parameters, layer.module._buffers)
        for tensor in _tensors(held)
    ]


def _tensors(held: dict[Any, Any]) -> list[torch.Tensor]:
    return [tensor for tensor in held.values() if isinstance(tensor, torch.Tensor)]
