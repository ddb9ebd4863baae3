"""Which steps are looked at layer by layer: so few that it stays cheap, whatever it costs here.

A burst is a few steps in a row. What it added to their time is measured against the steps before
it, and the next burst waits until that is a small share of the training time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Protocol

from traceml.trace.deep.activation_steps import ActivationSteps
from traceml.trace.deep.gradient_norms import GradientNorms
from traceml.trace.deep.kernel_steps import KernelSteps
from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.deep.layer_names import ModelLayer, layers_of
from traceml.trace.deep.loss_graph import LossGraph
from traceml.trace.deep.memory_steps import MemorySteps
from traceml.trace.deep.operation_steps import OperationSteps
from traceml.trace.deep.time_budget import TimeBudget
from traceml.trace.deep.timed_steps import TimedSteps
from traceml.trace.models import KnownOptimizers, Models, outermost, something_is_compiled
from traceml.trace.session import Session

FIRST_BURST = 4
"""Steps before the first burst: the first steps of a run are unlike the others."""
TIMED_STEPS = 2
"""Steps of a burst whose layers are timed."""
MIN_STEPS_BETWEEN = 4
LAYERS_SHARE = 0.015
"""Of the training time: what looking at layers may add. With that of kernels it stays below the 3 %
that are promised, although what a burst adds is known only when it is over."""
KERNELS_SHARE = 0.008
"""The same for recording kernels, which stops the GPU for some fifty milliseconds."""
MIN_COST = 0.1
"""Of each step that is looked at: what that costs at least, whatever a quick step says."""
MEMORY_EVERY = 4
"""Every so many bursts one further step is looked at for its memory, which seldom changes."""
ACTIVATIONS_BURST = 2
"""The first burst, from 0 on, in which one further step is looked at for the size of activations;
then as seldom as for memory."""
COUNTED_BURST = 1
"""The burst, from 0 on, in which operations are counted."""
ALARM_STEPS = 2
"""Steps whose activations are looked at when a gradient is no longer usual."""
MAX_EVALUATED = 8
"""Steps in a row that were given up because the model was evaluated in them."""
REMEMBERED_STEPS = 15
"""Steps between bursts whose times are kept, to compare those of a burst with."""

COMPILED = (
    "torch.compile has compiled code of this process: what is inside it cannot be seen by layers"
)
FAILED = "the deep profile failed in this process, and was ended"
EVALUATED = "the model is evaluated in every step, where no hook may be in: no step could be seen"


class StepLook(Protocol):
    """A way of looking at a step."""

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Look at the step that begins; whether that is possible at present."""

    def end(self, step: int) -> bool:
        """The step has ended, and was that number; whether it could be looked at to its end."""

    def take_out(self) -> bool:
        """Take everything out of torch; whether nothing is left there."""


