"""Sees every call of the layers of the models that train, in one step.

Torch's global module hooks are in for that step alone: nothing is attached to the model, which
saves and copies as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from traceml.trace.compiling import is_compiling
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import OUTSIDE
from traceml.trace.session import Session


class CallWatch:
    """Tells of each call that is a part of training: when it begins, and when it returns."""

    def __init__(
        self,
        session: Session,
        layers: Sequence[ModelLayer],
        enter: Callable[[int, int, Any, bool], None],
        leave: Callable[[int, Any], None],
    ) -> None:
        """`enter` gets the layer's place, that of the layer which calls it, its arguments, and
        whether it is called once more during backward; `leave` its place and what it returns."""
        self._session = session
        self._places = {id(layer.module): place for place, layer in enumerate(layers)}
        self._tell_enter, self._tell_leave = enter, leave
        self.open: list[int] = []
        """The layers that are being called, the outermost first."""
        self.is_on = False
        self.was_evaluated = False
        """Whether a model was evaluated: then the step's calls are seen no further.

        In evaluation some layers of torch's take a faster way only where no hook is in; no result
        may depend on us.
        """
        self.has_failed = False
        """Whether one of our own functions failed: then the step was not seen to its end."""
        self._removes: list[Callable[[], None]] = []

    def begin(self) -> None:
        """See the calls from here on."""
        self.is_on = True
        enter = self._session.guard(self._enter, any_thread=True, failed=self.fail)
        leave = self._session.guard(self._leave, any_thread=True, failed=self.fail)
        self._removes = [
            module_hooks.register_module_forward_pre_hook(enter).remove,
            module_hooks.register_module_forward_hook(leave, always_call=True).remove,
        ]

    def end(self) -> None:
        """See no more of them."""
        self.is_on = False
        while self._removes:
            self._removes.pop()()

    def fail(self, error: BaseException) -> None:
        """Count a failure of our own, and see no more of the step: the next call would fail too,
        and many failures end all tracing."""
        self.has_failed = True
        self.end()
        self._session.failed(error)

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        place = None if is_compiling() else self._places.get(id(module))
        if place is None or not self.is_on:
            return
        if not self._is_of_training():
            return
        in_backward = _is_in_backward()
        if not self.open and not in_backward and not torch.is_grad_enabled():
            if not module.training:
                self.was_evaluated = True
                self.end()
            return
        outer = self.open[-1] if self.open else OUTSIDE
        self.open.append(place)
        self._tell_enter(place, outer, arguments, in_backward)

    def _is_of_training(self) -> bool:
        """Whether a call is not one of another thread: a replica, or an evaluation beside."""
        return get_ident() == self._session.thread or _is_in_backward()

    def _leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        place = None if is_compiling() else self._places.get(id(module))
        if self.is_on and self.open and self.open[-1] == place and self._is_of_training():
            self.open.pop()
            self._tell_leave(place, result)


def _is_in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() >= 0)
