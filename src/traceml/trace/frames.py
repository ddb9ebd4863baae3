"""Reads a running function's variables, and leaves nothing of them behind."""

from __future__ import annotations

import sys
from inspect import CO_OPTIMIZED
from types import FrameType
from typing import Any

_KEEPS_SNAPSHOTS = sys.version_info < (3, 13)
"""Before Python 3.13 reading a function's variables stores a copy of them on its frame, which keeps
every value alive until the function returns. Later Pythons give a view: what is removed from that
is removed from the function."""
_NOBODY_ELSES = 3
"""References to that copy if nobody else has it: the frame's, ours, and the one counting them."""


def variables_of(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame, by name; the caller lets go of them soon."""
    if not _KEEPS_SNAPSHOTS or not frame.f_code.co_flags & CO_OPTIMIZED:
        return dict(frame.f_locals)  # a module's or a class body's are the variables themselves
    snapshot = frame.f_locals
    found = dict(snapshot)
    # A script that called `locals()` has this very copy; a debugger writes it back to the function.
    is_ours = sys.getrefcount(snapshot) == _NOBODY_ELSES
    if is_ours and sys.gettrace() is None and sys.getprofile() is None:
        code = frame.f_code
        # Other names in it are what the script's own `exec` has put there, for its own `eval`.
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            snapshot.pop(name, None)
    return found
