"""Keeps what the deep profile puts into torch out of compiled code, and sees it from outside.

Code that `torch.compile` has compiled looks at torch's global hooks each time before it runs: with
ours among them it would be compiled anew. So everything of ours goes out as compiled code is
entered, and comes back as it is left. Both are seen where Dynamo itself switches between the two,
which it does for a compiled module, for a module's `compile()` and for a function alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.nn.modules import module as module_hooks

from traceml.trace.compiling import skipped
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.session import Session

_SWITCHES = ("set_eval_frame", "_maybe_set_eval_frame")
"""The functions of `torch._dynamo.eval_frame` that turn its compiler on and off; the second is the
first one itself, or calls it."""
_COMPILED = "_compiled_call_impl"


class CompiledCalls:
    """Tells when compiled code is entered and left, in one step."""

    def __init__(
        self, session: Session, enter: Callable[[], None], leave: Callable[[], None]
    ) -> None:
        """`enter` is called before compiled code runs, `leave` after it; neither is called while
        Dynamo would compile them."""
        self._session, self._enter, self._leave = session, enter, leave
        self._restores: list[Callable[[], None]] = []

    def begin(self) -> None:
        """See compiled code from here on."""
        dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
        switch = getattr(dynamo, _SWITCHES[0], None)
        if switch is None:
            return  # nothing is compiled, or in an unknown way: `before_compiling` tells of it
        watched = self._watched(switch)
        for name in _SWITCHES:
            if getattr(dynamo, name, None) is switch:
                self._restores.append(self._session.replace(dynamo, name, watched))

    def end(self) -> None:
        """See it no more."""
        while self._restores:
            self._restores.pop()()

    def _watched(self, switch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        enter, leave = self._enter, self._leave

        def set_eval_frame(callback: Any) -> Any:
            before = switch(None)  # from here on nothing is compiled, nor any function of ours
            if callback is None and before is not None:
                leave()
            if callback is not None:
                if before is None:
                    enter()
                switch(callback)
            return before

        return skipped(set_eval_frame)  # it begins where frames are still compiled


class CompiledMethods:
    """Sees the calls of modules that were compiled in place, by `module.compile()`.

    Torch calls what it compiled instead of the module's hooks. It keeps it in an attribute of the
    module, which it neither copies nor pickles.
    """

    def __init__(
        self,
        layers: Sequence[ModelLayer],
        enter: Callable[[nn.Module, Any], None],
        leave: Callable[[nn.Module, Any, Any], None],
    ) -> None:
        self._enter, self._leave = enter, leave
        self._own = [
            (attributes, compiled, self._watched(layer.module, compiled))
            for layer in layers
            if (compiled := (attributes := vars(layer.module)).get(_COMPILED)) is not None
        ]

    def put_in(self) -> None:
        """See the calls from here on."""
        for attributes, compiled, watched in self._own:
            if attributes.get(_COMPILED) is compiled:
                attributes[_COMPILED] = watched

    def take_out(self) -> None:
        """Leave the modules as they were."""
        for attributes, compiled, watched in self._own:
            if attributes.get(_COMPILED) is watched:
                attributes[_COMPILED] = compiled

    def _watched(self, module: nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
        enter, leave = self._enter, self._leave

        def call(*arguments: Any, **options: Any) -> Any:
            try:
                enter(module, arguments)
                result = compiled(*arguments, **options)
                leave(module, arguments, result)
                return result
            except BaseException as error:
                if isinstance(error, Exception):  # as torch calls hooks: not for an interruption
                    leave(module, arguments, None)
                drop_our_frames(error)
                raise

        return call


def has_hook_of_the_script() -> bool:
    """Whether there is a global hook beside ours: torch warns of it where a compiled module is
    called, and there is no need to warn of ours, which is out by then."""
    forward = len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks)
    backward = module_hooks._global_backward_hooks, module_hooks._global_backward_pre_hooks
    return max(forward) > 1 or any(backward)


def is_compiled(module: nn.Module) -> bool:
    """Whether this is what `torch.compile(model)` returns, or was compiled in place."""
    if vars(module).get(_COMPILED) is not None:
        return True
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)
