"""The layers of the models that train, under the names that their author gave them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import nn

from traceml.trace.module_names import authors_class, own_name, unwrapped, wrapped

MAX_LAYERS = 16384
"""A model of more modules than these is followed no further."""
MAX_NAME = 256
INSTALLED = ("site-packages", "dist-packages")
"""Folders of packages that somebody else wrote."""


class ModelLayer(NamedTuple):
    """A module of a model."""

    name: str
    """Its dotted name without those of wrappers; that of the model itself is empty. Where there are
    several models, it is its class, or the script's own name for it where several are of one."""
    kind: str
    """Its class, as its author knows it."""
    module: nn.Module
    """The author's own module, without what wraps it."""

    @property
    def is_of_library(self) -> bool:
        """Whether its class is torch's own, or that of another package that is installed: what a
        script's own class does may differ from step to step, and is wrong more often."""
        name = authors_class(self.module).__module__
        if name.partition(".")[0] == "torch":
            return True
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        return any(f"{os.sep}{folder}{os.sep}" in file for folder in INSTALLED)


class LayerName(NamedTuple):
    """A layer without its module: keeping it keeps no model alive."""

    name: str
    kind: str
    is_of_library: bool


def without_modules(layers: Iterable[ModelLayer]) -> list[LayerName]:
    """The names of layers."""
    return [LayerName(layer.name, layer.kind, layer.is_of_library) for layer in layers]


def layers_of(models: Iterable[nn.Module]) -> list[ModelLayer]:
    """Every module of these models, each once, outer ones before what they hold."""
    roots = list({id(root): root for root in map(unwrapped, models)}.values())
    found: list[ModelLayer] = []
    seen: set[int] = set()
    for prefix, root in zip(_root_names(roots), roots, strict=True):
        for name, module in _own_modules(root):
            if id(module) in seen or len(found) == MAX_LAYERS:
                continue
            seen.add(id(module))
            kind = authors_class(module).__name__
            found.append(ModelLayer(_joined(prefix, name)[:MAX_NAME], kind, module))
    return found


def _root_names(roots: Sequence[nn.Module]) -> list[str]:
    """A name for each model; none for a single one."""
    if len(roots) == 1:
        return [""]
    kinds = [authors_class(root).__name__ for root in roots]
    is_shared = len(set(kinds)) < len(kinds)
    given = _names_in_script() if is_shared else {}
    names, taken = [], set[str]()
    for root, kind in zip(roots, kinds, strict=True):
        own = given.get(id(root)) if kinds.count(kind) > 1 else None
        names.append(_free_name(own or kind, taken))
    return names


def _names_in_script() -> dict[int, str]:
    """The names of modules among the script's global variables, by the identity of what each is
    without wrappers; the first where it has several."""
    found: dict[int, str] = {}
    for name, value in list(vars(sys.modules["__main__"]).items()):
        # By its type alone: to ask a lazily loaded object for its class would load it.
        if issubclass(type(value), nn.Module) and not name.startswith("_"):
            found.setdefault(id(unwrapped(value)), name)
    return found


def _own_modules(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model with their dotted names, as `named_modules` has them, without what
    wraps any of them; a module of several names has the first."""
    seen: set[int] = set()
    waiting = [("", root)]
    while waiting:
        name, module = waiting.pop()
        inner = wrapped(module)
        if id(module) in seen:
            continue
        seen.add(id(module))
        if inner is not None:
            waiting.append((name, inner))
            continue
        yield name, module
        parts = [(part, each) for part, each in module._modules.items() if each is not None]
        waiting += [(_joined(name, part), each) for part, each in reversed(parts)]


def _joined(outer: str, name: str) -> str:
    return ".".join(part for part in (outer, own_name(name)) if part)


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
