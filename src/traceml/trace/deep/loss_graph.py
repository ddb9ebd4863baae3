"""Which layer made the first value that is not finite, from the graph of a loss that is not.

Only for a loss on the host, which is read in no time: on a GPU it is known too late, when the graph
is gone. To which layer an operation belongs is known from the last step whose layers were timed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import torch

from traceml.trace import autograd_graph
from traceml.trace.deep.late_numbers import plain_numbers
from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.deep.layer_names import ModelLayer, layers_of
from traceml.trace.loss import TENSOR_OF_TORCH
from traceml.trace.models import Models, modules_held_by_callers, outermost, own_any
from traceml.trace.session import Session

MAX_LEARNED = 20_000
"""Operations of a step: a graph with more is not compared with another."""
MAX_PAIRS = 4_000_000
"""Of an operation and a usual one, among those that differ: comparing more takes seconds."""
MAX_SPANS = 2000
"""Calls of layers: of more it would take long to tell which lies between two others."""
MAX_SUSPECTS = 3
"""Layers that are named where it cannot be told which of them it was."""
MAX_LOOKS = 4
"""Of one process: a script may skip steps with such a loss again and again."""


class LayerSpan(NamedTuple):
    """The operations of one call of a layer: their numbers, from that of the model's first on."""

    place: int
    first: int
    end: int


class Suspects(NamedTuple):
    """The layers that an operation may belong to."""

    places: list[int]
    """The likeliest first."""
    is_loss: bool = False
    """Whether it may as well belong to what comes behind all layers."""

    def as_line(self) -> dict[str, Any]:
        """What the file says of them."""
        line: dict[str, Any] = {"bad_layer": self.places[0]}
        if len(self.places) > 1:
            line["bad_layer_or"] = self.places[1:]
        if self.is_loss:
            line["or_loss"] = True
        return line


class UsualOperation(NamedTuple):
    """An operation of a step whose layers were timed."""

    label: str
    place: int | None
    """The layer that it belongs to; `None` for none."""
    number: int = 0
    """What autograd had numbered it in that step."""


def _by_beginning(numbered: tuple[int, LayerSpan]) -> tuple[int, int, int]:
    """Sorts calls by their beginning, outer ones first: they return later than what they call."""
    number, span = numbered
    return span.first, -span.end, -number


class InnermostLayers:
    """Which layer each operation belongs to: the innermost of those whose calls hold it.

    A step may have ten thousands of calls and of operations: each is looked up in no time.
    """

    def __init__(self, spans: Sequence[LayerSpan]) -> None:
        self._begins: list[int] = []
        self._places: list[int | None] = []
        """The layer from each of these numbers on; `None` for none."""
        open_: list[LayerSpan] = []
        for _, span in sorted(enumerate(spans), key=_by_beginning):
            self._close(open_, span.first)
            open_.append(span)
            self._note(span.first, span.place)
        if spans:
            self._close(open_, max(span.end for span in spans))

    def _close(self, open_: list[LayerSpan], number: int) -> None:
        while open_ and open_[-1].end <= number:
            ended = open_.pop()
            self._note(ended.end, open_[-1].place if open_ else None)

    def _note(self, number: int, place: int | None) -> None:
        self._begins.append(number)
        self._places.append(place)

    def between(self, before: int | None, after: int | None) -> list[int | None]:
        """The layers, one after the other, that something done after the operation of one number
        and before that of a later one may belong to; without a number, from the beginning or to the
        end."""
        begin = 0 if before is None else bisect_right(self._begins, before)
        end = len(self._begins) if after is None else bisect_right(self._begins, after)
        return [None if before is None else self.at(before), *self._places[begin:end]]

    def at(self, number: int) -> int | None:
        """The layer of the operation with this number; `None` for none."""
        found = bisect_right(self._begins, number) - 1
        return self._places[found] if found >= 0 else None