class Bursts:
    """Looks at the layers of the models that train, a few steps at a time."""

    def __init__(
        self,
        session: Session,
        models: Models,
        optimizers: KnownOptimizers,
        uses_graphs: Callable[[], bool | None],
    ) -> None:
        self._session, self._models = session, models
        self._file = LayerFile(session)
        self._timed = TimedSteps(session, self._file)
        self._memory = MemorySteps(session, self._file, optimizers.living)
        self._kernels = KernelSteps(session, self._file, uses_graphs)
        self._operations = OperationSteps(session, self._file)
        self._activations = ActivationSteps(session, self._file)
        self._loss_graph = LossGraph(session, models, self._file, lambda: self._timed.spans)
        session.failures.layer_of_node = self._loss_graph.layer_of
        session.failures.note_held = self._note_held
        self._norms = GradientNorms(
            session, models, self._file, self._loss_graph.look, self._look_at_activations
        )
        self._look_guarded = session.guard(self._look, failed=self._fail)
        self._end_norms = session.guard(self._norms.end_step)
        self._is_on = False
        self._look_at: StepLook | None = None
        """The way in which the step that runs is looked at."""
        session.forgets.append(self.forget)
        session.restores.append(self._take_out)
        session.last_looks.append(self._finish)
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child; what the parent had put into torch is out."""
        self._kernels.forget()
        self._take_out()
        self._file.forget()
        self._timed.forget()
        self._activations.forget()
        self._norms.forget()
        self._loss_graph.forget()
        self._plan: list[StepLook] = []
        """The ways in which the next steps are looked at."""
        self._looked_at = perf_counter_ns()
        self._budget = self._layers_budget = TimeBudget(LAYERS_SHARE, self._looked_at)
        self._kernels_budget = TimeBudget(KERNELS_SHARE, self._looked_at)
        self._steps_until = FIRST_BURST
        self._bursts = self._evaluated = 0
        self._idle_ns: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        self._burst_ns: list[int] = []
        self._is_settling = False
        self._layers: list[ModelLayer] = []
        self._is_alarmed = False
        """Whether the next steps are looked at for the size of activations, whatever it costs."""

    def begin(self) -> None:
        """Look at layers from here on."""
        if not self._is_on:
            self._is_on = True
            self._session.looks += [self._end_norms, self._look_guarded]

    def make_room_for_compiler(self) -> None:
        """Torch is about to compile: it would compile our hooks too, or refuse because of them."""
        if self._is_on:
            self._stop(COMPILED)

    def _fail(self, error: BaseException) -> None:
        """Count a failure of our own, and look at no further step; all else is traced as before."""
        self._session.failed(error)
        self._stop(FAILED)

    def _stop(self, why: str | None = None) -> None:
        if why is not None:
            self._file.say(why)
        self._take_out()
        if self._is_on:
            self._is_on = False
            self._session.looks.remove(self._look_guarded)

    def _take_out(self) -> None:
        """Take our hooks out of torch, whatever they have seen so far."""
        if self._look_at is not None:
            self._look_at.take_out()
            self._look_at = None

    def _finish(self) -> None:
        """The process ends: write what is there."""
        self._stop()
        self._timed.finish()
        self._activations.finish()
        self._norms.finish()

    def _look_at_activations(self) -> None:
        """A gradient is no longer usual: look at the activations of the next steps."""
        self._is_alarmed = True

    def _note_held(self, step: int) -> None:
        """Memory ran out: write what each layer holds at that moment."""
        self._memory.tell_held(layers_of(outermost(self._models.living())), step)

    # After each step

    def _look(self) -> None:
        now = perf_counter_ns()
        took = now - self._looked_at
        if self._look_at is not None:
            self._burst_ns.append(took)
            self._end_step(self._look_at)
        elif self._is_settling:
            self._burst_ns.append(took)
            self._end_burst()
        else:
            self._idle_ns.append(took)
            self._timed.tell_passed()
            self._activations.tell_arrived()
            self._steps_until -= 1
            if self._is_alarmed or self._steps_until <= 0:
                self._begin_burst(now)
        self._looked_at = now

    def _begin_burst(self, now: int) -> None:
        if self._is_alarmed:
            self._is_alarmed = False
            self._plan = [self._activations] * ALARM_STEPS
            self._budget = self._layers_budget
        elif self._layers_budget.allows(now):
            self._plan = [self._timed] * TIMED_STEPS
            if self._bursts % MEMORY_EVERY == 0:
                self._plan.append(self._memory)
            if self._bursts % MEMORY_EVERY == ACTIVATIONS_BURST:
                self._plan.append(self._activations)
            if self._bursts == COUNTED_BURST:
                self._plan.append(self._operations)
            self._budget = self._layers_budget
            self._bursts += 1
        elif self._kernels_budget.allows(now) and self._session.recorder.gpu is not None:
            self._plan = [self._kernels]
            self._budget = self._kernels_budget
        else:
            return
        if something_is_compiled():
            self._stop(COMPILED)
        elif self._file.is_full:
            self._stop()
        else:
            self._layers = layers_of(outermost(self._models.living()))
            self._burst_ns = []
            if not self._begin_step():
                self._steps_until = MIN_STEPS_BETWEEN

    def _begin_step(self) -> bool:
        """Look at the next step as planned; whether there is anything left to look at."""
        while self._plan and self._layers:
            look = self._plan.pop(0)
            if look.begin(self._layers):
                self._look_at = look
                return True
        return False

    def _end_step(self, look: StepLook) -> None:
        is_whole = look.end(self._session.count_steps())
        if not look.take_out():
            return  # after the next step
        self._look_at = None
        self._evaluated = 0 if is_whole else self._evaluated + 1
        if self._evaluated == MAX_EVALUATED:
            self._stop(EVALUATED)
            return
        if not is_whole:
            self._plan.insert(0, look)
        self._is_settling = not self._begin_step()

    def _end_burst(self) -> None:
        """The step after a burst has ended: count what the burst cost."""
        self._is_settling = False
        self._layers = []  # a model that the script lets go of is freed
        self._timed.tell_passed()
        self._steps_until = MIN_STEPS_BETWEEN
        usual = median(self._idle_ns) if self._idle_ns else 0.0
        added = sum(self._burst_ns) - usual * len(self._burst_ns)
        self._budget.spend(max(added, MIN_COST * usual * (len(self._burst_ns) - 1)))
