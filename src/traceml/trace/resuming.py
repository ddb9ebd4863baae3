"""Sees what a process loads before its first step: from which step a restarted training goes on.

A restart that resumes from a checkpoint repeats the steps after it. How many those are follows from
the number of steps that the loaded optimizer had taken, or that the loaded file names. After the
first step the hooks are taken out.

`torch.distributed.checkpoint` loads into state that is there already, and has the optimizer take a
step with a learning rate of 0 to make it: that step comes before anything is loaded.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from itertools import islice
from types import FrameType, FunctionType
from typing import Any

import torch

from traceml.model.launcher_place import restart_count
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.session import Session

STEP_KEYS = ("global_step", "global_steps", "step", "steps", "iteration", "iter_num", "num_steps")
"""Under which scripts and frameworks save how many steps they have taken."""
MAX_STATES = 64
"""Parameters whose state is looked at; all have taken the same number of steps as a rule."""
MAX_FRAMES = 24
"""Frames from an optimizer's hook up to the function that had it step: torch's own, and those of
wrappers such as a learning rate scheduler's."""


def is_initialising_state() -> bool:
    """Whether the optimizer that steps here is made to by `torch.distributed.checkpoint`, for the
    state that a checkpoint is loaded into.

    Asked in the first step of each optimizer alone: from then on it has state.
    """
    module = sys.modules.get("torch.distributed.checkpoint.state_dict")
    initialise = None if module is None else vars(module).get("_init_optim_state")
    if not isinstance(initialise, FunctionType):
        return False
    frame: FrameType | None = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return False
        if frame.f_code is initialise.__code__:
            return True
        frame = frame.f_back
    return False


class LoadedState:
    """What this process has loaded so far; it is sent once, after the first step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._has_loaded = False
        self._step_of_optimizer: int | None = None
        self._step_of_file: int | None = None
        self._undo: list[Callable[[], None]] = []
        self._send_guarded = session.guard(self._send)
        self._watch(torch, "load", lambda _, result: self._see_file(result))
        self._watch(torch.nn.Module, "load_state_dict", lambda *_: self._see_anything())
        self._watch(
            torch.optim.Optimizer, "load_state_dict", lambda given, _: self._see_optimizer(given)
        )
        session.forgets.append(self.forget)
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked child that trains says for itself what it goes on from.

        What its parent has loaded it has, too.
        """
        if self._send_guarded not in self._session.looks:
            self._session.looks.append(self._send_guarded)

    def _watch(self, owner: Any, name: str, see: Callable[[Any, Any], None]) -> None:
        """Have the last positional argument and the result of each call looked at."""
        function = vars(owner).get(name)
        if not isinstance(function, FunctionType):  # somebody else's hook
            return
        guarded = self._session.guard(see, any_thread=True, decides=False)

        @functools.wraps(function)
        def load(*arguments: Any, **options: Any) -> Any:
            try:
                given = options.get("state_dict", arguments[1] if len(arguments) > 1 else None)
                result = function(*arguments, **options)
                if not is_compiling():
                    guarded(given, result)
                return result
            except BaseException as error:
                drop_our_frames(error)
                raise

        self._undo.append(self._session.replace(owner, name, left_alone(load)))

    def _see_anything(self) -> None:
        self._has_loaded = True

    def _see_file(self, content: Any) -> None:
        self._has_loaded = True
        if isinstance(content, dict):
            found = {key: counted_steps(content[key]) for key in STEP_KEYS if key in content}
            known = {value for value in found.values() if value is not None}
            if len(known) == 1:  # of several that differ nobody knows which counts steps
                self._step_of_file = known.pop()

    def _see_optimizer(self, state_dict: Any) -> None:
        self._has_loaded = True
        states = state_dict.get("state") if isinstance(state_dict, dict) else None
        if not isinstance(states, Mapping):
            return
        looked_at = islice(states.values(), MAX_STATES)
        steps = [counted_steps(each.get("step")) for each in looked_at if isinstance(each, Mapping)]
        known = [step for step in steps if step is not None]
        if known:
            self._step_of_optimizer = max(*known, self._step_of_optimizer or 0)

    def _send(self) -> None:
        """After the first step: from here on nothing costs anything."""
        if not self._session.recorder.ends:
            return  # the process ends without one
        self._session.looks.remove(self._send_guarded)
        while self._undo:
            self._undo.pop()()
        of_optimizer = self._step_of_optimizer
        message = {
            "kind": "resumed",
            "pid": os.getpid(),
            "has_loaded": self._has_loaded,
            "step": self._step_of_file if of_optimizer is None else of_optimizer,
            "restart": restart_count(),
        }
        known = {name: value for name, value in message.items() if value is not None}
        self._session.messages.write(known)


def counted_steps(value: Any) -> int | None:
    """A count of steps; `None` for anything else, and for a number on a GPU, which would make the
    host wait."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.numel() != 1 or type(value) is not torch.Tensor:
            return None
        with torch._C.DisableTorchFunction():  # who watches every function sees none of ours
            value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < 1 << 53 else None
