"""Writes a traceback as Python prints it: without our frames, without secrets, and not too long."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from traceml.model.secrets import masked_message

MAX_LETTERS = 12_000
"""Of a traceback that is kept: some eighty frames."""
HEAD_SHARE = 0.25
"""Of what is kept of a longer one: its end says what was raised, its beginning where it began."""

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_NOT_SHOWN = (_PACKAGE, "<frozen importlib._bootstrap")


def traceback_text(
    error: BaseException, with_callers: bool = False, max_letters: int = MAX_LETTERS
) -> str:
    """The traceback of an exception and of those it was raised from.

    `with_callers` adds the frames that it has not passed yet, for one that is on its way.
    """
    found = traceback.TracebackException(
        type(error), error, error.__traceback__, lookup_lines=False, compact=True
    )
    if with_callers and error.__traceback__ is not None:
        callers = reversed(list(traceback.walk_stack(error.__traceback__.tb_frame.f_back)))
        found.stack[:0] = traceback.StackSummary.extract(callers, lookup_lines=False)
    _leave_out_our_frames(found)
    return shortened(masked_message("".join(found.format())).rstrip("\n"), max_letters)


def shortened(text: str, max_letters: int) -> str:
    """The head and the tail of a text that is too long, cut at lines where it has any."""
    if len(text) <= max_letters:
        return text
    head, tail = text[: int(max_letters * HEAD_SHARE)], text[len(text) - max_letters :]
    tail = tail[len(head) :]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = len(text) - len(head) - len(tail)
    return f"{head.rstrip()}\n  … {left_out:,} characters left out …\n{tail}"


def _leave_out_our_frames(found: traceback.TracebackException) -> None:
    """Also from its causes; Python has broken cycles among them already."""
    following = [found]
    while following:
        each = following.pop()
        each.stack[:] = [frame for frame in each.stack if not frame.filename.startswith(_NOT_SHOWN)]
        inner = getattr(each, "exceptions", None) or ()
        following += [one for one in (each.__cause__, each.__context__, *inner) if one is not None]
