"""The layers of the models that train, under the names that their author gave them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import nn

from traceml.trace.module_names import own_name, unwrapped

MAX_LAYERS = 16384
"""A model of more modules than these is followed no further."""
MAX_NAME = 256


class ModelLayer(NamedTuple):
    """A module of a model."""

    name: str
    """Its dotted name without those of wrappers; that of the model itself is empty, or its class
    where there are several models."""
    kind: str
    """Its class."""
    module: nn.Module

    @property
    def is_of_torch(self) -> bool:
        """Whether its class is torch's own."""
        return type(self.module).__module__.partition(".")[0] == "torch"


class LayerName(NamedTuple):
    """A layer without its module: keeping it keeps no model alive."""

    name: str
    kind: str
    is_of_torch: bool


def without_modules(layers: Iterable[ModelLayer]) -> list[LayerName]:
    """The names of layers."""
    return [LayerName(layer.name, layer.kind, layer.is_of_torch) for layer in layers]


def layers_of(models: Iterable[nn.Module]) -> list[ModelLayer]:
    """Every module of these models, each once, outer ones before what they hold."""
    roots = list({id(root): root for root in map(unwrapped, models)}.values())
    found: list[ModelLayer] = []
    seen: set[int] = set()
    taken: set[str] = set()
    for root in roots:
        prefix = _free_name(type(root).__name__, taken) if len(roots) > 1 else ""
        for name, module in root.named_modules():
            if id(module) in seen or len(found) == MAX_LAYERS:
                continue
            seen.add(id(module))
            found.append(ModelLayer(_joined(prefix, name), type(module).__name__, module))
    return found


def _joined(prefix: str, name: str) -> str:
    return ".".join(part for part in (prefix, own_name(name)) if part)[:MAX_NAME]


def _free_name(kind: str, taken: set[str]) -> str:
    name = next(name for name in _numbered(kind) if name not in taken)
    taken.add(name)
    return name


def _numbered(kind: str) -> Iterator[str]:
    yield kind
    number = 2
    while True:
        yield f"{kind}{number}"
        number += 1
