"""What the graph behind a loss says: how far a backward pass came, where a value is not finite, and
what is kept for backward.

Looked at only when something has gone wrong, and in a few steps of the deep profile. Saved tensors
are read as they lie: no hook that packs or recomputes them is called, and nothing of the graph
changes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from traceml.trace.interruptions import is_interruption

MAX_NODES = 200_000
"""A larger graph is not looked at."""
MAX_CHAIN = 4
"""Nodes between an operation and a parameter: a transposed weight, a cast one, a view of one."""
_SAVED = "_raw_saved_"
_FIRST_OF_TWO, _SECOND_OF_TWO = ("self", "input", "mat1"), ("other", "mat2", "exponent")
"""What torch calls the saved inputs of operations with two of them."""
_RESULTS = frozenset(
    ("output", "solution", "inverse", "eigenvalues", "eigenvectors", *"LQRSU", "Vh")
)
"""What torch calls a saved result, beside names with `result` in them."""
_MASKS = frozenset(("attn_mask", "attn_bias", "bias", "mask"))
"""What torch calls a saved mask: what it hides is minus infinity."""
_BESIDE = "sumexp"
"""The end of the names of what attention saves beside its output; of a row in which all is hidden
it is minus infinity."""

_PASSES_ON = (
    *(
        "Relu",
        "Tanh",
        "Sigmoid",
        "Dropout",
        "MaxPool",
        "Clone",
        "ToCopy",
        "Cat",
        "Stack",
        "Alias",
        "Split",
        "Chunk",
    ),
    *("View", "Reshape", "Permute", "Transpose", "TBackward", "Expand", "Squeeze", "Slice"),
    *("Select", "Index", "Contiguous"),
)
"""In the names of operations that never make a bad value of finite ones."""
MAX_SCALE = 16.0
"""A factor up to this hardly ever makes a finite value infinite."""
_CHECKPOINT = "CheckpointFunction"
"""In the name of the operation that stands for all of a block, in reentrant checkpointing."""
_SUMS = ("AddBackward", "SubBackward")
"""Operations that save nothing and hardly ever overflow by themselves."""


next_operation: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)
"""The number that the next node will have; not known in an old torch."""


def can_number_operations() -> bool:
    """Whether the number of the next node is known."""
    return hasattr(torch.autograd, "_get_sequence_nr")


def can_see_saved_tensors() -> bool:
    """Whether this torch tells what a hook has packed from what it has not; an older one does not
    let us see what is saved at all."""
    return hasattr(torch._C._autograd.SavedTensor, "unpack_hook")


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


def has_operation_between(roots: Any, first: int, end: int) -> bool:
    """Whether the graph behind tensors has an operation with one of these numbers (`first` is one,
    `end` is none); views and casts of parameters apart, which a script may keep from step to step.

    Not in too large a graph. Each thread numbers its operations by itself: one that takes the
    result of a later number is another thread's, such as what backward computes for a penalty on a
    gradient, and its number says nothing.
    """
    tensors = roots if isinstance(roots, (list, tuple)) else [roots]
    waiting = [node for each in tensors if (node := getattr(each, "grad_fn", None)) is not None]
    found = set(waiting)
    while waiting and len(found) <= MAX_NODES:
        node = waiting.pop()
        is_between = first <= node._sequence_nr() < end and not _is_of_one_leaf(node)
        if is_between and not _takes_later(node, end):
            return True
        for below, _ in node.next_functions:
            if below is not None and below not in found:
                found.add(below)
                waiting.append(below)
    return False


def _takes_later(node: Any, end: int) -> bool:
    """Whether an operation takes, at whatever distance, the result of one with this number or a
    later one."""
    waiting, seen = [node], {node}
    while waiting and len(seen) <= MAX_NODES:
        for below, _ in waiting.pop().next_functions:
            if below is None or below in seen or _is_leaf(below):
                continue
            if below._sequence_nr() >= end:
                return True
            seen.add(below)
            waiting.append(below)
    return False


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


def saved_tensors(nodes: Iterable[Any]) -> Iterator[tuple[Any, torch.Tensor]]:
    """Each node with each tensor that it has saved and not released, without those that a hook has
    packed."""
    for node, tensor in saved_and_packed(nodes):
        if tensor is not None:
            yield node, tensor


def saved_and_packed(nodes: Iterable[Any]) -> Iterator[tuple[Any, torch.Tensor | None]]:
    """Each node with each tensor that it has saved and not released; `None` in place of one that a
    hook has packed."""
    names: dict[type, list[str]] = {}  # a graph has many nodes of few kinds
    for node in nodes:
        kind = type(node)
        if kind not in names:
            names[kind] = _saved_names(node)
        for name in names[kind]:
            for saved in _saved(node, name):
                tensor = _data(saved)
                if isinstance(tensor, torch.Tensor):
                    yield node, tensor
                elif _is_packed(saved):
                    yield node, None


def has_packed(nodes: Iterable[Any]) -> bool:
    """Whether what any operation saved cannot be seen: a hook has packed it, or reentrant
    checkpointing hides the operation."""
    if not can_see_saved_tensors():
        return False
    return any(
        _CHECKPOINT in node.name() or any(each is None for _, each in saved_and_packed([node]))
        for node in nodes
    )


class BadNode(NamedTuple):
    """The first operation with a value that is not finite."""

    node: Any
    is_given: bool
    """Whether it was given that value by no other operation: it is in what the model was given."""
    is_hidden: bool = False
    """Whether it may have been given that value all the same: what leads to it was packed."""


def first_bad_node(nodes: Iterable[Any]) -> BadNode | None:
    """The operation that made, or was given, the first value that is not finite, of those that were
    saved; the parameters are finite.

    A bad result was made by the operation that saved it; a bad input by the one that it came from,
    unless it comes from no operation at all. Minus infinity may be meant, as where logits are
    masked: it is passed over where a worse value was made without it.
    """
    ordered = sorted(nodes, key=lambda each: each._sequence_nr())
    found = _first_bad(ordered, _is_finite)
    worse = None if found is None else _first_bad(ordered, _is_finite_or_hidden)
    if found is None or worse is None or _takes(worse.node, found.node):
        return found
    return worse


def _first_bad(nodes: Iterable[Any], is_fine: Callable[[Any], bool]) -> BadNode | None:
    """The operation that made, or was given, the first value that is not fine."""
    finite: set[Any] = set()  # operations whose results were saved, and are finite
    for node in nodes:
        given = _given(node)
        parameters = {_memory(each) for each in owned_parameters(node)}
        for name in _saved_names(node):
            short = name.removeprefix(_SAVED)
            if short.endswith(_BESIDE):
                continue
            is_fine_here = _is_finite_or_hidden if short in _MASKS else is_fine
            for data in filter(_is_tensor, map(_data, _saved(node, name))):
                is_result = _is_result(short)
                if not is_fine_here(data):
                    if not is_result and not given:
                        return BadNode(node, is_given=True)
                    made = _maker(node if is_result else _source(node, name), finite)
                    return BadNode(made, is_given=False, is_hidden=_is_hidden(made))
                if is_result:
                    finite.add(node)
                elif _memory(data) not in parameters and len(given) == 1:
                    finite.update(given)
    return None


def _is_hidden(node: Any) -> bool:
    """Whether no saved input tells that an operation was given finite values, because it is packed;
    all inputs that can be seen are finite."""
    waiting, seen = [node], {node}
    while waiting:
        each = waiting.pop()
        if has_packed([each]):
            return True
        if _has_seen_input(each):
            continue
        for below in _given(each):
            if below not in seen:
                seen.add(below)
                waiting.append(below)
    return False


def _has_seen_input(node: Any) -> bool:
    """Whether an operation has saved something else than its results, parameters and factors."""
    parameters = {_memory(each) for each in owned_parameters(node)}
    return any(
        data.dim() > 0 and _memory(data) not in parameters
        for name in _saved_names(node)
        if not _is_result(name.removeprefix(_SAVED))
        for data in filter(_is_tensor, map(_data, _saved(node, name)))
    )


def _is_result(short: str) -> bool:
    """Whether torch calls a saved result so."""
    return "result" in short or short in _RESULTS


def _takes(node: Any, below: Any) -> bool:
    """Whether an operation is another one, or takes its result at whatever distance."""
    waiting, seen = [node], {node}
    while waiting:
        each = waiting.pop()
        if each is below:
            return True
        for further, _ in each.next_functions:
            if further is not None and further not in seen:
                seen.add(further)
                waiting.append(further)
    return False


def _given(node: Any) -> list[Any]:
    """The operations whose results this one takes, without those that only turn a parameter
    round."""
    below = [each for each, _ in node.next_functions if each is not None and not _is_leaf(each)]
    return [each for each in below if not _only_parameters(each)]


def _memory(tensor: Any) -> int:
    """Identifies the memory of a tensor, where it has one."""
    local = getattr(tensor, "_local_tensor", tensor)  # what this rank holds of one that is spread
    is_plain = isinstance(local, torch.Tensor) and local.layout == torch.strided
    return local.untyped_storage().data_ptr() if is_plain else id(tensor)


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


def _is_of_one_leaf(node: Any) -> bool:
    """Whether a node only looks at a parameter in another way: a transposed or cast weight."""
    for _ in range(MAX_CHAIN):
        if node is None or _is_leaf(node) or len(node.next_functions) != 1:
            break
        node = node.next_functions[0][0]
    return node is not None and _is_leaf(node)


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


def _is_tensor(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor)


def _is_finite(tensor: Any) -> bool:
    if not _can_be_bad(tensor):
        return True
    with torch.no_grad():
        return bool(torch.isfinite(tensor).all())


def _is_finite_or_hidden(tensor: Any) -> bool:
    """Whether a tensor is finite where it is not minus infinity."""
    if not _can_be_bad(tensor):
        return True
    with torch.no_grad():
        is_fine = torch.isfinite(tensor)
        if not tensor.is_complex():
            is_fine |= torch.isneginf(tensor)
        return bool(is_fine.all())


def _can_be_bad(tensor: Any) -> bool:
    """Whether a tensor may hold what is not finite, and can be looked at without waiting."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_cpu:
        return False
    if tensor.layout != torch.strided:
        return False
    return bool(tensor.is_floating_point() or tensor.is_complex())


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
    return max(_given(node), key=lambda each: each._sequence_nr(), default=None)


