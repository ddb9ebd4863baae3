"""Which layer made the first value that is not finite, from the graph of a loss that is not.

Only for a loss on the host, which is read in no time: on a GPU it is known too late, when the graph
is gone. To which layer an operation belongs is known from the last step whose layers were timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from traceml.trace import autograd_graph
from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.deep.layer_names import ModelLayer, layers_of
from traceml.trace.models import Models, outermost
from traceml.trace.session import Session

MAX_LOOKS = 4
"""Of one process: a script may skip steps with such a loss again and again."""


class LayerSpan(NamedTuple):
    """The operations of one call of a layer: their numbers, from that of the model's first on."""

    place: int
    first: int
    end: int


def layer_at(spans: Sequence[LayerSpan], number: int) -> int | None:
    """The innermost layer that an operation belongs to."""
    around = [span for span in spans if span.first <= number < span.end]
    return min(around, key=lambda span: span.end - span.first).place if around else None


class LossGraph:
    """Looks at the graph of a loss when it is not finite."""

    def __init__(
        self,
        session: Session,
        models: Models,
        file: LayerFile,
        spans: Callable[[], Sequence[LayerSpan]],
    ) -> None:
        self._session, self._models, self._file, self._spans = session, models, file, spans
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self._looks = 0

    def look(self, loss: Any) -> bool:
        """Whether a loss that backward begins with is not finite; then say which layer made it."""
        if type(loss) is not torch.Tensor or not loss.is_cpu or loss.numel() != 1:
            return False
        if not loss.is_floating_point() or math.isfinite(torch._C.TensorBase.item(loss)):
            return False
        if self._looks < MAX_LOOKS:
            self._looks += 1
            self._tell(loss)
        return True

    def _tell(self, loss: torch.Tensor) -> None:
        layers = layers_of(outermost(self._models.living()))
        place = self.place_of_first_bad(loss, layers)
        if place is not None:
            line = {"step": self._session.count_steps() + 1, "bad_layer": place}
            self._file.write(layers, line)

    def layer_of(self, node: Any, nodes: list[Any]) -> str | None:
        """The name of the layer that an operation belongs to; `None` where that is not known."""
        layers = layers_of(outermost(self._models.living()))
        place = self.place_of(node, nodes, layers)
        return None if place is None else layers[place].name

    def place_of_first_bad(self, loss: torch.Tensor, layers: Sequence[ModelLayer]) -> int | None:
        """The place of the layer that made the first bad value; `None` where none did."""
        nodes = autograd_graph.nodes_of(loss)
        bad = autograd_graph.first_bad_node(nodes)
        return None if bad is None else self.place_of(bad, nodes, layers)

    def place_of(self, node: Any, nodes: list[Any], layers: Sequence[ModelLayer]) -> int | None:
        """The place of the layer that an operation belongs to; `None` where that is not known."""
        spans, first = self._spans(), nodes[-1]._sequence_nr()
        names = autograd_graph.parameter_names((layer.name, layer.module) for layer in layers)
        if spans and _fits(spans, nodes, first, [layer.name for layer in layers], names):
            return layer_at(spans, node._sequence_nr() - first)
        places = {layer.name: place for place, layer in enumerate(layers)}
        before, after = autograd_graph.layers_around(node, nodes, names)
        between = _between(spans, places.get(before or ""), places.get(after or ""))
        own_code = [place for place in between if not layers[place].is_of_torch]
        if len(own_code) == 1:
            return own_code[0]
        name = autograd_graph.layer_of(node, nodes, names)
        return None if name is None else places.get(name)


def _between(spans: Sequence[LayerSpan], before: int | None, after: int | None) -> list[int]:
    """The layers without layers of their own that returned between two others.

    A step in which a layer does something else than usual has another graph; only the script's own
    layers do such a thing.
    """
    order = list(dict.fromkeys(span.place for span in spans))
    if before == after or before not in order or after not in order:
        return []
    found = order[order.index(before) + 1 : order.index(after)]
    whole = {span.place for span in spans if span.place in found and _holds_another(span, spans)}
    return [place for place in found if place not in whole]


def _holds_another(span: LayerSpan, spans: Sequence[LayerSpan]) -> bool:
    return any(
        other is not span and span.first <= other.first and other.end <= span.end
        for other in spans
        if other.place != span.place and other.end - other.first < span.end - span.first
    )


def _fits(
    spans: Sequence[LayerSpan],
    nodes: Sequence[Any],
    first: int,
    layers: Sequence[str],
    names: dict[int, str],
) -> bool:
    """Whether the graph is like the one of the step whose layers were timed: every operation that
    takes parameters belongs to the layer that holds them."""
    for node in nodes:
        owners = {names[id(p)] for p in autograd_graph.owned_parameters(node) if id(p) in names}
        if owners:
            place = layer_at(spans, node._sequence_nr() - first)
            if place is None or not _is_owner(layers[place], owners):
                return False
    return True


def _is_owner(layer: str, owners: set[str]) -> bool:
    """Whether a layer holds one of these, or is one: some call functions with a child's weights."""
    prefix = f"{layer}." if layer else ""
    return any(owner == layer or owner.startswith(prefix) for owner in owners)
