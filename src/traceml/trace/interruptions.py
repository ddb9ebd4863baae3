"""Tells errors of our own from what others raised while our code ran; reads and hides frames.

A signal's handler runs between any two instructions of the main thread, so also in the middle of
a hook, and a timeout or a debugger may have an exception raised in a thread from outside. Such an
exception is meant for the training script: it must arrive there, as if no hook had been running.
All of this costs nothing until something is raised.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from dis import get_instructions
from inspect import CO_OPTIMIZED
from opcode import opmap
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, TracebackType
from typing import Any

PACKAGE = str(Path(__file__).parents[1]) + os.sep
"""Code in files below this folder is ours."""
MAX_WRAPPERS = 8
"""Layers of `partial` and bound methods that are looked through to find a handler's code."""

_WITHOUT_WORDS = (AssertionError, MemoryError, NotImplementedError, StopIteration)
"""What our own code, or what it calls in C, raises without saying anything."""
_RAISE = opmap["RAISE_VARARGS"]
_HAS_VARIABLE_ARGUMENTS = 0x04
_HAS_VARIABLE_OPTIONS = 0x08

_KEEPS_SNAPSHOTS = sys.version_info < (3, 13)
"""Before Python 3.13 reading a function's variables stores a copy of them on its frame, which keeps
every value alive until the function returns. Later Pythons give a view: what is removed from that
is removed from the function."""
_LOCALS, _VARS = "locals", "vars"
"""What gives that copy to a function that calls it, `vars` only without an argument …"""
_ASSERTS_OF_PYTEST = "@py_builtins"
"""… and what is in a function with `assert`s that pytest has rewritten: those ask for it only where
they fail."""
_NOTHING_DONE = frozenset(("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL"))
"""Instructions that may stand between a function's name and its argument, or its call."""
_NOBODY_ELSES = 3
"""References to that copy if nobody else has it: the frame's, ours, and the one counting them."""


def is_interruption(error: BaseException) -> bool:
    """Whether an exception that left our code was raised by somebody who interrupted it.

    That is everything which is no `Exception` (Ctrl-C, an exit), what a signal's handler raised,
    and what was set in this thread from outside. What user code raises that we ourselves call
    (a `__str__`, a property) is no interruption: without us it would not have been called.
    """
    if not isinstance(error, Exception):
        return True
    handlers = _codes_of_handlers()
    traceback = error.__traceback__
    last: TracebackType | None = None
    frame: FrameType | None = None
    while traceback is not None:
        caller, frame, last = frame, traceback.tb_frame, traceback
        if frame.f_code in handlers or (caller is not None and _was_interrupting(frame, caller)):
            return True
        traceback = traceback.tb_next
    # An exception that is set from outside comes as a class: it has no words, and is raised in
    # whichever frame was running, be it one of torch's, at whatever that was doing.
    is_silent = not error.args and not isinstance(error, _WITHOUT_WORDS)
    return is_silent and last is not None and not _raises_itself(last)


def _raises_itself(last: TracebackType) -> bool:
    """Whether a traceback ends at a `raise` of code that is not ours."""
    frame = last.tb_frame
    return not is_ours(frame) and frame.f_code.co_code[last.tb_lasti] == _RAISE


def is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of this package."""
    return frame.f_code.co_filename.startswith(PACKAGE)


def drop_our_frames(error: BaseException) -> None:
    """Take our frames off the near end of a traceback, right before a bare `raise`.

    Every function of ours that stands between the script and torch does so, and the traceback
    reads as if none had been there. Python 3.10 puts them back at the `raise`.
    """
    traceback = error.__traceback__
    while traceback is not None and is_ours(traceback.tb_frame):
        traceback = traceback.tb_next
    error.__traceback__ = traceback


def variables_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame, by name; nothing of them stays behind on the frame.

    The caller lets go of them soon. None of a function that says `locals()` or `vars()`: asking for
    its variables would change the very dictionary that these gave it. `vars(args)` gives no copy.
    """
    if not _KEEPS_SNAPSHOTS or not frame.f_code.co_flags & CO_OPTIMIZED:
        return dict(frame.f_locals)  # a module's or a class body's are the variables themselves
    names = frame.f_code.co_names
    has_snapshot = _LOCALS in names or (_VARS in names and _uses_bare_vars(frame.f_code))
    if has_snapshot and _ASSERTS_OF_PYTEST not in names:
        return {}
    snapshot = frame.f_locals
    found = dict(snapshot)
    # Others may have this very copy; a debugger writes it back to the function.
    is_ours = sys.getrefcount(snapshot) == _NOBODY_ELSES
    if is_ours and sys.gettrace() is None and sys.getprofile() is None:
        code = frame.f_code
        # Other names in it are what the script's own `exec` has put there, for its own `eval`.
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            snapshot.pop(name, None)
    return found


def _uses_bare_vars(code: CodeType) -> bool:
    """Whether a function uses `vars` in another way than to call it with an argument."""
    instructions = [each for each in get_instructions(code) if each.opname not in _NOTHING_DONE]
    followers = zip(instructions, [*instructions[1:], None], strict=True)
    return any(
        each.argval == _VARS
        and each.opname.startswith("LOAD_GLOBAL")
        and (then is None or not then.opname.startswith("LOAD_"))
        for each, then in followers
    )


def _was_interrupting(frame: FrameType, caller: FrameType) -> bool:
    """Whether a frame was given the one below it: a handler gets the frame that it interrupts.

    So a handler is recognised that has meanwhile put the one before it back in its place.
    """
    if is_ours(frame) or frame.f_back is not caller:
        return False
    code = frame.f_code
    is_variable = bool(code.co_flags & _HAS_VARIABLE_ARGUMENTS)
    has_options = bool(code.co_flags & _HAS_VARIABLE_OPTIONS)
    count = code.co_argcount + code.co_kwonlyargcount + is_variable + has_options
    variables = variables_of(frame)
    for name in code.co_varnames[:count]:
        value = variables.get(name)
        if value is caller:
            return True
        if type(value) is tuple and any(each is caller for each in value):
            return True
    return False


def _codes_of_handlers() -> set[CodeType]:
    """The code of every function that handles a signal at present."""
    found = (_code_of(signal.getsignal(number)) for number in signal.valid_signals())
    return {code for code in found if code is not None}


def _code_of(handler: Any) -> CodeType | None:
    """The code that runs when this is called; `None` where it is not written in Python."""
    for _ in range(MAX_WRAPPERS):
        if isinstance(handler, FunctionType):
            return handler.__code__
        if isinstance(handler, functools.partial):
            handler = handler.func
        elif isinstance(handler, MethodType):
            handler = handler.__func__
        else:
            call: Any = type(handler).__call__
            return call.__code__ if isinstance(call, FunctionType) else None
    return None
