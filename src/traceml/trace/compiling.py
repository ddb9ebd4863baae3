"""Whether torch is compiling the code that runs: then it must see nothing of us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
"""Torch's own function under its older name where need be: the compiler knows it by identity."""

_frames: Any = torch._C._dynamo.eval_frame


def left_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, never compiled itself, where compiled code calls it after a graph break.

    Dynamo would look at it and at all that it calls, and count breaks that the user has not made.
    """
    code = function.__code__
    if hasattr(_frames, "set_code_exec_strategy"):
        skip = _frames._FrameAction.SKIP
        _frames.set_code_exec_strategy(code, _frames._FrameExecStrategy(skip, skip))
    elif hasattr(_frames, "skip_code"):  # before torch 2.7
        _frames.skip_code(code)
    return function
