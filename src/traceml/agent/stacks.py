"""Asks a rank for its Python stacks, and reads from them what it is doing."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from traceml.model.failure import STACKS_SIGNAL_ABOVE_FIRST, Doing, is_users, line_name
from traceml.store.regular_files import open_regular

_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_TRAINING_THREAD = re.compile(r"^training thread 0x([0-9a-f]+)(?: native (\d+))?", re.MULTILINE)
HEADER_BYTES = 64
"""The first line of a rank's file of stacks, which names the training thread, fits into these."""
_OURS = re.compile(r"/traceml/trace/")
_WAITS_FOR_OTHERS = re.compile(
    r"/torch/distributed/("
    r"distributed_c10d|c10d_logger|collective_utils|_functional_collectives(_impl)?|nn/functional|"
    r"algorithms/.+|pipelining/.+|_symmetric_memory/.+|"
    r"fsdp/(_fully_shard/.+|_runtime_utils|_flat_param|_limiter_utils|_unshard_param_utils)"
    r")\.py$"
)
"""Files that wait for other ranks; not torch's checkpoints, which wait for a disk."""
_BACKWARD = re.compile(r"/torch/autograd/|/torch/_tensor\.py$")
_LOADER = re.compile(r"/torch/utils/data/")
_STANDARD = re.compile(r"/(threading|queue|selectors|socket|connection|popen_fork|process)\.py$")
"""Files of Python itself in which a thread waits; the caller says for what."""
_NOTEBOOK = re.compile(r"/(ipykernel|IPython)/")
_WRAPPERS = frozenset({"wrapper", "wrapped", "inner", "decorate_context"})


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""The innermost frame first."""


def ask(pid: int) -> bool:
    """Sends the signal for stacks; only to a process that handles it, because it would kill any
    other."""
    first = getattr(signal, "SIGRTMIN", None)
    if first is None:
        return False
    number = first + STACKS_SIGNAL_ABOVE_FIRST
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
        if caught is None or not int(caught[1], 16) >> (number - 1) & 1:
            return False
        os.kill(pid, number)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class TrainingThread:
    """The thread of a rank that trains."""

    ident: int
    """Python's thread id."""
    native: int | None
    """The system's thread id; `None` where the rank did not report it."""


def training_thread(path: Path) -> TrainingThread | None:
    """Returns the training thread by a rank's file of stacks; `None` while there is none."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            header = file.read(HEADER_BYTES).decode(errors="replace")
    except OSError:
        return None
    named = _TRAINING_THREAD.search(header)
    if named is None:
        return None
    return TrainingThread(int(named[1], 16), int(named[2]) if named[2] else None)


def training_stack(header: str, dump: str) -> Stack:
    """Returns the stack of the training thread; if that is not known, of the main thread."""
    named = _TRAINING_THREAD.search(header)
    stacks: dict[int, list[Frame]] = {}
    thread = 0
    for line in dump.splitlines():
        if found := _THREAD.match(line):
            thread = int(found[1], 16)
            stacks[thread] = []
        elif found := _FRAME.match(line):
            stacks.setdefault(thread, []).append(Frame(found[1], int(found[2]), found[3]))
    wanted = int(named[1], 16) if named else None
    chosen = stacks.get(wanted) if wanted is not None else None
    return tuple(chosen if chosen is not None else next(reversed(stacks.values()), []))


def reading(stack: Stack) -> tuple[Doing, str | None]:
    """Returns what a rank with this stack is doing, and the call it waits in."""
    frames = [frame for frame in stack if not _OURS.search(frame.file)]
    if not frames:
        return Doing.UNKNOWN, None
    for frame in frames:
        if _NOTEBOOK.search(frame.file):
            return Doing.IDLE, None
        if _LOADER.search(frame.file):
            return Doing.INPUT, None
        if _WAITS_FOR_OTHERS.search(frame.file):
            if frame.function in _WRAPPERS:
                continue
            return Doing.COLLECTIVE, frame.function
        if _BACKWARD.search(frame.file):
            return Doing.BACKWARD, None
        if not _STANDARD.search(frame.file):
            break
    return Doing.CODE, None


def waits_for_others(file: str) -> bool:
    """Returns whether a frame of this file waits for other ranks."""
    return bool(_WAITS_FOR_OTHERS.search(file))


def users_line(stack: Stack, folder: str) -> str | None:
    """Returns the innermost line of user code."""
    for frame in stack:
        if is_users(frame.file) and not _OURS.search(frame.file):
            return line_name(frame.file, frame.line, frame.function, folder)
    return None


def stacks_bytes(path: Path) -> int:
    """Returns the size of a rank's file of stacks: what it answers next is written behind it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def folder_of(pid: int) -> str:
    """Returns the folder in which a process was started; `/` where it is not readable."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return os.sep
