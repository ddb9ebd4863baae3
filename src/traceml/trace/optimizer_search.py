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
from types import FrameType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from traceml.steps.events import CHANGE_PARAMETERS, CHANGED_OPTIMIZER, optimizer_ended
from traceml.steps.graph_replays import GraphContents
from traceml.trace.models import (
    KnownOptimizers,
    Models,
    held_by_callers,
    modules_held_by_callers,
    outermost,
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
MAX_ITEMS = 100
"""A longer list or dictionary of a caller's is not looked through for optimizers."""

_OPTIMIZER_FILE = Optimizer.__getstate__.__code__.co_filename


class WatchedParameters:
    """A parameter or two that stand for all that one optimizer changes, and their versions.

    Where the optimizer is of the script's own kind, the module that owns them stands for it.
    """

    __slots__ = ("_parameters", "_versions", "is_introduced", "is_optimizer", "number", "owner")

    def __init__(self, owner: Any, number: int, parameters: Iterable[Any]) -> None:
        self.owner: weakref.ref[Any] = weakref.ref(owner)
        self.number = number
        self.is_optimizer = issubclass(type(owner), Optimizer)
        self.is_introduced = False
        self._parameters = [weakref.ref(each) for each in parameters]
        self._versions = [each._version for each in parameters]

    def living(self) -> list[Any]:
        """The parameters that are still there."""
        return [each for each in (ref() for ref in self._parameters) if each is not None]

    def has_changed(self) -> bool:
        """Whether a parameter was changed since this was last asked."""
        is_changed, versions = False, self._versions
        for index, reference in enumerate(self._parameters):
            parameter = reference()
            if parameter is not None and parameter._version != versions[index]:
                versions[index] = parameter._version
                is_changed = True
        return is_changed


class OptimizerSearch:
    """Watches a parameter or two while backward passes go by and no optimizer is seen to step."""

    def __init__(self, session: Session, models: Models, known: KnownOptimizers) -> None:
        self._session = session
        self._recorder = session.recorder
        self._models = models
        self._known = known
        session.forgets.append(self.forget)
        # Nothing else would show the last step.
        session.before_last_record.append(self.look_for_change)
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in a forked child."""
        self._has_stepped = False
        self._searches = 0
        self._has_scanned = False
        self._watched: list[WatchedParameters] = []

    def end_step(self) -> None:
        """An optimizer is seen to step; so many passes before it are usual for this script."""
        self._has_stepped = True
        recorder = self._recorder
        recorder.patience = max(MIN_PATIENCE, 4 * recorder.passes)  # a scaler of losses skips steps
        recorder.usual_passes, recorder.passes = recorder.passes, 0
        recorder.is_watching = False
        self._watched, self._searches = [], 0

    def forget_failed_step(self) -> None:
        """A backward pass begins in a step: in its closure, unless the step was left by an error.

        Torch calls no hook where a step raises, but what runs a step is not among the callers then.
        """
        if not _runs_optimizer_step():
            self._recorder.is_in_step = False
            self._recorder.lose_track()

    def look_again(self) -> None:
        """Something was compiled, maybe an optimizer's step: look after the next backward pass."""
        self._recorder.patience = self._searches = 0

    def search(self) -> None:
        """After a backward pass, with more of them since the last step than is usual."""
        if self._recorder.passes > MAX_PASSES_WITHOUT_STEP or not self._may_have_optimizer():
            self._mark_by_backward()
            return
        self._searches += 1
        if self._searches >= MAX_SEARCHES:
            self._recorder.patience = MAX_PASSES_WITHOUT_STEP  # also where this one fails
        self._watch()
        if self._recorder.is_watching or self._searches >= MAX_SEARCHES:
            self._recorder.patience = MAX_PASSES_WITHOUT_STEP

    def _may_have_optimizer(self) -> bool:
        return self._has_stepped or _any_optimizer_made()

    def look_for_change(self) -> None:
        """Where a step may have ended: note the optimizers whose parameters have changed since."""
        if not self._recorder.passes:
            return
        changed = [each for each in self._watched if each.has_changed()]
        if not changed:
            return
        for each in changed:
            if not each.is_introduced:
                self._introduce(each)
        self._has_stepped = True
        self._recorder.passes = 0
        self._session.mark_by_backward(False)
        self._note_steps(changed)

    def _note_steps(self, changed: list[WatchedParameters]) -> None:
        session, recorder = self._session, self._session.recorder
        for each in changed:
            recorder.note_on_host(CHANGED_OPTIMIZER, each.number)
        recorder.ends += not recorder.is_explicit
        ended = optimizer_ended(recorder.ends, _optimizers_in(changed))
        if recorder.is_explicit:
            recorder.note(CHANGE_PARAMETERS, ended)
            return
        recorder.end_step(CHANGE_PARAMETERS, ended)
        session.after_step()

    # CUDA graphs: what a replay changes is not counted by torch, what is captured is.

    def begin_capture(self) -> None:
        """A capture begins: what has changed before it is not the graph's."""
        self.look_for_change()
        for each in self._watched:
            each.has_changed()

    def end_capture(self, held: GraphContents) -> None:
        """A capture ends: the graph holds the unseen optimizers whose parameters it changed."""
        changed = [each for each in self._watched if each.has_changed()]
        unseen = [each for each in changed if each.number not in held.optimizers]
        for each in unseen:
            self._introduce(each)
        if unseen:
            held.optimizers.update(each.number for each in unseen)
            held.optimizer_steps += _optimizers_in(unseen)
        if held.backwards and not held.optimizers:
            self.search()

    def count_replayed(self, passes: int) -> None:
        """A graph with backward passes and without an optimizer was replayed."""
        recorder = self._recorder
        recorder.passes += passes
        if recorder.passes > recorder.patience and not recorder.is_in_step:
            self.search()

    # Choosing what to watch

    def _watch(self) -> None:
        """Choose parameters of each optimizer that the callers hold, beside those watched already.

        Optimizers that step in turn (a GAN's) are all watched, gradients or not, so that each is
        known from its first step on; but only if one of them has a gradient by now.
        """
        optimizers = list(_optimizers_held(held_by_callers()))
        if not optimizers and something_is_compiled() and not self._has_scanned:
            self._has_scanned = True
            optimizers = list(_optimizers_among(gc.get_objects()))
        owned = [(each, list(_parameters_of(each))) for each in optimizers]
        if not any(_with_gradients(parameters) for _, parameters in owned):
            modules = outermost(list(modules_held_by_callers()))  # an optimizer of its own kind
            owned = [(each, _with_gradients(each.parameters())) for each in modules]
        self._watched = [each for each in self._watched if each.living()]
        taken = {id(parameter) for each in self._watched for parameter in each.living()}
        for owner, parameters in owned:
            chosen = _chosen(parameters)
            if chosen and taken.isdisjoint(map(id, chosen)):  # else a wrapper of one, or its spare
                taken.update(map(id, chosen))
                number = self._session.optimizers.of(owner)
                self._watched.append(WatchedParameters(owner, number, chosen))
        self._recorder.is_watching = bool(self._watched)

    def _introduce(self, watched: WatchedParameters) -> None:
        """The first step of an optimizer that is not seen: at the latest now this is a rank."""
        watched.is_introduced = True
        optimizer = watched.owner() if watched.is_optimizer else None
        if optimizer is not None and not self._known.seen.knows(optimizer):
            self._known.add(optimizer)
        elif optimizer is None and not self._recorder.identified:
            self._models.watch_callers()
        self._session.identify()

    def _mark_by_backward(self) -> None:
        self._recorder.is_watching = False
        self._recorder.patience = sys.maxsize
        if not self._has_stepped:
            self._session.mark_by_backward(True)
            self._models.watch_callers()
            self._session.identify()


def _optimizers_in(changed: list[WatchedParameters]) -> int:
    """How many optimizers have stepped; of a script's own kind it is not known, and one counts."""
    return max(1, sum(each.is_optimizer for each in changed))


def _runs_optimizer_step() -> bool:
    """Whether torch's wrapper around every optimizer's step is among the callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _OPTIMIZER_FILE:
            return True
        frame = frame.f_back
    return False


def runs_inside_another_step() -> bool:
    """Whether this is called from an optimizer's step that runs inside the step of another
    optimizer."""
    frame: FrameType | None = sys._getframe(1)
    steps = 0
    while frame is not None and steps < 2:
        code = frame.f_code
        steps += code.co_name == "wrapper" and code.co_filename == _OPTIMIZER_FILE
        frame = frame.f_back
    return steps == 2


def _any_optimizer_made() -> bool:
    """Torch marks the class of every optimizer it constructs."""
    kinds = [Optimizer]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    return any(getattr(kind.step, "hooked", False) for kind in kinds)


def _optimizers_held(values: Iterable[Any]) -> Iterator[Any]:
    """The optimizers among these values and in the lists and dictionaries among them, each once."""
    found: dict[int, Any] = {}
    for value in values:
        inside: Iterable[Any] = (value,)
        kind = type(value)  # compared by identity: `in` runs the code of the class's own class
        if (kind is list or kind is tuple or kind is dict) and len(value) <= MAX_ITEMS:
            inside = list(value.values() if kind is dict else value)
        found.update((id(each), each) for each in _optimizers_among(inside))
    return iter(found.values())


def _optimizers_among(values: Iterable[Any]) -> Iterator[Any]:
    # type(x), not isinstance: a dead weak proxy raises when asked for its class
    return (value for value in values if issubclass(type(value), Optimizer))


def _parameters_of(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _with_gradients(parameters: Iterable[Any]) -> list[nn.Parameter]:
    return [each for each in parameters if each.requires_grad and each.grad is not None]


def _chosen(parameters: Iterable[Any]) -> list[nn.Parameter]:
    """The first and the last parameter with a gradient; where none has one, of those that may."""
    trained = [each for each in parameters if each.requires_grad]
    trained = _with_gradients(trained) or trained
    return trained[:1] + trained[1:][-1:]
