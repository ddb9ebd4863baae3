"""How much memory each layer holds, and keeps for the backward pass, in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from traceml.trace.deep.call_watch import CallWatch
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.interruptions import is_interruption
from traceml.trace.session import Session

ReadAllocator = Callable[[], tuple[int, int]]
"""Bytes allocated now, and at most so far."""


class SavedTensors:
    """Counts what autograd keeps for the backward pass, by the layer that is called meanwhile.

    Tensors that share memory count once, parameters and buffers not at all.
    """

    def __init__(
        self,
        session: Session,
        layers: Sequence[ModelLayer],
        read_allocator: ReadAllocator | None,
    ) -> None:
        self._session = session
        self._calls = CallWatch(session, layers, self._enter, self._leave)
        self._read_allocator = read_allocator
        self._own = {id_of(tensor) for tensor in _held_by(layers)}
        self._seen: set[int] = set()
        self._current: dict[int, int] = {}
        self.saved_bytes: dict[int, int] = {}
        """By layer, without what the layers that it calls keep; of several calls of a model in
        one step, the most."""
        self.peak_bytes: dict[int, int] = {}
        """By layer: the most that was allocated on the GPU while it was being called."""
        self._entered_at: list[tuple[int, int]] = []
        self._count = session.guard(self._count_saved, any_thread=True, failed=self._calls.fail)
        self._pushed: tuple[Any, Any] | None = None

    def begin(self) -> None:
        """Count from here on."""
        self._pushed = self._pack, _unpack
        autograd: Any = torch._C._autograd
        autograd._push_saved_tensors_default_hooks(*self._pushed)
        disable = autograd._saved_tensors_hooks_disable

        def disable_without_ours(message: str) -> None:
            """`torch.func` refuses to work beside any such hook: ours makes room."""
            self.end()
            disable(message)

        self._restore = self._session.replace(
            autograd, "_saved_tensors_hooks_disable", disable_without_ours
        )
        self._calls.begin()

    def end(self) -> bool:
        """Count no more; whether all of the step was counted.

        Where the script has entered a context of its own meanwhile, ours lies below it, and stays
        until it is the topmost again: `is_out` says so.
        """
        was_on = self._calls.is_on
        self._calls.end()
        self.take_out()
        return was_on

    @property
    def was_evaluated(self) -> bool:
        """Whether the step was given up because a model was evaluated in it."""
        return self._calls.was_evaluated

    @property
    def is_out(self) -> bool:
        """Whether nothing of this is left in torch."""
        return self._pushed is None

    def take_out(self) -> None:
        """Take our way of saving tensors out, where it is the topmost."""
        if self._pushed is not None:
            top = torch._C._autograd._top_saved_tensors_default_hooks(True)
            if top is not None and top[0] == self._pushed[0]:
                torch._C._autograd._pop_saved_tensors_default_hooks()
                self._restore()
                self._pushed = None

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self._count(tensor)
        return tensor.detach()  # the tensor itself would keep its own graph alive

    def _count_saved(self, tensor: torch.Tensor) -> None:
        if not self._calls.is_on or not self._calls.open:
            return
        memory = id_of(tensor)
        if memory in self._seen or memory in self._own:
            return
        self._seen.add(memory)
        place = self._calls.open[-1]
        self._current[place] = self._current.get(place, 0) + _bytes(tensor)

    def _enter(self, place: int, outer: int, arguments: Any, is_again: bool) -> None:
        if self._read_allocator is not None:
            self._entered_at.append(self._read_allocator())

    def _leave(self, place: int, result: Any) -> None:
        if self._read_allocator is not None and self._entered_at:
            self._note_peak(place, self._entered_at.pop(), self._read_allocator())
        if not self._calls.open:
            for layer, count in self._current.items():
                self.saved_bytes[layer] = max(count, self.saved_bytes.get(layer, 0))
            self._current.clear()
            self._seen.clear()

    def _note_peak(self, place: int, before: tuple[int, int], after: tuple[int, int]) -> None:
        peak = after[1] if after[1] > before[1] else max(before[0], after[0])
        self.peak_bytes[place] = max(peak, self.peak_bytes.get(place, 0))


def _unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def can_count_saved() -> bool:
    """Whether tensors can be counted as they are saved, from here on.

    Not inside a context of the script's that saves tensors in its own way: as the script leaves
    it, torch takes out the topmost way, which would be ours, and the script's would stay for ever.
    Nor where the script forbids such contexts, nor with a torch that does not tell the topmost.
    """
    autograd: Any = torch._C._autograd
    return (
        hasattr(autograd, "_top_saved_tensors_default_hooks")
        and autograd._saved_tensors_hooks_is_enabled()
        and autograd._top_saved_tensors_default_hooks(True) is None
    )


def has_marked_parameters(layers: Iterable[ModelLayer]) -> bool:
    """Whether a parameter has attributes that somebody gave it, such as Megatron's `main_grad`.

    A function of theirs may save the parameter and want them in its backward pass: what is saved
    in our way comes back as another tensor, without them.
    """
    return any(
        not name.startswith("_")
        for layer in layers
        for parameter in _tensors(layer.module._parameters)
        for name in getattr(parameter, "__dict__", ())
    )


class HeldBytes(NamedTuple):
    """What each layer holds by itself, without the layers below it, in bytes."""

    parameters: list[int]
    buffers: list[int]
    gradients: list[int]
    optimizer: list[int]


def held_bytes(layers: Sequence[ModelLayer], optimizers: Iterable[Any]) -> HeldBytes:
    """What each layer holds; a parameter that several layers share counts for the first."""
    states = _state_bytes(optimizers)
    held = HeldBytes([], [], [], [])
    seen: set[int] = set()
    for layer in layers:
        own = [p for p in _tensors(layer.module._parameters) if id(p) not in seen]
        seen.update(map(id, own))
        held.parameters.append(sum(map(_bytes, own)))
        held.buffers.append(sum(map(_bytes, _tensors(layer.module._buffers))))
        held.gradients.append(sum(_bytes(p.grad) for p in own if p.grad is not None))
        held.optimizer.append(sum(states.get(id(p), 0) for p in own))
    return held


def _state_bytes(optimizers: Iterable[Any]) -> dict[int, int]:
    """By the parameter's identity: what optimizers keep for it."""
    found: dict[int, int] = {}
    for optimizer in optimizers:
        for parameter, state in list(optimizer.state.items()):
            if isinstance(state, dict):
                kept = sum(map(_bytes, _tensors(state)))
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


def _local(tensor: Any) -> Any:
    """What this rank holds of a tensor that is spread over ranks."""
    return getattr(tensor, "_local_tensor", tensor)


def _bytes(tensor: Any) -> int:
    local = _local(tensor)
    return int(local.numel() * local.element_size())


def id_of(tensor: Any) -> int:
    """Identifies the memory of a tensor as long as it is not freed."""
    local = _local(tensor)
    try:
        return int(local.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError) as error:
        if is_interruption(error):
            raise
        return id(tensor)  # a tensor without memory of its own
