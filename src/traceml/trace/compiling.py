"""Whether torch is compiling the code that runs: then it must see nothing of us."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
"""Torch's own function under its older name where need be: the compiler knows it by identity."""

_frames: Any = torch._C._dynamo.eval_frame


def is_traced() -> bool:
    """Whether `torch.jit.trace` is recording in this thread. It records our operations as well,
    such as asking a tensor for its size, and the traced model may then fail when it is called."""
    return torch._C._get_tracing_state() is not None


def is_backward_compiled() -> bool:
    """Whether torch compiles backward passes as they run (compiled autograd): it compiles the hooks
    in their graphs with them."""
    autograd: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(autograd, "compiled_autograd_enabled", False))


def left_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, never compiled itself, where compiled code calls it after a graph break.

    Dynamo would look at it and at all that it calls, and count breaks that the user has not made.
    """
    return _skipped(function, "SKIP")


def skipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, never compiled itself, for one that turns Dynamo off or on: Dynamo does
    not turn itself on again when it returns, as it does after what is left alone."""
    return _skipped(function, "DEFAULT")


def _skipped(function: Callable[..., Any], what_it_calls: str) -> Callable[..., Any]:
    code = function.__code__
    if hasattr(_frames, "set_code_exec_strategy"):
        actions = _frames._FrameAction
        strategy = _frames._FrameExecStrategy(actions.SKIP, getattr(actions, what_it_calls))
        _frames.set_code_exec_strategy(code, strategy)
    elif hasattr(_frames, "skip_code"):  # before torch 2.7
        _frames.skip_code(code)
    return function
