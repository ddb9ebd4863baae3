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
from itertools import groupby
from pathlib import Path
from typing import Any

from traceml.agent.stack_folding import (
    OURS,
    STANDARD,
    FoldedStacks,
    is_users_file,
    package_file,
    relative_file,
)
from traceml.agent.stacks import Frame, Stack, waits_for_others
from traceml.model.phase import Phase
from traceml.model.sample import (
    CHECKPOINT,
    COMPILING,
    LOADER_WORKERS,
    OTHER_THREADS,
    CodeLine,
    StackSample,
)

_OUR_FORWARD = re.compile(r"/traceml/trace/models\.py$")
_LOADER = re.compile(r"/torch/utils/data/|/traceml/trace/loaders\.py$")
_BACKWARD = re.compile(r"/torch/autograd/(__init__|graph)\.py$")
_OPTIMIZER = re.compile(r"/torch/optim/optimizer\.py$")
_CLOSURE = re.compile(r"/traceml/trace/closures\.py$")
_COPY = re.compile(r"/traceml/trace/copies\.py$")
_MODULE = re.compile(r"/torch/nn/modules/module\.py$")
_LOSS = re.compile(r"/torch/nn/modules/loss\.py$")
_SAVING = re.compile(r"/torch/(serialization\.py$|distributed/checkpoint/)")
_COMPILING = re.compile(
    r"/torch/(_dynamo/convert_frame\.py$|_inductor/(compile_fx|async_compile)\.py$)"
)
"""Compiled code runs without these files."""
_WORKER = re.compile(r"/torch/utils/data/_utils/worker\.py$")
_WAITS = re.compile(
    r"/(threading|queue|selectors|socket|socketserver|ssl|subprocess|"
    r"multiprocessing/(connection|synchronize|queues|pool|managers)|concurrent/futures/\w+)\.py$"
)
"""A thread whose innermost call is in one of these files waits for another one."""
_PACKAGE = f"{Path(__file__).parents[1]}/"
_AROUND_THE_SCRIPT = re.compile(
    r"(__main__|trace/(inject/)?(?!step_)\w+|trace/deep/(compiled_calls|gradient_norms|operations))"
    r"\.py$"
)
"""Our files that call the script's code, or an operation of torch's for it."""
_ANONYMOUS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>")


@dataclass(frozen=True, slots=True)
class TimedStack:
    """A stack of the thread at a moment, and the number of consecutive samples that saw it."""

    at_s: float
    looks: int
    stack: Stack


def read_chrome_trace(
    events: Sequence[Mapping[str, Any]], rate: float
) -> dict[int, list[TimedStack]]:
    """Returns the stacks of each thread in a Chrome trace; times are from its beginning.

    Equal consecutive samples are one entry; their number follows from the time until the next.
    """
    by_thread: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        if event.get("ph") in ("B", "E") and isinstance(event.get("tid"), int):
            by_thread.setdefault(event["tid"], []).append(event)
    return {thread: _read_thread(found, rate) for thread, found in by_thread.items()}


def busiest_thread(by_thread: Mapping[int, Sequence[TimedStack]]) -> int | None:
    """Returns the thread whose stack changed the most often; `None` without threads."""
    return max(by_thread, key=lambda thread: len(by_thread[thread]), default=None)


def worker_thread(by_thread: Mapping[int, Sequence[TimedStack]]) -> int | None:
    """Returns the thread that runs a data loader's worker; `None` where none was seen to.

    A worker has further threads, such as the one that sends its batches.
    """
    seen = {
        thread: sum(look.looks for look in looks if _in_worker(look.stack))
        for thread, looks in by_thread.items()
    }
    thread = max(seen, key=lambda each: seen[each], default=None)
    return thread if thread is not None and seen[thread] else None


def _read_thread(events: Sequence[Mapping[str, Any]], rate: float) -> list[TimedStack]:
    moments: list[tuple[float, Stack]] = []
    stack: list[Frame] = []
    for at_s, together in groupby(events, lambda event: float(event.get("ts", 0)) * 1e-6):
        for event in together:
            if event["ph"] == "B":
                stack.append(_frame(event))
            elif stack:
                stack.pop()
        moments.append((at_s, tuple(reversed(stack))))
    ends = [at_s for at_s, _ in moments[1:]]
    return [
        TimedStack(at_s, max(1, round((end_s - at_s) * rate)), found)
        for (at_s, found), end_s in zip(moments, ends, strict=False)
        if found
    ]


