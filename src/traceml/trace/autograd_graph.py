"""What the graph behind a loss says: how far a backward pass came, where a value is not finite.

Looked at only when something has gone wrong. Saved tensors are read as they lie: no hook that packs
or recomputes them is called, and nothing of the graph changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from traceml.trace.interruptions import is_interruption

MAX_NODES = 200_000
"""A larger graph is not looked at."""
MAX_CHAIN = 4
"""Nodes between an operation and a parameter: a transposed weight, a cast one, a view of one."""
_SAVED = "_raw_saved_"
_FIRST_OF_TWO, _SECOND_OF_TWO = ("self", "input", "mat1"), ("other", "mat2", "exponent")
"""What torch calls the saved inputs of operations with two of them."""

_PASSES_ON = (
    *("Relu", "Dropout", "MaxPool", "Clone", "ToCopy", "Cat", "Stack", "Alias", "Split", "Chunk"),
    *("View", "Reshape", "Permute", "Transpose", "TBackward", "Expand", "Squeeze", "Slice"),
    *("Select", "Index", "Contiguous"),
)
"""In the names of operations that never make a bad value of finite ones."""


def nodes_of(roots: Any) -> list[Any]:
    """The nodes behind one or several tensors, the latest first; without those of parameters.

    Empty where there is no graph, or too large a one.
    """
    tensors = roots if isinstance(roots, (list, tuple)) else [roots]
    waiting = [node for each in tensors if (node := getattr(each, "grad_fn", None)) is not None]
    found = {node: node for node in waiting}
    while waiting and len(found) <= MAX_NODES:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in found:
                found[node] = node
                waiting.append(node)
    if len(found) > MAX_NODES:
        return []
    return sorted((n for n in found if not _is_leaf(n)), key=lambda n: -n._sequence_nr())


def reached_node(nodes: Iterable[Any], has_begun: bool) -> Any | None:
    """The node at which a backward pass was when it failed: the latest that still has what it
    saved; `None` where that cannot be told.

    Unless the pass is known to have begun, a node after it must have released what it had saved.
    Of what a hook has packed (activation checkpointing, offloading) it cannot be told.
    """
    for node in nodes:
        for name in _saved_names(node):
            saved = list(_saved(node, name))
            if any(map(_is_packed, saved)):
                return None
            held = [_data(each) is not None for each in saved]
            if any(held):
                return node if has_begun else None
            has_begun = has_begun or bool(held)
    return None


def first_bad_node(nodes: Iterable[Any]) -> Any | None:
    """The operation that made the first value that is not finite, of those that were saved.

    A bad result was made by the operation that saved it; a bad input by the one that it came from.
    """
    for node in sorted(nodes, key=lambda each: each._sequence_nr()):
        for name in _saved_names(node):
            for saved in _saved(node, name):
                if not _is_finite(_data(saved)):
                    return _maker(node if "result" in name else _source(node, name))
    return None


def owned_parameters(node: Any) -> list[torch.Tensor]:
    """The parameters that an operation takes directly, be it through a view or a cast."""
    found = []
    for below, _ in node.next_functions:
        for _ in range(MAX_CHAIN):
            if below is None or _is_leaf(below):
                break
            followed = [each for each, _ in below.next_functions]
            below = followed[0] if len(followed) == 1 else None
        if below is not None and _is_leaf(below):
            found.append(below.variable)
    return found


def layers_around(
    node: Any, nodes: list[Any], names: Mapping[int, str]
) -> tuple[str | None, str | None]:
    """The names of the layers with parameters that worked last before an operation, and first after
    it; both are the same where it takes parameters itself.

    `names` are those of the layers by the identity of their parameters.
    """
    own = _name(node, names)
    if own is not None:
        return own, own
    place = nodes.index(node)
    before = next((name for each in nodes[place:] if (name := _name(each, names))), None)
    after = next((name for each in nodes[place::-1] if (name := _name(each, names))), None)
    return before, after


def layer_of(node: Any, nodes: list[Any], names: Mapping[int, str]) -> str | None:
    """The name of the layer that an operation belongs to, by the parameters around it.

    An operation without parameters belongs to what holds both the layer before it and the one
    after it; `None` where that is the model itself.
    """
    before, after = layers_around(node, nodes, names)
    if before is None or after is None:
        return None
    shared = []
    for one, other in zip(before.split("."), after.split("."), strict=False):
        if one != other:
            break
        shared.append(one)
    return ".".join(shared) or None


def parameter_names(modules: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """The names of layers by the identity of the parameters that they hold themselves."""
    return {
        id(parameter): name
        for name, module in modules
        for parameter in module._parameters.values()
        if parameter is not None
    }


def _name(node: Any, names: Mapping[int, str]) -> str | None:
    return next((names[id(p)] for p in owned_parameters(node) if names.get(id(p))), None)


def _is_leaf(node: Any) -> bool:
    return hasattr(node, "variable")


def _saved_names(node: Any) -> list[str]:
    return [name for name in dir(type(node)) if name.startswith(_SAVED)]


def _saved(node: Any, name: str) -> Iterator[Any]:
    """What a node has saved under a name; an operation on many tensors saves many."""
    try:
        raw = getattr(node, name)
    except RuntimeError as error:  # a function of the script's, which says so once it is released
        if is_interruption(error):
            raise
        raw = None
    yield from raw if isinstance(raw, (list, tuple)) else (raw,)


def _data(saved: Any) -> Any:
    """A saved tensor as it lies; `None` once it is released, and where a hook would unpack it."""
    return None if saved is None or _is_packed(saved) else saved.data


def _is_packed(saved: Any) -> bool:
    """Whether only a hook knows what was saved, or an old torch does not let us see it."""
    return saved is not None and getattr(saved, "unpack_hook", True) is not None


def _is_finite(tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cpu:
        return True
    if tensor.layout != torch.strided or not tensor.is_floating_point():
        return True
    with torch.no_grad():
        return bool(torch.isfinite(tensor).all())


def _source(node: Any, name: str) -> Any:
    """The operation that made an input of this one; this one where it is a constant's."""
    below = [each for each, _ in node.next_functions]
    short = name.removeprefix(_SAVED)
    if len(below) == 2 and short in (*_FIRST_OF_TWO, *_SECOND_OF_TWO):
        source = below[short in _SECOND_OF_TWO]
        return node if source is None or _is_leaf(source) else source
    return _latest_below(node) or node


def _latest_below(node: Any) -> Any | None:
    """The latest operation whose result this one takes, parameters apart."""
    below = [each for each, _ in node.next_functions if each is not None and not _is_leaf(each)]
    made = [each for each in below if not _only_parameters(each)]
    return max(made, key=lambda each: each._sequence_nr(), default=None)


def _maker(node: Any) -> Any:
    """The operation itself, or the one before it, where it only passes on what it is given."""
    while any(word in node.name() for word in _PASSES_ON):
        below = _latest_below(node)
        if below is None:
            break
        node = below
    return node


def _only_parameters(node: Any) -> bool:
    """Whether a node only turns a parameter round: a transposed or cast weight."""
    followed = [each for each, _ in node.next_functions]
    return len(followed) == 1 and followed[0] is not None and _is_leaf(followed[0])
