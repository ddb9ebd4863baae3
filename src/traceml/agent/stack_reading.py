"""Reads stacks of a training thread: which phase of the step they are in, and whose line runs.

Phases are told by what is on the stack, the innermost first, as the tracer charges them: torch's
loaders, backward, optimizers and collectives by their files, the model's call by our own frame
around it. Where that is on no stack, torch's own call of a module stands for it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traceml.agent.stacks import Frame, Stack, waits_for_others
from traceml.model.failure import is_users
from traceml.model.phase import Phase
from traceml.model.sample import CodeLine, StackSample

_OURS = re.compile(r"/traceml/trace/")
_OUR_FORWARD = re.compile(r"/traceml/trace/models\.py$")
_LOADER = re.compile(r"/torch/utils/data/|/traceml/trace/loaders\.py$")
_BACKWARD = re.compile(r"/torch/autograd/(__init__|graph)\.py$")
_OPTIMIZER = re.compile(r"/torch/optim/optimizer\.py$")
_COPY = re.compile(r"/traceml/trace/copies\.py$")
_MODULE = re.compile(r"/torch/nn/modules/module\.py$")
_LOSS = re.compile(r"/torch/nn/modules/loss\.py$")
_NO_STEP = re.compile(
    r"/torch/(serialization\.py$|distributed/checkpoint/|"
    r"_dynamo/convert_frame\.py$|_inductor/(compile_fx|async_compile)\.py$)"
)
"""Files of saving and compiling, which are measured elsewhere; compiled code runs without them."""
_GENERATED = re.compile(r"^<|/torchinductor_|/torch_compile_debug/")
_NOTEBOOK_CELL = re.compile(r"^<ipython-input")
_ANONYMOUS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")
_PACKAGES = re.compile(r"^.*/(?:site|dist)-packages/")
_STANDARD = re.compile(r"/lib/python3\.?\d*/(?!(?:site|dist)-packages/)|^<")


@dataclass(frozen=True, slots=True)
class TimedStack:
    """A stack of the thread at a moment, and the number of consecutive samples that saw it."""

    at_s: float
    looks: int
    stack: Stack


def read_chrome_trace(
    events: Sequence[Mapping[str, Any]], thread: int | None, rate: float
) -> list[TimedStack]:
    """Returns the stacks of one thread in a Chrome trace; times are from its beginning.

    Without a thread, the one with the most events is used. Equal consecutive samples are one entry;
    their number follows from the time until the next.
    """
    frames = [event for event in events if event.get("ph") in ("B", "E")]
    if thread is None:
        count = Counter(event.get("tid") for event in frames)
        thread = count.most_common(1)[0][0] if count else None
    moments: list[tuple[float, Stack]] = []
    stack: list[Frame] = []
    for event in (event for event in frames if event.get("tid") == thread):
        at_s = float(event.get("ts", 0)) * 1e-6
        if event["ph"] == "B":
            details = event.get("args") or {}
            stack.append(
                Frame(
                    str(details.get("filename", "")),
                    int(details.get("line") or 0),
                    str(event.get("name", "")),
                )
            )
        elif stack:
            stack.pop()
        if moments and moments[-1][0] == at_s:
            moments.pop()
        moments.append((at_s, tuple(reversed(stack))))
    ends = [at_s for at_s, _ in moments[1:]]
    return [
        TimedStack(at_s, max(1, round((end_s - at_s) * rate)), found)
        for (at_s, found), end_s in zip(moments, ends, strict=False)
        if found
    ]


def without_torn(looks: Sequence[TimedStack]) -> tuple[list[TimedStack], int]:
    """Returns the samples without torn ones, whose root differs from the others', and the number of
    those."""
    roots: Counter[tuple[str, str]] = Counter()
    for look in looks:
        roots[_root(look)] += look.looks
    if not roots:
        return [], 0
    root = roots.most_common(1)[0][0]
    whole = [look for look in looks if _root(look) == root]
    return whole, sum(look.looks for look in looks) - sum(look.looks for look in whole)


def _root(look: TimedStack) -> tuple[str, str]:
    return look.stack[-1].file, look.stack[-1].function


def read_looks(looks: Sequence[TimedStack], began_unix_s: float, folder: str) -> list[StackSample]:
    """Returns the stack samples by phase; those of saving or compiling are left out.

    `folder` is the one in which the script was started.
    """
    is_ours_seen = any(_OUR_FORWARD.search(f.file) for look in looks for f in look.stack)
    found = []
    for look in looks:
        sample = _read(look, is_ours_seen, began_unix_s, folder)
        if sample is not None:
            found.append(sample)
    return found


def _read(
    look: TimedStack, is_ours_seen: bool, began_unix_s: float, folder: str
) -> StackSample | None:
    stack = look.stack
    if any(_NO_STEP.search(frame.file) for frame in stack):
        return None
    phase, depth = _phase(stack, is_ours_seen)
    is_rest = phase is Phase.RESIDUAL
    user_depth, user = _users(stack[:depth], folder)
    return StackSample(
        unix_s=began_unix_s + look.at_s,
        looks=look.looks,
        phase=phase.value,
        user=user,
        caller=None if is_rest else _users(stack[depth:], folder)[1],
        library=_library(stack[:user_depth]) if is_rest else None,
    )


def _phase(stack: Stack, is_ours_seen: bool) -> tuple[Phase, int]:
    """Returns the innermost phase on a stack, and how many of its frames lie inside that."""
    for depth, frame in enumerate(stack):
        found = _begins(stack, depth, frame, is_ours_seen)
        if found is not None:
            return found, depth + 1
    return Phase.RESIDUAL, len(stack)


def _begins(stack: Stack, depth: int, frame: Frame, is_ours_seen: bool) -> Phase | None:
    """Returns the phase that begins with this frame."""
    file, name = frame.file, frame.function.rpartition(".")[2]
    if _LOADER.search(file):
        return Phase.INPUT
    if _BACKWARD.search(file):
        return Phase.BACKWARD
    if _OPTIMIZER.search(file) and name == "wrapper":  # around every `step` alone
        return Phase.OPTIMIZER
    if _COPY.search(file):
        return Phase.H2D
    if waits_for_others(file):
        return Phase.COMMUNICATION
    if is_ours_seen:
        return Phase.FORWARD if _OUR_FORWARD.search(file) else None
    is_call = _MODULE.search(file) and name in ("_wrapped_call_impl", "__call__")
    is_of_loss = any(_LOSS.search(inner.file) for inner in stack[max(0, depth - 2) : depth])
    return Phase.FORWARD if is_call and not is_of_loss else None


def _users(stack: Stack, folder: str) -> tuple[int, CodeLine | None]:
    """Returns the innermost line of user code in a part of a stack, and how many frames lie inside
    it.

    For a comprehension or a lambda, the function that contains it.
    """
    line: tuple[int, Frame] | None = None
    for depth, frame in enumerate(stack):
        if not _is_users(frame.file) or (line is not None and frame.file != line[1].file):
            continue
        if line is None:
            line = depth, frame
        name = _function(frame.function)
        if name is not None:
            return line[0], CodeLine(name, _relative(frame.file, folder), line[1].line)
    if line is None:
        return len(stack), None
    depth, frame = line
    return depth, CodeLine(frame.function, _relative(frame.file, folder), frame.line)


def _function(name: str) -> str | None:
    """Returns a function's own name without its outer functions; `None` for one without a name."""
    parts = name.split(".<locals>.")
    named = [part for part in parts if part not in _ANONYMOUS]
    return named[-1] if named else None


def _library(stack: Stack) -> CodeLine | None:
    """Returns the innermost line of an installed package."""
    for frame in stack:
        if not _OURS.search(frame.file) and not _STANDARD.search(frame.file):
            name = _function(frame.function) or frame.function
            return CodeLine(name, _PACKAGES.sub("", frame.file), frame.line)
    return None


def _is_users(file: str) -> bool:
    if _OURS.search(file) or (_GENERATED.search(file) and not _NOTEBOOK_CELL.search(file)):
        return False
    return is_users(file)


def _relative(file: str, folder: str) -> str:
    inside = folder.rstrip("/") + "/"
    return file if inside == "/" else file.removeprefix(inside)
