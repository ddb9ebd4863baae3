"""How many floating-point operations a step takes and how many bytes it moves, by layer.

Every operation of one step is looked at as torch dispatches it: after it has run as it would have
anyway, its operations are counted by a formula, and its tensors by their size. Where nobody knows
how many operations one does, that is noted: its layer has no number then, rather than too few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from traceml.model.layer_names import COUNTED
from traceml.trace.compiling import is_traced, left_alone
from traceml.trace.deep.flop_formulas import composite, flops_of, operation_name
from traceml.trace.deep.layer_marks import LayerMarks, tensors_in
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import FORWARD, OUTSIDE, Owner, OwnTimes, owners
from traceml.trace.deep.operations_without_flops import is_view
from traceml.trace.session import Session
from traceml.trace.tensor_memory import tensor_bytes

FAILED = "counting failed in this process"
OWN_MODE = "the script uses a TorchDispatchMode of its own, and TraceML adds none beside it"
TRACED = (
    "torch.jit.trace ran in the step that is counted, and what it records beside the count "
    "cannot be called"
)
NO_CALL = "no layer was called in the step that is counted"


class OperationCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts a step's operations as torch dispatches them, from the first call of a layer on.

    Not before: a loader's worker that is forked for a new epoch would count all that it ever does.
    Nor where the script has entered a mode of its own around that call: as the script leaves it,
    torch takes out the topmost mode, which would be ours, and the script's would stay for ever.
    Beside any such mode `torch.jit.trace` records operations that fail when they are called: where
    it begins, the count ends.
    """

    supports_higher_order_operators = True  # without it torch raises at such an operation

    def __init__(self, session: Session, layers: Sequence[ModelLayer]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._session = session
        self._marks = LayerMarks(session, layers, None, self._enter, self._make_room_for_trace)
        self._is_traced = False
        self._restores: list[Callable[[], None]] = []
        self._count = session.guard(self._count_one, any_thread=True, failed=self._marks.fail)
        self._see_parts = session.guard(self._parts_of, any_thread=True, failed=self._marks.fail)
        self._is_entered = self._has_entered = False
        self._seen: list[tuple[int, int, int]] = []
        """After how many marks, how many operations, how many bytes."""
        self._uncounted: dict[str, set[int]] = {}
        """Operations that nobody can count, by name, and after how many marks."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks whether to keep its compiler out of us: that would load the compiler, which
        takes seconds. It is left out in another way, below."""
        return False

    def begin(self) -> None:
        """Count from here on."""
        self._marks.begin()
        name = "_create_function_from_trace"
        trace: Any = getattr(torch._C, name)  # the script's own, where it has replaced torch's
        make_room = self._session.guard(self._make_room_for_trace, failed=self._marks.fail)

        def create_function_from_trace(*arguments: Any, **options: Any) -> Any:
            make_room()
            return trace(*arguments, **options)

        replace = self._session.replace
        self._restores.append(replace(torch._C, name, create_function_from_trace))

    def _make_room_for_trace(self) -> None:
        """`torch.jit.trace` begins; also once more, where the script has kept our replacement."""
        self._is_traced = self._is_traced or self._marks.is_on
        self.end()

    def _enter(self) -> None:
        is_here = get_ident() == self._session.thread  # a thread of the backward pass has its own
        if not self._is_entered and is_here and _topmost() is None:
            self._is_entered = self._has_entered = True
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> bool:
        """Count no more; whether nothing is left in torch.

        A mode of the script's that it entered meanwhile lies above ours: then ours stays until it
        is the topmost again.
        """
        self._marks.end()
        while self._restores:
            self._restores.pop()()
        if self._is_entered and _topmost() is self:
            self.__exit__(None, None, None)
            self._is_entered = False
        return not self._is_entered

    @property
    def lost(self) -> str | None:
        """Why the step was not seen to its end; `None` where it was."""
        return self._marks.lost

    @property
    def why_nothing(self) -> str:
        """Why nothing was counted in a step that was seen to its end: the reason as a note."""
        if self._is_traced:
            return TRACED
        if self._has_entered:
            return FAILED
        return OWN_MODE if self._marks.calls else NO_CALL

    @property
    def has_others_before(self) -> bool:
        """Whether another module with parameters ran before the count began."""
        return self._marks.has_others_before

    @property
    def given_elements(self) -> int:
        """How many elements the models were called with."""
        return self._marks.given_elements

    @property
    def is_counting(self) -> bool:
        """Whether the step is still being looked at."""
        return self._marks.is_on

    @property
    def is_complete(self) -> bool:
        """Whether the step was seen to its end."""
        return self._marks.is_complete and bool(self._seen) and not self._is_traced

    @left_alone  # of a model that is compiled from this very step on
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation as it is, then count it; or see what it is made of."""
        kwargs = kwargs or {}
        if is_traced():
            return func(*args, **kwargs)
        parts = self._see_parts(func, types, args, kwargs)
        if parts is NotImplemented:
            return NotImplemented
        if parts is not None:
            with self:
                return parts(*args, **kwargs)
        result = func(*args, **kwargs)
        self._count(func, args, kwargs, result)
        return result

    def _parts_of(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Returns a function that runs an operation as further ones, which are then counted here;
        `None` where it is not made of others.

        Tensor subclasses, such as those that are spread over ranks, run this rank's part on plain
        tensors; `NotImplemented` makes torch ask them to.
        """
        if any(_dispatches_itself(kind) for kind in types):
            return NotImplemented
        first = next(tensors_in((args, kwargs)), None) if self._marks.is_on else None
        return None if first is None else composite(func, first.device.type)

    def _count_one(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not self._marks.is_on or _only_tells_shapes(args, result):
            return
        done = flops_of(func, args, kwargs, result)
        moved = 0 if is_view(func) else _bytes_moved(func, args, kwargs, result)
        marks_before = len(self._marks.marks)
        if done or moved:
            self._seen.append((marks_before, done or 0, moved))
        if done is None:
            self._uncounted.setdefault(operation_name(func), set()).add(marks_before)

    def by_layer(self) -> dict[str, dict[int, int]]:
        """Operations and bytes of the forward and backward passes, and of what is computed again
        in backward, by layer; what no layer did is at `OUTSIDE`."""
        found: dict[str, dict[int, int]] = {name: {} for name in COUNTED}
        working = owners(self._marks.marks)
        for marks_before, done, moved in self._seen:
            phase, place = _owner(working, marks_before)
            name = OwnTimes._fields[phase]
            for what, amount in (("flops", done), ("bytes", moved)):
                amounts = found[f"{name}_{what}"]
                amounts[place] = amounts.get(place, 0) + amount
        return found

    def uncounted(self) -> dict[str, list[int]]:
        """The operations that nobody can count, by name, with the layers that do them."""
        working = owners(self._marks.marks)
        return {
            name: sorted({_owner(working, before)[1] for before in places})
            for name, places in self._uncounted.items()
        }


def _owner(working: Sequence[Owner | None], marks_before: int) -> Owner:
    """Who works after so many marks. What no layer does is a loss between the passes, or an
    optimizer after them."""
    owner = working[marks_before - 1] if marks_before else None
    return owner or (FORWARD, OUTSIDE)


def _dispatches_itself(kind: Any) -> bool:
    """Whether tensors of this class define how operations on them are run
    (`__torch_dispatch__`)."""
    own = kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
    return own and not issubclass(kind, FakeTensor)


def _only_tells_shapes(args: Any, result: Any) -> bool:
    """Whether an operation computed nothing: tensors that are spread over ranks learn in this way
    what an operation returns for shapes that it had not met before, and scripts on torch's meta
    device."""
    tensors = tensors_in((args, result))
    return any(isinstance(each, FakeTensor) or each.is_meta for each in tensors)


def _topmost() -> Any:
    stack = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(stack - 1) if stack else None


_LOOK_UPS = frozenset(
    f"aten::{name}" for name in ("embedding", "gather", "index", "index_select", "take")
)
_BAGS = frozenset(("aten::_embedding_bag", "aten::_embedding_bag_forward_only"))
"""Operations that read of their first tensor what they return; these the rows that they add up."""


def _bytes_moved(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """How many bytes an operation reads and writes."""
    moved, name = _bytes_in((args, kwargs)) + _bytes_in(result), operation_name(func)
    if name in _LOOK_UPS:
        return moved - max(0, tensor_bytes(args[0]) - _bytes_in(result))
    if name in _BAGS:
        table, numbers = args[:2]
        rows = numbers.numel() * table.shape[-1] * table.element_size()
        return moved - max(0, tensor_bytes(table) - int(rows))
    return moved


def _bytes_in(things: Any, depth: int = 0) -> int:
    if isinstance(things, torch.Tensor):
        return tensor_bytes(things)
    if depth < 3 and isinstance(things, (tuple, list)):
        return sum(_bytes_in(thing, depth + 1) for thing in things)
    if depth < 3 and isinstance(things, dict):
        return sum(_bytes_in(thing, depth + 1) for thing in things.values())
    return 0
