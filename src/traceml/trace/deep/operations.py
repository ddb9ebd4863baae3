"""How many floating-point operations a step takes and how many bytes it moves, by layer.

Every operation of one step is looked at as torch dispatches it: after it has run as it would have
anyway, its operations are counted by torch's own formulas, and its tensors by their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from traceml.model.layer_names import COUNTED
from traceml.trace.deep.layer_marks import LayerMarks, tensors_in
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import FORWARD, OUTSIDE, OwnTimes, owners
from traceml.trace.session import Session


class OperationCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts a step's operations as torch dispatches them, from the first call of a layer on.

    Not before: a loader's worker that is forked for a new epoch would count all that it ever does.
    Nor where the script has entered a mode of its own around that call: as the script leaves it,
    torch takes out the topmost mode, which would be ours, and the script's would stay for ever.
    """

    def __init__(self, session: Session, layers: Sequence[ModelLayer]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._session = session
        self._marks = LayerMarks(session, layers, None, self._enter)
        self._count = session.guard(self._count_one, any_thread=True, failed=self._marks.fail)
        self._is_entered = False
        self._seen: list[tuple[int, int, int]] = []
        """After how many marks, how many operations, how many bytes."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks whether to keep its compiler out of us: that would load the compiler, which
        takes seconds, and nothing is counted where a script compiles anything."""
        return False

    def begin(self) -> None:
        """Count from here on."""
        self._marks.begin()

    def _enter(self) -> None:
        is_here = get_ident() == self._session.thread  # a thread of the backward pass has its own
        if not self._is_entered and is_here and _topmost() is None:
            self._is_entered = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> bool:
        """Count no more; whether nothing is left in torch.

        A mode of the script's that it entered meanwhile lies above ours: then ours stays until it
        is the topmost again.
        """
        self._marks.end()
        if self._is_entered and _topmost() is self:
            self.__exit__(None, None, None)
            self._is_entered = False
        return not self._is_entered

    @property
    def lost(self) -> str | None:
        """Why the step was not seen to its end; `None` where it was."""
        return self._marks.lost

    @property
    def is_counting(self) -> bool:
        """Whether the step is still being looked at."""
        return self._marks.is_on

    @property
    def is_complete(self) -> bool:
        """Whether the step was seen to its end."""
        return self._marks.is_complete and bool(self._seen)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation as it is, then count it.

        One on tensors that are spread over ranks is left to them: they have this rank's part of it
        done by operations on plain tensors, which come here again.
        """
        if any(hasattr(kind, "_local_tensor") for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        self._count(func, args, kwargs or {}, result)
        return result

    def _count_one(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not self._marks.is_on or _only_tells_shapes(args, result):
            return
        counted = _formula(func._overloadpacket)
        done = 0 if counted is None else int(counted(*args, **kwargs, out_val=result))
        moved = 0 if _is_view(func) else _bytes_in((args, kwargs)) + _bytes_in(result)
        if done or moved:
            self._seen.append((len(self._marks.marks), done, moved))

    def by_layer(self) -> dict[str, dict[int, int]]:
        """Operations and bytes of the forward and backward passes, and of what is computed again
        in backward, by layer; what no layer did is at `OUTSIDE`."""
        found: dict[str, dict[int, int]] = {name: {} for name in COUNTED}
        working = owners(self._marks.marks)
        for marks_before, done, moved in self._seen:
            owner = working[marks_before - 1] if marks_before else None
            # What no layer does: a loss between the passes, an optimizer after them.
            phase, place = owner or (FORWARD, OUTSIDE)
            name = OwnTimes._fields[phase]
            for what, amount in (("flops", done), ("bytes", moved)):
                amounts = found[f"{name}_{what}"]
                amounts[place] = amounts.get(place, 0) + amount
        return found


def _formula(operation: Any) -> Any:
    """Counts an operation's floating-point operations; `None` for one that has none to speak of."""
    found = flop_registry.get(operation)
    return found if found is not None else _FUSED_ON_CPU.get(operation._qualified_op_name)


_count_fused: Any = flop_counter.sdpa_flop_count
_count_fused_backward: Any = flop_counter.sdpa_backward_flop_count


def _fused(query: Any, key: Any, value: Any, *more: Any, **options: Any) -> int:
    return int(_count_fused(query.shape, key.shape, value.shape))


def _fused_backward(
    gradient: Any, query: Any, key: Any, value: Any, *more: Any, **options: Any
) -> int:
    shapes = (each.shape for each in (gradient, query, key, value))
    return int(_count_fused_backward(*shapes))


_FUSED_ON_CPU = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": _fused,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _fused_backward,
}
"""Fused attention on a CPU, for which torch has no formula: the same as on a GPU."""


def _only_tells_shapes(args: Any, result: Any) -> bool:
    """Whether an operation computed nothing: tensors that are spread over ranks learn in this way
    what an operation returns for shapes that it had not met before."""
    return any(isinstance(each, FakeTensor) for each in tensors_in((args, result)))


def _topmost() -> Any:
    stack = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(stack - 1) if stack else None


def _is_view(func: Any) -> bool:
    """Whether an operation moves nothing: its result is another look at the same memory."""
    return any(
        each.alias_info is not None and not each.alias_info.is_write
        for each in func._schema.returns
    )


def _bytes_in(things: Any, depth: int = 0) -> int:
    if isinstance(things, torch.Tensor):
        return things.numel() * things.element_size()
    if depth < 3 and isinstance(things, (tuple, list)):
        return sum(_bytes_in(thing, depth + 1) for thing in things)
    if depth < 3 and isinstance(things, dict):
        return sum(_bytes_in(thing, depth + 1) for thing in things.values())
    return 0
