"""Folds the stacks of a burst: every call is kept once, and every different stack once.

What says nothing to the reader is left out: our own frames, Python's start of a program, a process
or a thread, and torch's way into a module. A function that calls itself is one call, however deep.
"""

from __future__ import annotations

import re

from traceml.agent.stacks import Frame, Stack
from traceml.model.failure import is_users
from traceml.model.printable import shorten_middle
from traceml.model.sample import StackFrame

MAX_DEPTH = 64
"""Calls of a stack that are kept; of a deeper one the middle is left out."""
MAX_OUTER = 24
"""Of those, the outermost ones."""
MAX_NAME_CHARS = 120
MAX_FILE_CHARS = 240
LEFT_OUT = StackFrame("…", "", 0)
"""Stands for the middle of a deep stack."""

OURS = re.compile(r"/traceml/trace/|/traceml/__main__\.py$")
STANDARD = re.compile(r"/lib/python3\.?\d*/(?!(?:site|dist)-packages/)|^<")
_HIDDEN = re.compile(
    r"/traceml/trace/|/traceml/__main__\.py$|^<frozen |/runpy\.py$|/importlib/|"
    r"/multiprocessing/(spawn|process|popen_\w+|context|forkserver)\.py$|"
    r"/torch/nn/modules/module\.py$|/torch/utils/_contextlib\.py$"
)
_THREAD_START = re.compile(r"/threading\.py$")
_THREAD_FUNCTIONS = ("_bootstrap", "_bootstrap_inner", "run")
_GENERATED = re.compile(r"^<|/torchinductor_|/torch_compile_debug/")
_NUMBERED = re.compile(r"^(<eval_with_key>)\.\d+|(?<=__compiled_fn_)\d+(_[0-9a-f_]+)?")
_NOTEBOOK_CELL = re.compile(r"^<ipython-input")
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_LIBRARY = re.compile(r"^.*/lib/python3\.?\d*/")


def is_users_file(file: str) -> bool:
    """Returns whether a file is the user's: not generated, not installed, and not ours."""
    if OURS.search(file) or (_GENERATED.search(file) and not _NOTEBOOK_CELL.search(file)):
        return False
    return is_users(file)


def relative_file(file: str, folder: str) -> str:
    """Returns a user's file as seen from the folder in which the script was started."""
    inside = folder.rstrip("/") + "/"
    return file if inside == "/" else file.removeprefix(inside)


def package_file(file: str) -> str:
    """Returns an installed file as it is imported: `torch/optim/adamw.py`."""
    return _LIBRARY.sub("", _PACKAGES.sub("", file))


class FoldedStacks:
    """The different calls and stacks of one burst."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._frames: dict[StackFrame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._known: dict[Stack, int | None] = {}

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        """Every call once."""
        return tuple(self._frames)

    @property
    def stacks(self) -> tuple[tuple[int, ...], ...]:
        """Every stack once, as places in `frames`, the outermost call first."""
        return tuple(self._stacks)

    def add(self, stack: Stack) -> int | None:
        """Returns the place of a stack in `stacks`; `None` where nothing of it is to be shown."""
        if stack not in self._known:
            self._known[stack] = self._folded(stack)
        return self._known[stack]

    def _folded(self, stack: Stack) -> int | None:
        calls: list[StackFrame] = []
        for frame in reversed(stack):
            if _is_hidden(frame):
                continue
            call = self._frame(frame)
            if calls and (call.function, call.file) == (calls[-1].function, calls[-1].file):
                calls.pop()  # it has called itself
            calls.append(call)
        if not calls:
            return None
        if len(calls) > MAX_DEPTH:
            inner_calls = calls[MAX_OUTER + 1 - MAX_DEPTH :]
            calls = [*calls[:MAX_OUTER], LEFT_OUT, *inner_calls]
        places = tuple(self._frames.setdefault(call, len(self._frames)) for call in calls)
        return self._stacks.setdefault(places, len(self._stacks))

    def _frame(self, frame: Frame) -> StackFrame:
        file = _NUMBERED.sub(r"\1", frame.file)
        is_own = is_users_file(frame.file)
        shown = relative_file(file, self._folder) if is_own else package_file(file)
        return StackFrame(
            shorten_middle(_own_name(frame.function), MAX_NAME_CHARS),
            shorten_middle(shown, MAX_FILE_CHARS),
            frame.line,
            is_own,
        )


def _own_name(function: str) -> str:
    """Returns a function's name without the functions that it is defined in."""
    return _NUMBERED.sub("", function).rpartition(".<locals>.")[2]


def _is_hidden(frame: Frame) -> bool:
    if _HIDDEN.search(frame.file):
        return True
    name = frame.function.rpartition(".")[2]
    return bool(_THREAD_START.search(frame.file)) and name in _THREAD_FUNCTIONS
