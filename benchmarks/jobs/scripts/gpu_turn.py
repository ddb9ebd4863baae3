"""Turns at the GPU for programs that start beside each other: all import, one trains at a time.

Whoever starts them names a file in the environment. A program calls `wait_for_turn` when it is
ready to use the GPU: after its imports, before its first step, so that the wait is part of no step.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

TURN_FILE = "GPU_TURN_FILE"
"""The environment variable that names the file; without it nobody waits."""

_WAITED = re.compile(r"^waited (\S+) s for a turn at the GPU$", re.MULTILINE)
_kept: list[IO[str]] = []


def wait_for_turn() -> None:
    """Wait until no other program has its turn; this one's lasts until its process ends."""
    if _kept or TURN_FILE not in os.environ:
        return
    began = time.monotonic()
    _kept.append(_locked(os.environ[TURN_FILE]))
    print(f"waited {time.monotonic() - began:.1f} s for a turn at the GPU", flush=True)


def waited_s(output: str) -> float:
    """How long a program waited for its turn, by what it printed."""
    found = _WAITED.search(output)
    return 0.0 if found is None else float(found[1])


@contextmanager
def turn() -> Iterator[None]:
    """A turn for a part of a program."""
    if TURN_FILE not in os.environ:
        yield
        return
    with _locked(os.environ[TURN_FILE]):
        yield


def _locked(path: str) -> IO[str]:
    """The file, locked until it is closed.

    A record lock, not `flock`: it is this process's alone, so that a DataLoader worker that
    outlives the program does not keep the GPU from the next one.
    """
    file = open(path, "a")  # noqa: PTH123, SIM115 - stays open as long as the lock is held
    fcntl.lockf(file, fcntl.LOCK_EX)
    return file
