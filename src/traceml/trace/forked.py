"""What a forked child inherits from a process that traces: what it must never finalise, and locks
that must be free in it.

A CUDA event that is destroyed in a forked child calls into CUDA, which aborts the child; a pinned
tensor returns to an allocator that does the same. So a child keeps everything it inherits from us
for ever: it takes references that nobody gives back. Not even the end of Python itself, in a child
that ends by `sys.exit`, destroys an object that is referred to from a place it does not know.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from _thread import RLock
from collections import deque
from collections.abc import Callable, Iterable
from operator import methodcaller
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any, cast

from traceml.trace.interruptions import PACKAGE

_CONTAINERS = (
    BuiltinMethodType,
    CellType,
    MethodType,
    deque,
    dict,
    frozenset,
    functools.partial,
    list,
    set,
    tuple,
)


def after_fork(owner: object, **changes: Any) -> None:
    """In every forked child: keep an object with all it refers to, and set attributes of it.

    The handlers are functions in C: one in Python could be interrupted by a signal, and what the
    signal's handler raises would be discarded there.
    """
    os.register_at_fork(after_in_child=functools.partial(_reference_taker(), owner))
    for name, value in changes.items():
        os.register_at_fork(after_in_child=functools.partial(setattr, owner, name, value))


def lock_for_forks(max_wait_s: float) -> RLock:
    """Returns a lock that a fork waits for, at most that long, and that is free in the child.

    It is to be held around calls into a library, from a thread of ours: the locks of that library
    would otherwise stay locked in a child for ever, because the thread is not there to open them.
    These handlers are functions in C, too; only during that wait can a signal's exception be lost.
    """
    lock: Any = RLock()  # two of its methods are known to Python's own modules alone
    # An endless iterator in C: each `next` calls `release` if the lock is ours, else `tuple`, which
    # does nothing.
    actions = map((tuple, lock.release).__getitem__, iter(lock._is_owned, None))
    release_if_owned = functools.partial(next, map(methodcaller("__call__"), actions))
    os.register_at_fork(
        before=functools.partial(lock.acquire, True, max_wait_s),
        after_in_parent=release_if_owned,  # where the wait was too long, it is the thread's
        after_in_child=lock._at_fork_reinit,
    )
    return cast(RLock, lock)


def keep_for_ever(root: object) -> None:
    """Keep all that an object of ours holds by now, so that it may let go of it."""
    take_reference = _reference_taker()
    for each in _held([root]):
        take_reference(each)


@functools.cache
def _reference_taker() -> Callable[[object], None]:
    """Python's own function that counts one more reference to an object."""
    import ctypes  # torch has loaded it; a script without a run need not

    take_reference: Callable[[object], None] = ctypes.PyDLL(None).Py_IncRef
    take_reference.argtypes = [ctypes.py_object]  # type: ignore[attr-defined]
    take_reference.restype = None  # type: ignore[attr-defined]
    return take_reference


def _held(roots: Iterable[object]) -> list[object]:
    """All that is reached from these through our own objects and through plain containers.

    What belongs to others is reached and not looked into: models and tensors are the script's.
    """
    found: dict[int, object] = {}
    waiting = list(roots)
    while waiting:
        each = waiting.pop()
        if id(each) not in found:
            found[id(each)] = each
            if _is_looked_into(each):
                waiting.extend(gc.get_referents(each))
    return list(found.values())


def _is_looked_into(thing: Any) -> bool:
    kind = type(thing)
    if kind is FunctionType:
        return bool(thing.__code__.co_filename.startswith(PACKAGE))
    if kind is dict:
        # Neither the variables of a module nor the list of all modules.
        return "__builtins__" not in thing and thing is not sys.modules
    return kind in _CONTAINERS or kind.__module__.startswith("traceml.")
