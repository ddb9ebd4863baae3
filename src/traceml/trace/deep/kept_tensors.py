"""Which modules hold more and more memory, and whose outputs outlive their step.

A layer that appends its outputs to a list, or a list of modules that grows, is found by looking at
what the modules of the model hold, every now and then and at the end. Outputs that somebody else
keeps, such as a list of the script's, are found by what is still there of a step that is long over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.deep.layer_memory import ReturnedMemory
from traceml.trace.deep.layer_names import LayerName, ModelLayer, without_modules
from traceml.trace.tensor_memory import id_of, tensor_bytes

MAX_ITEMS = (1000, 32, 4)
"""Of one list or dict that a module holds, of one inside it, and of one inside that: of a longer
one so many are looked at, and stand for the others. Training waits meanwhile."""
_CONTAINERS = (list, tuple, dict, deque, set)
MIN_STEPS_LATER = 3
"""Steps after which nothing of a step is needed any more: the next one may still use its loss."""
MAX_GROWN = 64
"""Layers that one line tells of, those that have grown the most."""


class _Held(NamedTuple):
    """What a module holds by itself: parameters, buffers, and tensors in other attributes."""

    total: int
    attribute: str | None
    """The attribute with the most, beside parameters and buffers; `None` where none holds a
    tensor."""


class _FollowedOutputs(NamedTuple):
    """The outputs of one step."""

    step: int
    layers: Sequence[LayerName]
    outputs: list[ReturnedMemory]


_OF_PARENT: list[tuple[_FollowedOutputs | None, set[Any]]] = []


class KeptTensors:
    """Compares what each module holds with what it held when it was looked at first."""

    def __init__(self, file: LayerFile) -> None:
        self._file = file
        self._followed: _FollowedOutputs | None = None
        self._left: set[Any] = set()
        """The memory that was left of the outputs that were looked at last. What is returned once
        more is the same each time and no leak, such as a static output of a CUDA graph."""
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child, which frees nothing of the parent's."""
        if self._followed is not None or self._left:
            _OF_PARENT.append((self._followed, self._left))
        self._followed, self._left = None, set()
        self._has_told_of_outputs = False
        self._first: dict[str, int] = {}
        self._first_step: int | None = None

    def follow(
        self, layers: Sequence[ModelLayer], outputs: list[ReturnedMemory], step: int
    ) -> None:
        """See later which of the outputs of a step are still there."""
        if self._followed is None or step >= self._followed.step + MIN_STEPS_LATER:
            self._followed = _FollowedOutputs(step, without_modules(layers), outputs)

    def _look_at_outputs(self, step: int, held: set[int]) -> None:
        """Write which outputs are left; those that the modules hold themselves are looked at as
        what modules hold."""
        followed = self._followed
        if followed is None or step < followed.step + MIN_STEPS_LATER:
            return
        left: dict[int, int] = {}
        alive = [output for output in followed.outputs if not output.storage.expired()]
        for output in alive:
            if output.memory not in held and output.storage not in self._left:
                left[output.place] = left.get(output.place, 0) + output.size
        self._followed, self._left = None, {output.storage for output in alive}
        if left or self._has_told_of_outputs:
            # Whoever reads believes the last line: that nothing is left any more is one, too.
            largest = sorted(left.items(), key=lambda item: -item[1])[:MAX_GROWN] or [(0, 0)]
            line = {"step": step, "since": followed.step, "outlived": largest}
            self._file.write(followed.layers, line)
            self._has_told_of_outputs = bool(left)

    def write_growth(self, layers: Sequence[ModelLayer], step: int) -> None:
        """Write which modules hold more than at first, and whose outputs of an earlier step are
        still there; a module that was added meanwhile counts for the one it was added to."""
        memory: set[int] = set()
        held = _held_by(layers, memory)
        self._look_at_outputs(step, memory)
        if not layers or step == self._first_step:
            return
        if self._first_step is None:
            self._first_step = step
            self._first = {layer.name: each.total for layer, each in zip(layers, held, strict=True)}
            return
        grown: dict[int, list[int]] = {}  # bytes, and how many modules were added
        places = {layer.name: place for place, layer in enumerate(layers)}
        for layer, each in zip(layers, held, strict=True):
            owner, is_new = layer.name, layer.name not in self._first
            while owner and owner not in self._first:
                owner = owner.rpartition(".")[0]
            known = grown.setdefault(places.get(owner, 0), [0, 0])
            known[0] += each.total - self._first.get(layer.name, 0)
            known[1] += is_new
        largest = sorted(grown.items(), key=lambda item: -item[1][0])[:MAX_GROWN]
        rows = [
            (place, more, held[place].attribute, added)
            for place, (more, added) in largest
            if more > 0
        ]
        if rows:
            line = {"step": step, "since": self._first_step, "grown": rows}
            self._file.write(layers, line)


def _held_by(layers: Sequence[ModelLayer], seen: set[int]) -> list[_Held]:
    """What each module holds; memory that several of them hold counts for the first. All of it
    that was looked at is added to `seen`."""
    own = [
        [
            tensor
            for held in (layer.module._parameters, layer.module._buffers)
            for tensor in held.values()
            if tensor is not None
        ]
        for layer in layers
    ]
    totals = [sum(_new_bytes(tensors, seen)) for tensors in own]
    found = []
    for layer, total in zip(layers, totals, strict=True):
        kept = {
            name: size
            for name, value in list(layer.module.__dict__.items())
            if name not in _OF_MODULES and (size := _bytes_in(value, seen))
        }
        largest = max(kept, key=lambda name: kept[name], default=None)
        found.append(_Held(total + sum(kept.values()), largest))
    return found


_OF_MODULES = frozenset(torch.nn.Module().__dict__)
"""The attributes that every module has: parameters, buffers, modules, hooks."""


def _new_bytes(tensors: Iterable[Any], seen: set[int]) -> Iterator[int]:
    for tensor in tensors:
        memory = id_of(tensor)
        if memory not in seen:
            seen.add(memory)
            yield tensor_bytes(tensor)


def _bytes_in(value: Any, seen: set[int], depth: int = 0) -> int:
    """The memory of the tensors in a value, each counted once."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return sum(_new_bytes((value,), seen))
    if kind not in _CONTAINERS or depth == len(MAX_ITEMS) or not value:
        return 0
    limit = MAX_ITEMS[depth]
    if kind is dict:
        items: Iterable[Any] = list(islice(value.values(), limit))
    elif kind is list or kind is tuple:
        items = value[:: math.ceil(len(value) / limit)]
    else:
        items = list(islice(value, limit))
    sizes = [_bytes_in(item, seen, depth + 1) for item in items]
    return sum(sizes) * len(value) // len(sizes)
