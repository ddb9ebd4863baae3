"""Sees every call of the layers of the models that train, in one step.

Torch's global module hooks are in for that step alone: nothing is attached to the model, which
saves and copies as before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from traceml.trace.compiling import is_compiling, is_traced
from traceml.trace.deep.compiled_calls import (
    CompiledCalls,
    CompiledMethods,
    has_hook_of_the_script,
    is_compiled,
)
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import OUTSIDE
from traceml.trace.module_names import unwrapped
from traceml.trace.script_objects import own_attributes
from traceml.trace.session import Session

INTERRUPTED = "calls of layers are interrupted in every step: no step could be seen"
BESIDE = "another thread runs compiled code in every step: no step could be seen"


class Companion(Protocol):
    """Something further of ours that is put into torch, and must not be there as it compiles."""

    def put_in(self) -> None:
        """Put it into torch."""

    def take_out(self) -> None:
        """Leave torch as it was."""


class CallWatch:
    """Tells of each call that is a part of training: when it begins, and when it returns.

    A layer that is compiled is one call; what it calls is inside and not seen. An evaluation, of
    the model or of a frozen part of it, is passed over with all that it calls. Our hooks may be in
    meanwhile: where torch's transformer layers take a faster way only without hooks, they look at
    the hooks of modules, not at global ones.
    """

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
        self._open_modules: list[int] = []
        """The same as the identities of what was called: a layer, or what wraps it."""
        self._evaluated: list[int] = []
        """The layers that are being called in an evaluation, the outermost first, by identity."""
        self.compiled: set[int] = set()
        """The layers that were called as compiled code."""
        self.callers: set[int] = set()
        """The layers that called compiled functions, and `OUTSIDE` where none of them did."""
        self._has_begun = False
        """Whether a layer was called."""
        self.has_others_before = False
        """Whether, before that, another module with parameters was: of a teacher, for one."""
        self.entered_ns = 0
        """When the hook was entered that tells of a call, or of its end."""
        self.is_on = False
        self.lost: str | None = None
        """Why the step was not seen to its end, in words for a run where no step could be."""
        self.has_failed = False
        """Whether one of our own functions failed: then the step was not seen to its end."""
        guard = session.guard
        self._before = guard(self._enter, any_thread=True, failed=self.fail)
        self._after = guard(self._leave, any_thread=True, failed=self.fail)
        self._methods = CompiledMethods(layers, self._before, self._after)
        self._compiled_calls = CompiledCalls(
            session,
            guard(self._make_room, any_thread=True, failed=self.fail),
            guard(self._come_back, any_thread=True, failed=self.fail),
        )
        self._removes: list[Callable[[], None]] = []
        self.make_room_for_trace: Callable[[], None] | None = None
        """Called where `torch.jit.trace` calls a module, before anything of it is recorded."""
        self.companions: list[Companion] = []
        """What is in torch together with our hooks, and out of it with them."""

    def begin(self) -> None:
        """See the calls from here on."""
        self.is_on = True
        self._compiled_calls.begin()
        self._put_in()

    def _put_in(self) -> None:
        before = module_hooks.register_module_forward_pre_hook(self._before)
        self._removes.append(before.remove)
        after = module_hooks.register_module_forward_hook(self._after, always_call=True)
        self._removes.append(after.remove)
        self._removes.append(
            self._session.replace(module_hooks, "_has_any_global_hook", has_hook_of_the_script)
        )
        self._methods.put_in()
        for companion in self.companions:
            companion.put_in()

    def _take_out(self) -> None:
        for companion in self.companions:
            companion.take_out()
        self._methods.take_out()
        while self._removes:
            self._removes.pop()()

    def end(self) -> None:
        """See no more of them."""
        if self.is_on and (self.open or self._evaluated) and not _is_in_a_call():
            self.lost = INTERRUPTED
        self.is_on = False
        self._take_out()
        self._compiled_calls.end()

    def lose(self, why: str) -> None:
        """See no more of a step that cannot be seen as it is."""
        self.lost = why
        self.end()

    def fail(self, error: BaseException) -> None:
        """Count a failure of our own, and see no more of the step: the next call would fail too,
        and many failures end all tracing."""
        self.has_failed = True
        self.end()
        self._session.failed(error)

    # Calls of layers

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        self.entered_ns = perf_counter_ns()
        if self.make_room_for_trace is not None and is_traced():
            self.make_room_for_trace()
        if is_compiling():
            return
        place = self._place(module)
        if not self.is_on or not self._is_of_training():
            return
        if place is None:
            is_before = not self._has_begun and not self._evaluated
            if is_before and own_attributes(module).get("_parameters"):
                self.has_others_before = True
            return
        in_backward = _is_in_backward()
        is_alone = not self.open and not in_backward and not torch.is_grad_enabled()
        if self._evaluated or (is_alone and not module.training):
            self._evaluated.append(id(module))
            return
        if is_alone:
            return
        if self.open and self.open[-1] == place and self._open_modules[-1] != id(module):
            return  # what wraps it was entered already
        outer = self.open[-1] if self.open else OUTSIDE
        self._has_begun = True
        self.open.append(place)
        self._open_modules.append(id(module))
        with unseen_by_modes():
            self._tell_enter(place, outer, arguments, in_backward)

    def _place(self, module: nn.Module) -> int | None:
        """The place of a layer, also where something wraps it."""
        place = self._places.get(id(module))
        if place is None:
            place = self._places.get(id(unwrapped(module)))
        if place is not None and is_compiled(module):
            self.compiled.add(place)
        return place

    def _is_of_training(self) -> bool:
        """Whether a call is not one of another thread (a replica, an evaluation beside), nor one
        that is recorded to be called later."""
        return (get_ident() == self._session.thread or _is_in_backward()) and not is_traced()

    def _leave(self, module: nn.Module, arguments: Any, result: Any) -> None:
        self.entered_ns = perf_counter_ns()
        called = self._evaluated or self._open_modules
        if not self.is_on or is_compiling() or id(module) not in called:
            return
        if not self._is_of_training():
            return
        if called.pop() != id(module):
            self.lose(INTERRUPTED)  # an exception that calls no hook has left a layer inside
        elif called is self._open_modules:
            with unseen_by_modes():
                self._tell_leave(self.open.pop(), result)

    # Compiled code

    def _make_room(self) -> None:
        """Compiled code is entered."""
        if not self.is_on:
            return
        if not self._is_of_training():
            self.lose(BESIDE)
            return
        if not self.open or self.open[-1] not in self.compiled:
            self.callers.add(self.open[-1] if self.open else OUTSIDE)
        self._take_out()

    def _come_back(self) -> None:
        """Compiled code is left."""
        if self.is_on and not self._removes:
            self._put_in()


def unseen_by_modes() -> Any:
    """In here what we ask of tensors is seen by no function mode of the script's, which would see
    that a tensor is asked for its graph or its memory, too."""
    return torch._C.DisableTorchFunction()


def _is_in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() >= 0)


def _is_in_a_call() -> bool:
    """Whether a module is being called at this moment: one that steps its optimizer itself is."""
    code = nn.Module._call_impl.__code__
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
