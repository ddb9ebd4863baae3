"""Finds out how a script updates its parameters where no optimizer is seen to step.

Torch calls a hook at every step of an optimizer, but not where the step is compiled. Such a step is
known by what it does: it changes the parameters, and torch counts the changes of every tensor. A
script that has no optimizer at all is marked by its backward passes.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from traceml.trace.models import (
    KnownOptimizers,
    Models,
    held_by_callers,
    modules_held_by_callers,
    something_is_compiled,
)
from traceml.trace.session import Session

MAX_PASSES_WITHOUT_STEP = 4096
"""An optimizer exists and nothing changes the parameters in a way that torch counts: backward marks
the step from then on. Far more than anybody's micro-batches in one step."""
MIN_PATIENCE = 16
"""Backward passes without a step after which an optimizer that did step is looked for again."""
MAX_SEARCHES = 3
"""Looks through the callers' variables for an optimizer; each takes a tenth of a millisecond."""


class OptimizerSearch:
    """Watches a parameter or two while backward passes go by and no optimizer is seen to step."""

    def __init__(self, session: Session, models: Models, known: KnownOptimizers) -> None:
        self._session = session
        self._models = models
        self._known = known
        session.forgets.append(self.forget)
        session.last_looks.append(self.look_for_change)  # nothing else would show the last step
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in a forked child."""
        self.passes = 0
        """Backward passes since the last step of an optimizer."""
        self.patience = 0
        """How many of them are nothing to wonder about."""
        self.usual_passes = 0
        """How many there were before the last step."""
        self.is_watching = False
        """Whether a change of the parameters is waited for."""
        self.is_in_step = False
        """Whether an optimizer that is seen steps: its closures may run backward passes."""
        self._has_stepped = False
        self._searches = 0
        self._has_scanned = False
        self._watched: list[tuple[weakref.ref[Any], int]] = []
        self._optimizers: list[weakref.ref[Any]] = []

    def end_step(self) -> None:
        """An optimizer is seen to step; so many passes before it are usual for this script."""
        self._has_stepped = True
        self.patience = max(MIN_PATIENCE, 4 * self.passes)  # a scaler of losses skips steps
        self.usual_passes, self.passes = self.passes, 0
        self.is_watching = False
        self._watched, self._searches = [], 0

    def look_again(self) -> None:
        """Something was compiled, maybe an optimizer's step: look after the next backward pass."""
        self.patience = self._searches = 0

    def look(self) -> None:
        """After a backward pass, with more of them since the last step than is usual."""
        if self.passes > MAX_PASSES_WITHOUT_STEP or not self._may_have_optimizer():
            self._mark_by_backward()
            return
        self._searches += 1
        if self._searches >= MAX_SEARCHES:
            self.patience = MAX_PASSES_WITHOUT_STEP  # also where this one fails
        self._watch()
        if self.is_watching or self._searches >= MAX_SEARCHES:
            self.patience = MAX_PASSES_WITHOUT_STEP

    def _may_have_optimizer(self) -> bool:
        return self._has_stepped or _any_optimizer_made()

    def look_for_change(self) -> None:
        """Where a step may have ended: has any watched parameter changed since?"""
        if not self.passes or not any(
            parameter is not None and parameter._version != version
            for parameter, version in ((each(), version) for each, version in self._watched)
        ):
            return
        if not self._session.identified:
            self._introduce()
        self._has_stepped = True
        self._session.tracer.by_hand = False
        self.passes = 0
        self._watched = _versions(each() for each, _ in self._watched)
        self._session.recorder.note_and_digest(self._session.tracer.change_parameters, None)

    def _watch(self) -> None:
        """Choose parameters that have a gradient, of the optimizers that the callers hold."""
        optimizers = list(_optimizers_among(held_by_callers()))
        if not optimizers and something_is_compiled() and not self._has_scanned:
            self._has_scanned = True
            optimizers = list(_optimizers_among(gc.get_objects()))
        parameters = _with_gradients(_parameters_of(optimizers))
        if not parameters:  # an optimizer of the script's own kind
            modules = modules_held_by_callers()
            parameters = _with_gradients(each for one in modules for each in one.parameters())
        if parameters:
            self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
            self._watched = _versions((parameters[0], parameters[-1]))
            self.is_watching = True

    def _introduce(self) -> None:
        """The first step of an optimizer that is not seen: from here on this is a rank."""
        optimizers = [each for each in (ref() for ref in self._optimizers) if each is not None]
        for optimizer in optimizers:
            self._known.add(optimizer)
        if not optimizers:
            self._models.watch_callers()
        self._session.identify()

    def _mark_by_backward(self) -> None:
        self.is_watching = False
        self.patience = sys.maxsize
        if not self._has_stepped:
            self._session.tracer.by_hand = True
            self._models.watch_callers()
            self._session.identify()


def _any_optimizer_made() -> bool:
    """Torch marks the class of every optimizer it constructs."""
    kinds = [Optimizer]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    return any(getattr(kind.step, "hooked", False) for kind in kinds)


def _optimizers_among(values: Iterable[Any]) -> Iterator[Any]:
    # type(x), not isinstance: a dead weak proxy raises when asked for its class
    return (value for value in values if issubclass(type(value), Optimizer))


def _parameters_of(optimizers: Iterable[Any]) -> Iterator[Any]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def _with_gradients(parameters: Iterable[Any]) -> list[nn.Parameter]:
    return [each for each in parameters if each.requires_grad and each.grad is not None]


def _versions(parameters: Iterable[Any]) -> list[tuple[weakref.ref[Any], int]]:
    return [(weakref.ref(each), each._version) for each in parameters if each is not None]