class LossGraph:
    """Looks at the graph of a loss when it is not finite."""

    def __init__(
        self,
        session: Session,
        models: Models,
        file: LayerFile,
        spans: Callable[[], Sequence[LayerSpan]],
        open_spans: Callable[[], Sequence[LayerSpan]],
    ) -> None:
        """`spans` are those of the last step whose layers were timed, `open_spans` those of the
        step that runs, where its layers are, by the numbers that operations have in it."""
        self._session, self._models, self._file = session, models, file
        self._spans, self._open_spans = spans, open_spans
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self._looks = self._learned_from = 0
        self._was_finite: bool | None = None
        """Whether the last loss was; `None` where none has been seen …"""
        self._finite_at = 0
        """… and how many events there were at the last one that was."""
        self._spoiled: set[str] = set()
        """The layers that are known to hold parameters that are not finite."""
        self._usual: list[UsualOperation] = []
        self._usual_layers = InnermostLayers([])
        self._idle: list[LayerSpan] = []
        """Calls in which layers did nothing, in the same step."""

    def check_loss(self, loss: Any) -> bool:
        """Whether a loss that backward begins with is not finite; then say which layer made it."""
        if type(loss) is not torch.Tensor or not loss.is_cpu or loss.numel() != 1:
            return False
        self._learn(loss)
        if not loss.is_floating_point():
            return False
        was_finite = self._was_finite
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            self._was_finite = math.isfinite(TENSOR_OF_TORCH.item(loss))  # by no mode's leave
        if self._was_finite:
            # As the pass begins, the step before is complete where passes mark the steps.
            begins = self._session.marks_by_backward
            self._finite_at = self._session.recorder.written + begins
        if not self._was_finite and self._looks < MAX_LOOKS:
            self._looks += 1
            self._tell(loss, was_finite)
        return not self._was_finite

    def _learn(self, loss: torch.Tensor) -> None:
        """Remember the operations of a step whose layers are timed, and whose each of them is."""
        spans = self._open_spans()
        if not spans or len(spans) == self._learned_from:
            return
        self._learned_from = len(spans)
        layers = layers_of(self._models.training())
        names = autograd_graph.parameter_names((layer.name, layer.module) for layer in layers)
        nodes = autograd_graph.nodes_of(loss)[::-1]
        if 0 < len(nodes) <= MAX_LEARNED:
            innermost = self._usual_layers = InnermostLayers(spans)
            self._usual = [
                UsualOperation(label, innermost.at(node._sequence_nr()), node._sequence_nr())
                for node, label in zip(nodes, _labels(nodes, names), strict=True)
            ]
            self._idle = [span for span in spans if span.first == span.end]

    def _tell(self, loss: torch.Tensor, was_finite: bool | None) -> None:
        nodes = autograd_graph.nodes_of(loss)
        layers = layers_of(self._models.training() or _owners_of(nodes))
        step = self._session.count_begun()
        spoiled = places_with_bad_parameters(layers)
        if spoiled:
            self._write_bad_parameters(layers, spoiled, step, was_finite)
            return
        with torch._C._DisableTorchDispatch():  # a mode is given a saved factor as a mere number
            bad = autograd_graph.first_bad_node(nodes)
        if bad is not None and bad.is_given:
            self._file.write(layers, {"step": step, "has_bad_inputs": True})
        elif bad.is_hidden if bad else autograd_graph.has_packed(nodes):
            self._file.write(layers, {"step": step, "has_bad_loss": True, "is_packed": True})
        elif bad and (suspects := self.suspects_of(bad.node, nodes, layers)) is not None:
            self._file.write(layers, {"step": step, **suspects.as_line()})
        else:
            self._file.write(layers, {"step": step, "has_bad_loss": True})

    def _write_bad_parameters(
        self,
        layers: Sequence[ModelLayer],
        spoiled: Sequence[int],
        step: int,
        was_finite: bool | None,
    ) -> None:
        """Write which parameters were lost, and in which step: that of the last finite loss, which
        may be this one (a GAN has two), or none where they were given so. Not again at later steps,
        as long as no others are lost."""
        names = {layers[place].name for place in spoiled}
        is_known, self._spoiled = names <= self._spoiled, names
        if is_known or not (was_finite or (was_finite is None and step == 1)):
            return
        lost_in = self._session.count_steps(self._finite_at) + 1 if was_finite else 0
        line: dict[str, Any] = {"step": lost_in, "bad_parameters": spoiled}
        if lost_in == step:
            line["is_within_step"] = True
        self._file.write(layers, line)

    def layer_of(self, node: Any, nodes: list[Any]) -> str | None:
        """The name of the layer that an operation belongs to; `None` where that is not known."""
        layers = layers_of(self._models.training())
        suspects = self.suspects_of(node, nodes, layers)
        return None if suspects is None else layers[suspects.places[0]].name

    def suspects_of(
        self, node: Any, nodes: list[Any], layers: Sequence[ModelLayer]
    ) -> Suspects | None:
        """The layers that an operation may belong to; `None` where that is not known."""
        names = autograd_graph.parameter_names((layer.name, layer.module) for layer in layers)
        owners = {names.get(id(each)) for each in autograd_graph.owned_parameters(node)} - {None}
        if len(owners) == 1:  # what reads a layer's parameters is its own
            (owner,) = owners
            place = next((at for at, layer in enumerate(layers) if layer.name == owner), None)
        elif self._usual and len(nodes) <= MAX_LEARNED:
            return self._suspects_by_likeness(node, nodes[::-1], layers, names)
        else:
            place = self._place_by_numbers(node, nodes, layers, names)
        return None if place is None else Suspects([place])

    def _place_by_numbers(
        self,
        node: Any,
        nodes: list[Any],
        layers: Sequence[ModelLayer],
        names: dict[int, str],
    ) -> int | None:
        """The layer of an operation, by its number and by the layers with parameters around it."""
        spans, first = self._spans(), nodes[-1]._sequence_nr()
        if spans and _fits(spans, nodes, first, [layer.name for layer in layers], names):
            return InnermostLayers(spans).at(node._sequence_nr() - first)
        places = {layer.name: place for place, layer in enumerate(layers)}
        before, after = autograd_graph.layers_around(node, nodes, names)
        between = _between(spans, places.get(before or ""), places.get(after or ""))
        own_code = [place for place in between if not layers[place].is_of_library]
        if len(own_code) == 1:
            return own_code[0]
        name = autograd_graph.layer_of(node, nodes, names)
        return None if name is None else places.get(name)

    def _suspects_by_likeness(
        self,
        node: Any,
        nodes: Sequence[Any],
        layers: Sequence[ModelLayer],
        names: dict[int, str],
    ) -> Suspects | None:
        """The layers of an operation, by the operations around it that are as usual."""
        around = usual_around([each.label for each in self._usual], _labels(nodes, names))
        number = next(number for number, each in enumerate(nodes) if each is node)
        before, after = (None if near is None else self._usual[near] for near in around[number])
        if before == after:
            place = None if before is None else before.place
            return None if place is None else Suspects([place])
        idle = self._idle_between(*around[number], layers)
        if idle is not None:
            return Suspects([idle])
        return self._suspects_between(before, after, layers)

    def _suspects_between(
        self,
        before: UsualOperation | None,
        after: UsualOperation | None,
        layers: Sequence[ModelLayer],
    ) -> Suspects | None:
        """The layers of an operation that is new between two usual ones, innermost layers first.

        What is done otherwise than usual is the script's own code: layers of libraries always do
        the same. Where calls end or begin between the two, it may lie in any of those.
        """
        begin, end = (None if each is None else each.number for each in (before, after))
        found = self._usual_layers.between(begin, end)
        known = list(dict.fromkeys(place for place in found if place is not None))
        own = [place for place in known if not layers[place].is_of_library]
        is_at_end = after is None or after.place is None
        if is_at_end and (before is None or before.place not in own):
            return None  # as likely outside of all layers
        if not own:
            return None if None in found else Suspects(known[-1:])
        own.sort(key=lambda place: -_depth(layers[place].name))
        return Suspects(own[:MAX_SUSPECTS], is_at_end)

    def _idle_between(
        self, before: int | None, after: int | None, layers: Sequence[ModelLayer]
    ) -> int | None:
        """The layer of the script's that is called between two usual operations and usually does
        nothing; `None` where there is not just one. What is done there for once is that layer's
        rather than that of the one that calls it."""
        if before == after or after is None:
            return None
        first = self._usual[before].number if before is not None else -1
        end = self._usual[after].number
        found = {
            span.place
            for span in self._idle
            if first < span.first <= end and not layers[span.place].is_of_library
        }
        return found.pop() if len(found) == 1 else None