def _frame(event: Mapping[str, Any]) -> Frame:
    details = event.get("args") or {}
    file, line = str(details.get("filename", "")), int(details.get("line") or 0)
    return Frame(file, line, str(event.get("name", "")))


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


def read_looks(
    looks: Sequence[TimedStack], began_unix_s: float, folder: str, folded: FoldedStacks
) -> list[StackSample]:
    """Returns the samples of a training thread by phase; their stacks are added to `folded`.

    Those of what we do there ourselves are left out. `folder` is the one in which the script was
    started.
    """
    is_ours_seen = any(_OUR_FORWARD.search(f.file) for look in looks for f in look.stack)
    return [
        _read(look, is_ours_seen, began_unix_s, folder, folded)
        for look in looks
        if not _is_our_work(look.stack)
    ]


def _is_our_work(stack: Stack) -> bool:
    """Returns whether a thread runs our code, or what that calls, and not the script's."""
    for frame in stack:
        if frame.file.startswith(_PACKAGE):
            if not _AROUND_THE_SCRIPT.match(frame.file[len(_PACKAGE) :]):
                return True
        elif is_users_file(frame.file):
            return False
    return False


def read_other_looks(
    looks: Sequence[TimedStack], began_unix_s: float, folded: FoldedStacks, is_of_worker: bool
) -> list[StackSample]:
    """Returns the samples of another thread, or of a process that is a worker of a data loader.

    Those in which a thread waits for others are left out, and so is a process that is no worker.
    """
    found = []
    for look in looks:
        stack = _in_worker(look.stack) if is_of_worker else _at_work(look.stack)
        place = folded.add(stack)
        if place is not None:
            phase = LOADER_WORKERS if is_of_worker else OTHER_THREADS
            found.append(StackSample(began_unix_s + look.at_s, look.looks, phase, stack=place))
    return found


def _in_worker(stack: Stack) -> Stack:
    """Returns what a worker does; without the calls that its parent was in when it was forked."""
    inside = [depth for depth, frame in enumerate(stack) if _WORKER.search(frame.file)]
    return stack[: inside[-1] + 1] if inside else ()


def _at_work(stack: Stack) -> Stack:
    """Returns the stack of a thread; nothing of one that is ours, or waits for others."""
    is_ours = any(OURS.search(frame.file) for frame in stack)
    return () if is_ours or _WAITS.search(stack[0].file) else stack


def _read(
    look: TimedStack, is_ours_seen: bool, began_unix_s: float, folder: str, folded: FoldedStacks
) -> StackSample:
    stack = look.stack
    unix_s, place = began_unix_s + look.at_s, folded.add(stack)
    for pattern, name in ((_SAVING, CHECKPOINT), (_COMPILING, COMPILING)):
        if any(pattern.search(frame.file) for frame in stack):
            return StackSample(unix_s, look.looks, name, stack=place)
    phase, depth = _phase(stack, is_ours_seen)
    is_rest = phase is Phase.RESIDUAL
    user_depth, user = _users(stack[:depth], folder)
    return StackSample(
        unix_s=unix_s,
        looks=look.looks,
        phase=phase.value,
        user=user,
        caller=None if is_rest else _users(stack[depth:], folder)[1],
        library=_library(stack[:user_depth]) if is_rest else None,
        stack=place,
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
    if _CLOSURE.search(file):  # the script's own code inside a step
        return Phase.RESIDUAL
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
        if not is_users_file(frame.file) or (line is not None and frame.file != line[1].file):
            continue
        if line is None:
            line = depth, frame
        name = _function(frame.function)
        if name is not None:
            return line[0], CodeLine(name, relative_file(frame.file, folder), line[1].line)
    if line is None:
        return len(stack), None
    depth, frame = line
    return depth, CodeLine(frame.function, relative_file(frame.file, folder), frame.line)


def _function(name: str) -> str | None:
    """Returns a function's own name without its outer functions; `None` for one without a name."""
    parts = name.split(".<locals>.")
    named = [part for part in parts if part not in _ANONYMOUS]
    return named[-1] if named else None


def _library(stack: Stack) -> CodeLine | None:
    """Returns the innermost line of an installed package."""
    for frame in stack:
        if not OURS.search(frame.file) and not STANDARD.search(frame.file):
            name = _function(frame.function) or frame.function
            return CodeLine(name, package_file(frame.file), frame.line)
    return None