def _maker(node: Any, finite: Container[Any]) -> Any:
    """The operation itself, or one before it, where it only passes on what it is given, or adds
    what is known to be finite to it."""
    while True:
        unknown = [each for each in _given(node) if each not in finite]
        if any(word in node.name() for word in _PASSES_ON) or _scales_little(node):
            below = _latest_below(node)
        else:
            is_sum = node.name().startswith(_SUMS) and len(unknown) == 1
            below = unknown[0] if is_sum and not owned_parameters(node) else None
        if below is None:
            return node
        node = below


def _scales_little(node: Any) -> bool:
    """Whether an operation multiplies what it is given by constants that are finite and small, as
    dropout does on a CPU."""
    if not node.name().startswith("MulBackward") or len(_given(node)) != 1:
        return False
    if owned_parameters(node):
        return False
    kept = [tensor for _, tensor in saved_tensors([node])]
    with torch.no_grad():
        return bool(kept) and all(
            each.is_cpu and each.is_floating_point() and bool((each.abs() <= MAX_SCALE).all())
            for each in kept
        )


def _only_parameters(node: Any) -> bool:
    """Whether a node only turns a parameter round: a transposed or cast weight."""
    if _CHECKPOINT in node.name():  # all of a block, given a batch that needs a gradient
        return False
    followed = [each for each, _ in node.next_functions]
    return len(followed) == 1 and followed[0] is not None and _is_leaf(followed[0])
