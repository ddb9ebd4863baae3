"""Records what a run trains with, once it has shown in the first steps.

What can be read is read after a few of the first steps and then no more. What only shows while it
happens (autocast, activation checkpointing, CUDA graphs) is seen by hooks that are taken out again.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from traceml.model.settings import Settings
from traceml.trace import torch_settings as read
from traceml.trace.compiling import is_compiling, left_alone
from traceml.trace.graphs import Graphs
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.models import KnownOptimizers, Models
from traceml.trace.session import Session

READ_AFTER_STEPS = (1, 10, 100)
"""Complete steps after which the settings are read: the first for runs that end early, the others
for what comes later, such as compilation, a first batch of the next epoch, or an evaluation."""
SEEN_WITHIN_STEPS = 10
"""What has not happened in so many steps is taken not to happen: its hooks are taken out."""
MAX_READINGS = 16
"""A script that makes new optimizers, or takes turns between loaders, is read no more often."""
MAX_MESSAGES = 8
"""A script that changes its settings all the time sends no more than these."""


class Sightings:
    """What was seen to happen in the first steps: autocast and checkpointing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.autocast_dtype = ""
        self.checkpoints_activations = False
        self._undo: list[Callable[[], None]] = []
        self._watch_autocast()
        self._watch_checkpointing()

    def end(self) -> None:
        """Take the hooks out: from here on nothing costs anything."""
        while self._undo:
            self._undo.pop()()

    def _watch_autocast(self) -> None:
        self._after(torch.autocast, "__enter__", self._see_autocast)

    def _watch_checkpointing(self) -> None:
        """Both kinds of checkpointing pass one place of torch's that runs nothing of the user's.

        `checkpoint` itself stays: the compiler knows it by identity.
        """
        module: Any = sys.modules.get("torch.utils.checkpoint")
        if module is None:
            return
        frame = getattr(module, "_CheckpointFrame", None)
        if frame is not None:
            self._after(frame, "__init__", self._see_checkpointing)
        if hasattr(module, "check_backward_validity"):
            self._after(module, "check_backward_validity", self._see_checkpointing)

    def _after(self, owner: Any, name: str, see: Callable[[Any], None]) -> None:
        """Have something noted after each call of a function; what the call gives stays."""
        function = getattr(owner, name)
        guarded = self._session.guard(see, any_thread=True)

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                result = function(*arguments, **options)
                if not is_compiling():
                    guarded(arguments[0] if arguments else None)
                return result
            except BaseException as error:
                drop_our_frames(error)
                raise

        self._undo.append(self._session.replace(owner, name, left_alone(call)))

    def _see_autocast(self, autocast: Any) -> None:
        """Evaluation may run under another autocast; training keeps gradients."""
        if read.own(autocast, "_enabled") and torch.is_grad_enabled():
            self.autocast_dtype = read.dtype_name(read.own(autocast, "fast_dtype"))

    def _see_checkpointing(self, _: Any) -> None:
        self.checkpoints_activations = True


class SettingsRecorder:
    """Sends the settings of this process, and sends them again where they have changed."""

    def __init__(
        self, session: Session, models: Models, optimizers: KnownOptimizers, graphs: Graphs
    ) -> None:
        self._session = session
        self._graphs = graphs
        self._models = models
        self._optimizers = optimizers
        self._sightings = Sightings(session)
        self._loader: dict[str, Any] = {}
        self._has_grad_scaler: bool | None = None
        self._read_guarded = session.guard(self._read_when_due)
        optimizers.visitors.append(self.see_optimizer)
        session.forgets.append(self.forget)
        self.forget()

    def forget(self) -> None:
        """Begin anew: a forked child that trains has a ring, and settings, of its own."""
        self._due = list(READ_AFTER_STEPS)
        self._sent: Settings | None = None
        self._messages = 0
        self._readings = 0
        self._read_after_steps()

    def see_optimizer(self) -> None:
        """An optimizer steps for the first time: what calls it shows whether gradients are scaled.

        Called in its step, so that the callers are on the stack.
        """
        self._has_grad_scaler = bool(self._has_grad_scaler) or read.grad_scaler_above(
            sys._getframe(1)
        )
        self._read_after_next_step()

    def see_loader(self, iterator: Any) -> None:
        """Training fetches from this loader."""
        if self._readings >= MAX_READINGS:
            return
        self._loader = read.of_loader(iterator)
        self._read_after_next_step()

    def _read_after_next_step(self) -> None:
        """A further reading, once a step is complete: what is seen may be an evaluation's."""
        if self._readings < MAX_READINGS:
            self._due.insert(0, self._session.recorder.ends + 1)
            self._read_after_steps()

    def _read_after_steps(self) -> None:
        looks = self._session.looks
        if self._read_guarded not in looks:
            looks.append(self._read_guarded)

    def _read_when_due(self) -> None:
        """After each step, as long as a reading is due."""
        steps = self._session.recorder.ends
        if not self._due:  # the last reading failed
            self._session.looks.remove(self._read_guarded)
            return
        if steps < self._due[0]:
            return
        self._due = [due for due in self._due if due > steps]
        self._readings += 1
        if steps >= SEEN_WITHIN_STEPS:
            self._sightings.end()
        with torch._C.DisableTorchFunction():  # who watches every function sees none of ours
            settings = self.settings()
        self._send(settings)
        if not self._due or self._readings >= MAX_READINGS:
            self._session.looks.remove(self._read_guarded)

    def _send(self, settings: Settings) -> None:
        if settings == self._sent or self._messages == MAX_MESSAGES:
            return
        self._sent = settings
        self._messages += 1
        known = {name: value for name, value in settings._asdict().items() if value is not None}
        self._session.messages.write({"kind": "settings", "pid": os.getpid(), **known})

    def settings(self) -> Settings:
        """What this process trains with, as far as it is known by now."""
        optimizers = self._optimizers.living()
        parts = read.parts_of(self._models.living())
        found = read.of_torch(on_gpu=self._session.device.startswith("cuda"))
        found |= read.of_optimizers(optimizers)
        if parts:
            found |= read.of_models(parts)
        elif optimizers:
            groups = [group for each in optimizers for group in read.own(each, "param_groups", ())]
            found |= read.of_parameters(p for group in groups for p in group["params"])
        found |= self._loader
        found |= self._seen(found)
        return Settings(**found)

    def _seen(self, found: dict[str, Any]) -> dict[str, Any]:
        """What was seen to happen; a compiled model may checkpoint where nobody sees it."""
        seen, device = self._sightings, self._session.device.partition(":")[0]
        autocast = seen.autocast_dtype or read.running_autocast(device)
        is_hidden = bool(found.get("compile_mode")) and not seen.checkpoints_activations
        return {
            "autocast_dtype": autocast or found.get("autocast_dtype", ""),
            "has_grad_scaler": self._has_grad_scaler,
            "checkpoints_activations": None if is_hidden else seen.checkpoints_activations,
            "uses_cuda_graphs": self._graphs.was_captured,
        }
