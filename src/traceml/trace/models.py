"""Finds the model behind an optimizer and times its calls, touching no submodule.

The model is looked for when an optimizer first steps: the outermost module, among those that the
callers hold, that owns the optimizer's parameters. Its class's `__call__` is wrapped and lets every
other instance through, so nothing is attached to the model itself: it saves, copies and compiles
as before.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import Any

import torch
from torch import nn

from traceml.steps.events import ABORT, BEGIN_FORWARD, END_FORWARD, FORWARD
from traceml.trace.compiling import is_compiling
from traceml.trace.interruptions import drop_our_frames, variables_of
from traceml.trace.script_objects import own_attributes
from traceml.trace.session import Session

MAX_SCANS = 3
"""Searches through all live objects (40–130 ms each) for models that no caller holds."""
MAX_FRAMES = 40
END_OF_RECOMPUTATION = "_StopRecomputationError"
"""What activation checkpointing raises, and catches, once backward has recomputed enough of a
forward pass: nothing went wrong."""
NO_DEVICES = ("cpu", "meta")
"""Where parameters of a model that trains on a GPU may be as well: offloaded, or not made yet."""
PATIENCE_STEPS = 2
"""Steps without a forward pass before the next way of seeing one is tried."""


class WeaklyKnown(dict[int, "weakref.ref[Any]"]):
    """Objects by their identity, none of them kept alive.

    A dead one's identity may be another object's by now, so whoever looks one up compares. No
    callback removes the dead: Python discards what is raised in one, be it by a signal's handler.
    They are removed when one is added.
    """

    def knows(self, thing: Any) -> bool:
        """Whether this very object was added."""
        reference = self.get(id(thing))
        return reference is not None and reference() is thing

    def add(self, thing: Any) -> None:
        """Know an object from here on."""
        for identity in [each for each, reference in self.items() if reference() is None]:
            del self[identity]
        self[id(thing)] = weakref.ref(thing)

    def living(self) -> list[Any]:
        """Those that are still there."""
        return [each for each in (reference() for reference in self.values()) if each is not None]


class KnownOptimizers:
    """The optimizers that have stepped, and through them the models."""

    def __init__(self, models: Models) -> None:
        self._models = models
        models.optimizers = self.living
        self.seen = WeaklyKnown()
        self._scans = 0
        self.visitors: list[Callable[[], None]] = []
        """What is called, inside an optimizer's step, when it steps for the first time."""

    def add(self, optimizer: Any) -> None:
        """Look at an optimizer that steps for the first time."""
        self.seen.add(optimizer)
        parameters = {
            id(parameter): parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self._models.use_device(parameters.values())
        if not self._models.cover(parameters):
            self._models.watch(self._owners(parameters.keys()))
        self._models.note_owned(parameters)
        for visit in self.visitors:
            visit()

    def living(self) -> list[Any]:
        """The optimizers that are still there."""
        return self.seen.living()

    def _owners(self, parameters: Iterable[int]) -> list[nn.Module]:
        """The modules that own parameters; where none does, those that are being trained here.

        An optimizer may step copies of the parameters: DeepSpeed's ZeRO and others that keep them
        in higher precision, flat or divided among ranks.
        """
        wanted = set(parameters)
        owners = outermost(own_any(wanted, modules_held_by_callers()))
        if not owners and self._scans < MAX_SCANS:
            self._scans += 1
            owners = outermost(own_any(wanted, _all_modules()))
        return owners or outermost([each for each in modules_held_by_callers() if _learns(each)])


class Models:
    """The models whose calls are timed as forward passes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watched = WeaklyKnown()
        self._owned = WeaklyKnown()
        """The models with parameters that an optimizer has, or had."""
        self.optimizers: Callable[[], list[Any]] = list
        """The optimizers that have stepped and are still there."""
        self._wrapped: set[tuple[type, str]] = set()
        self._unseen = 0
        self._escalations = [self._watch_forward, self._watch_children]
        self._called = WeaklyKnown()
        """The watched models that were seen to be called."""
        self._is_looking = False
        """Whether that is still of interest: some may not have been called yet."""
        session.recorder.watched_models = self._watched
        self.visitors: list[Callable[[nn.Module], None]] = []
        """What wants to see each model that is found."""

    def cover(self, parameters: Iterable[int]) -> bool:
        """Whether the watched models own all of these already."""
        owned = {id(p) for model in self.living() for p in model.parameters()}
        return bool(owned) and owned.issuperset(parameters)

    def watch(self, models: Iterable[nn.Module]) -> None:
        """Time the calls of these models."""
        for model in models:
            if not self._watched.knows(model):
                self._watched.add(model)
                self._wrap(type(model), "__call__")
                if not self._is_looking:
                    self._is_looking = True
                    self._session.looks.append(self._try_next_way)
                for visit in self.visitors:
                    visit(model)

    def living(self) -> list[nn.Module]:
        """The watched models that are still there."""
        return self._watched.living()

    def note_owned(self, parameters: Iterable[int]) -> None:
        """Notes the models that have these parameters: an optimizer updates them."""
        for model in own_any(set(parameters), self.living()):
            if not self._owned.knows(model):
                self._owned.add(model)

    def training(self) -> list[nn.Module]:
        """The outermost of the watched models that train.

        Models whose optimizers are gone are left out while others train: a script may keep the
        models of earlier folds, with their last gradients.
        """
        living = self.living()
        if len(living) > 1:
            groups = (group for each in self.optimizers() for group in each.param_groups)
            present = own_any({id(p) for group in groups for p in group["params"]}, living)
            known = {id(model) for model in present}
            if known:
                living = [m for m in living if id(m) in known or not self._owned.knows(m)]
        return outermost(living)

    def is_known_which_trains(self) -> bool:
        """Whether it is known which of several models trains: not between the end of one's
        optimizer and the first step of the next one's. With two models whose optimizers are never
        seen it is not known in the whole run, and no gradient norms are measured."""
        return len(self.living()) < 2 or bool(self.optimizers())

    def timed_calls(self) -> list[tuple[type, str]]:
        """The classes, and of each the method, whose calls are timed where they are a model's."""
        return list(self._wrapped)

    def watches(self, model: nn.Module) -> bool:
        """Whether the calls of this model are timed already."""
        return self._watched.knows(model)

    def watch_one(self, model: nn.Module) -> None:
        """Time the calls of a model that the script has named."""
        self.use_device(model.parameters())
        self.watch([model])

    def use_device(self, parameters: Iterable[nn.Parameter]) -> None:
        """Follow the GPU that the first of these parameters which is on a device lives on."""
        devices = (parameter.device for parameter in parameters)
        device = next((each for each in devices if each.type not in NO_DEVICES), None)
        if device is None or self._session.recorder.gpu is not None:
            return
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._session.follow_cuda(index)
        else:
            self._session.device = device.type

    def watch_callers(self) -> None:
        """Without an optimizer to ask: time the modules that the callers hold and train."""
        held = {id(module): module for module in modules_held_by_callers()}.values()
        trained = [m for m in held if any(p.requires_grad for p in m.parameters())]
        self.use_device(parameter for module in trained for parameter in module.parameters())
        if not trained and self._session.recorder.gpu is None and _uses_cuda():
            self._session.follow_cuda(torch.cuda.current_device())  # tensors without a module
        self.watch(outermost(trained))

    def _wrap(self, kind: type, name: str) -> None:
        if (kind, name) in self._wrapped:
            return
        self._wrapped.add((kind, name))
        call, is_inherited = getattr(kind, name), name not in vars(kind)
        recorder = self._session.recorder
        begin, end, leave = self._events()
        note_call = self._session.guard(self._note_call)

        @functools.wraps(call)
        def timed(model: Any, *arguments: Any, **options: Any) -> Any:
            if is_compiling():
                return call(model, *arguments, **options)
            mode, outer = None, recorder.forward_of
            try:
                mode = begin(model)  # nothing in another thread, or where nothing is recorded
                if is_inherited and isinstance(model, kind):
                    # As it is at present: torch.fx replaces that of all modules while it traces.
                    result = getattr(super(kind, model), name)(*arguments, **options)
                else:
                    result = call(model, *arguments, **options)
                if mode is not None:
                    end(mode)
                    if self._is_looking:
                        note_call(model)
                return result
            except BaseException as error:
                leave(error, model, mode, outer)
                drop_our_frames(error)
                raise

        self._session.replace(kind, name, timed)

    def _events(self) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., None]]:
        """What happens when a watched model is called, has returned, or has raised."""
        session, recorder, watched = self._session, self._session.recorder, self._watched
        is_grad_enabled = torch.is_grad_enabled
        note, note_safely = recorder.note, session.guard(recorder.note)

        def is_outermost(model: Any) -> bool:
            known = watched.get(id(model))
            is_free = recorder.forward_of in (0, id(model))  # the latter: a hook was interrupted
            return known is not None and is_free and known() is model

        def note_begin(model: Any) -> int:
            mode = bool(model.training) + 2 * is_grad_enabled()
            note(BEGIN_FORWARD, mode, 0)
            recorder.forward_of = id(model)
            return mode

        def begin(model: Any) -> Any:
            if recorder.forward_of or not is_outermost(model):
                return None
            return guarded_begin(model)

        def end(mode: int) -> None:
            recorder.forward_of = 0
            guarded_end(mode)

        def leave(error: BaseException, model: Any, mode: int | None, outer: int) -> None:
            if mode is None and (outer or not is_outermost(model)):
                return  # a wrapper around this one has seen the call begin, or none has
            if mode is None and recorder.followed != get_ident():
                return  # what is open is another thread's
            recorder.forward_of = 0
            if type(error).__name__ == END_OF_RECOMPUTATION and mode is not None:
                guarded_end(mode)
            else:
                note_safely(ABORT, FORWARD)
                session.failures.note("evaluation" if mode == 0 else "forward")

        guarded_begin = session.guard_step(note_begin)
        guarded_end = session.guard_step(lambda mode: note(END_FORWARD, mode, 0))
        shortcut = recorder.shortcut
        return shortcut("begin_forward", begin), shortcut("end_forward", end), leave

    def _note_call(self, model: nn.Module) -> None:
        if not self._called.knows(model):
            self._called.add(model)

    def _try_next_way(self) -> None:
        """After each step: if a model was not called, try the next way of seeing it."""
        if not self._watched:
            return
        if not self._uncalled() or not self._escalations:
            self._is_looking = False
            self._session.looks.remove(self._try_next_way)
            return
        self._unseen += 1
        if self._unseen > PATIENCE_STEPS:
            self._unseen = 0
            if not something_is_compiled():  # wrapping now would make torch compile it again
                self._escalations.pop(0)()

    def _uncalled(self) -> list[nn.Module]:
        return [model for model in self.living() if not self._called.knows(model)]

    def _watch_forward(self) -> None:
        """The script may call `model.forward(x)` itself."""
        for model in self._uncalled():
            self._wrap(type(model), "forward")

    def _watch_children(self) -> None:
        """The outermost module may be a mere container: its parts are called one by one."""
        for model in self._uncalled():
            self.watch(_called_parts(model))