def _labels(nodes: Sequence[Any], names: dict[int, str]) -> list[str]:
    """Operations by what they are, and by the layers whose parameters they take."""
    return [
        " ".join(
            (
                node.name(),
                *(names[id(p)] for p in autograd_graph.owned_parameters(node) if id(p) in names),
            )
        )
        for node in nodes
    ]


def usual_around(usual: Sequence[str], found: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """For each operation found, the usual one that it is, twice; or for one that is new, that
    before it and that after it. One in the place of another counts as that other.

    The graphs differ in a few places: most of both is equal at their beginning and end. Where they
    differ in very much, nothing is known of what lies between: training waits for the answer.
    """
    same = 0
    while same < min(len(usual), len(found)) and usual[same] == found[same]:
        same += 1
    at_end = 0
    while at_end < min(len(usual), len(found)) - same and usual[-1 - at_end] == found[-1 - at_end]:
        at_end += 1
    around: list[tuple[int | None, int | None]] = [(number, number) for number in range(same)]
    others, new = usual[same : len(usual) - at_end], found[same : len(found) - at_end]
    if len(others) * len(new) > MAX_PAIRS:
        opcodes, around = [], around + [(None, None)] * len(new)
    else:
        opcodes = SequenceMatcher(None, others, new, autojunk=False).get_opcodes()
    for kind, first, end, first_found, end_found in opcodes:
        for number in range(end_found - first_found):
            if kind == "insert":
                before, after = same + first - 1, same + first
                around.append(
                    (before if before >= 0 else None, after if after < len(usual) else None)
                )
            else:
                place = same + min(first + number, end - 1)
                around.append((place, place))
    around += [(number, number) for number in range(len(usual) - at_end, len(usual))]
    return around


def _owners_of(nodes: Sequence[Any]) -> list[torch.nn.Module]:
    """The models whose parameters these operations take, before an optimizer has told of any."""
    wanted = {id(each) for node in nodes for each in autograd_graph.owned_parameters(node)}
    return outermost(own_any(wanted, modules_held_by_callers()))


def places_with_bad_parameters(layers: Sequence[ModelLayer]) -> list[int]:
    """The layers that hold a parameter of their own which is not finite, as far as this rank holds
    it: asking for all of it may mean to wait for other ranks."""
    with torch.no_grad():
        return [
            place
            for place, layer in enumerate(layers)
            if any(
                (numbers := plain_numbers(parameter)) is not None
                and not bool(torch.isfinite(numbers).all())
                for parameter in layer.module._parameters.values()
            )
        ]


def _between(spans: Sequence[LayerSpan], before: int | None, after: int | None) -> list[int]:
    """The layers without layers of their own that returned between two others.

    A step in which a layer does something else than usual has another graph; only the script's own
    layers do such a thing.
    """
    order = list(dict.fromkeys(span.place for span in spans))
    if len(spans) > MAX_SPANS or before == after or before not in order or after not in order:
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
    innermost = InnermostLayers(spans)
    for node in nodes:
        owners = {names[id(p)] for p in autograd_graph.owned_parameters(node) if id(p) in names}
        if owners:
            place = innermost.at(node._sequence_nr() - first)
            if place is None or not _is_owner(layers[place], owners):
                return False
    return True


def _depth(name: str) -> int:
    """How many layers hold the one of that name, as far as their names tell."""
    return name.count(".") + 1 if name else 0


def _is_owner(layer: str, owners: set[str]) -> bool:
    """Whether a layer holds one of these, or is one: some call functions with a child's weights."""
    return any(owner == layer or _is_below(owner, layer) for owner in owners)


def _is_below(name: str, layer: str) -> bool:
    """Whether a layer holds the one of that name; that without a name is the model itself."""
    return name.startswith(f"{layer}." if layer else "")
