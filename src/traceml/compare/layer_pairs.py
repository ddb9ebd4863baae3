"""Which layer of one model is which of another, and which of them repeat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from traceml.model.layer_names import repeated_name
from traceml.summaries.layer_record import LayerSummary


@dataclass(frozen=True, slots=True)
class LayerUnit:
    """One layer, or all those of one class whose names differ in a number alone."""

    name: str
    """As B has it."""
    was: str | None
    """As A has it, where that differs."""
    kind: str | None
    members: tuple[tuple[str, str], ...]
    """The names of each layer in A and in B."""


Layers = Mapping[str, LayerSummary]


def paired_layers(a: Layers, b: Layers) -> list[tuple[str, str]]:
    """Returns the names in A and in B of every layer that both have, in B's order.

    Layers whose names differ are the same where both sides have as many of their class and size
    whose names are not on the other side; they are paired in the model's order.
    """
    renamed = _renamed(a, b)
    return [(renamed.get(name, name), name) for name in b if name in a or name in renamed]


def _renamed(a: Layers, b: Layers) -> dict[str, str]:
    """Returns the name in A of each renamed layer, by its name in B."""
    gone = _by_look({name: layer for name, layer in a.items() if name not in b})
    new = _by_look({name: layer for name, layer in b.items() if name not in a})
    return {
        name: was
        for look, names in new.items()
        if len(gone.get(look, ())) == len(names)
        for was, name in zip(gone[look], names, strict=True)
    }


def _by_look(layers: Layers) -> dict[tuple[object, ...], list[str]]:
    """Returns the names of layers that look alike: class, parameters and calls."""
    found: dict[tuple[object, ...], list[str]] = {}
    for name, layer in layers.items():
        look = layer.kind, layer.parameters_bytes, layer.buffers_bytes, layer.calls
        found.setdefault(look, []).append(name)
    return found


def single_units(pairs: Sequence[tuple[str, str]], b: Layers) -> list[LayerUnit]:
    """Returns each layer by itself."""
    return [
        LayerUnit(name, was if was != name else None, b[name].kind, ((was, name),))
        for was, name in pairs
    ]


def repeated_units(pairs: Sequence[tuple[str, str]], b: Layers) -> Iterator[LayerUnit]:
    """Yields layers that repeat, together: `blocks.*.attn`."""
    groups: dict[tuple[str, str | None], list[tuple[str, str]]] = {}
    for was, name in pairs:
        groups.setdefault((repeated_name(name), b[name].kind), []).append((was, name))
    for (pattern, kind), members in groups.items():
        if len(members) > 1:
            before = {repeated_name(was) for was, _ in members}
            same = before == {pattern} or len(before) > 1
            yield LayerUnit(pattern, None if same else before.pop(), kind, tuple(members))