def _called_parts(model: nn.Module) -> Iterator[nn.Module]:
    """The parts of a module that can be called: a list of layers cannot, its layers can."""
    for part in model.children():
        if not any(True for _ in part.parameters()):
            continue
        if type(part).forward is nn.Module.forward and "forward" not in own_attributes(part):
            yield from _called_parts(part)
        else:
            yield part


def _uses_cuda() -> bool:
    """Whether something of this process is on a GPU."""
    return torch.cuda.is_initialized() and torch.cuda.memory_allocated() > 0  # type: ignore[no-untyped-call] # torch


def something_is_compiled() -> bool:
    """Whether Dynamo has compiled anything in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"])


def something_may_be_compiled() -> bool:
    """Whether the script has called `torch.compile`: what it got is compiled when it is called."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(dynamo, "cached_backends", None) or {}
    # What is kept from the compiler is there as None.
    return any(callable(backend) for backend in list(backends.values()))


def own_any(wanted: set[int], modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those modules that own at least one of the wanted parameters."""
    return [
        module
        for module in {id(module): module for module in modules}.values()
        if any(id(parameter) in wanted for parameter in module.parameters())
    ]


def _learns(module: nn.Module) -> bool:
    """Whether a module is in training mode and has parameters that get gradients."""
    return module.training and any(each.requires_grad for each in module.parameters())


def outermost(modules: list[nn.Module]) -> list[nn.Module]:
    """Those modules that no other of them contains."""
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in inner]


def modules_held_by_callers() -> Iterator[nn.Module]:
    """Modules in the local variables of the callers, in their objects, and one container deep."""
    for value in held_by_callers():
        yield from _modules_in(value)


def held_by_callers() -> Iterator[Any]:
    """What the local variables of the callers hold, and what the objects among it hold."""
    frame = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame.f_back is None:
            return
        frame = frame.f_back
        if _is_ours_or_torchs(frame.f_globals.get("__name__", "")):
            continue
        for value in variables_of(frame).values():
            yield value
            if not issubclass(type(value), type):
                yield from list(own_attributes(value).values())


def _is_ours_or_torchs(name: str) -> bool:
    return name.partition(".")[0] in ("torch", "traceml")


def _modules_in(value: Any) -> Iterator[nn.Module]:
    kind = type(value)
    if issubclass(kind, nn.Module):
        yield value
    elif (kind is list or kind is tuple or kind is dict) and len(value) <= 100:
        for item in list(value.values() if kind is dict else value):
            if issubclass(type(item), nn.Module):
                yield item


def _all_modules() -> Iterator[nn.Module]:
    # type(x), not isinstance: a dead weak proxy raises when asked for its class
    return (thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module))
