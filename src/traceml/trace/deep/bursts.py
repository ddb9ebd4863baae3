"""Which steps are looked at layer by layer: so few that it stays cheap, whatever it costs here.

A burst is a few steps in a row. What it added to their time is measured against the steps before
it, and the next burst waits until that is a small share of the training time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

from traceml.model.device_peaks import STATED_BY
from traceml.trace.deep.activation_steps import ActivationSteps
from traceml.trace.deep.call_watch import unseen_by_modes
from traceml.trace.deep.gradient_norms import GradientNorms
from traceml.trace.deep.kept_tensors import KeptTensors
from traceml.trace.deep.kernel_steps import KernelSteps
from traceml.trace.deep.layer_file import LayerFile
from traceml.trace.deep.layer_names import MAX_LAYERS, ModelLayer, layers_of
from traceml.trace.deep.loss_graph import LossGraph
from traceml.trace.deep.memory_steps import MemorySteps
from traceml.trace.deep.operation_steps import OperationSteps
from traceml.trace.deep.time_budget import TimeBudget, UsualCost
from traceml.trace.deep.timed_steps import TimedSteps
from traceml.trace.failure import ended_by_device_error
from traceml.trace.models import KnownOptimizers, Models, outermost
from traceml.trace.profiler_turns import ProfilerTurns
from traceml.trace.session import Session
from traceml.trace.step_boundary import EarlierOperations, FetchWatch, StepBoundary

FIRST_BURST = 4
"""Steps before the first burst: the first steps of a run are unlike the others."""
TIMED_STEPS = 2
"""Steps of a burst whose layers are timed."""
MIN_STEPS_BETWEEN = 4
MAX_ALIGNMENTS = 8
"""How often it is asked whether a step begins, before that is charged without a burst."""
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
"""The burst, from 0 on, in which operations are counted; again where batches change for good."""
ALARM_STEPS = 2
"""Steps whose activations are looked at when a gradient is no longer usual."""
MAX_PARTS = 16
"""Looks at one step at most: a loop may call several optimizers in each."""
MAX_LOST = 8
"""Steps in a row that could not be seen to their end, after which no further one is looked at."""
KEPT_GROWTH = 1.5
"""The steps between two looks at what modules hold grow by this: forty looks in a million steps."""
REMEMBERED_STEPS = 15
"""Steps between bursts whose times are kept, to compare those of a burst with."""

FAILED = "the deep profile failed in this process, and was ended"
LOOK_FAILED = "{} failed in this process, and is not done any more"
REACHES_BACK = (
    "the backward pass of some steps went through what had been computed before the step began: it "
    "is not measured there"
)
TOO_MANY = (
    f"Only the first {MAX_LAYERS:,} modules of the model are followed: what further ones do is a "
    "part of the layers that call them"
)
RECOMPILED = "torch.compile compiles in every step: no step could be seen"


class StepLook(Protocol):
    """A way of looking at a step."""

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Look at the step that begins; whether that is possible at present."""

    def end(self, step: int, steps: int) -> str | None:
        """The step has ended. `step` is its number, or the last of `steps` that could not be told
        apart while they ran. Returns why the step could not be looked at to its end; `None` where
        it could."""

    def take_out(self) -> bool:
        """Take everything out of torch; whether nothing is left there."""

    def lose_backward(self) -> None:
        """Drops what was seen of the backward pass: it goes through operations from before the
        step, which were not looked at."""


class Bursts:
    """Looks at the layers of the models that train, a few steps at a time."""

    def __init__(
        self,
        session: Session,
        models: Models,
        optimizers: KnownOptimizers,
        uses_graphs: Callable[[], bool | None],
        turns: ProfilerTurns,
        fetches: FetchWatch,
    ) -> None:
        self._session, self._models, self._turns = session, models, turns
        self._file = LayerFile(session)
        self._timed = TimedSteps(session, models, self._file)
        self._kept = KeptTensors(self._file)
        self._memory = MemorySteps(session, self._file, self._kept, optimizers.living)
        self._kernels = KernelSteps(session, self._file, uses_graphs, turns)
        self._operations = OperationSteps(session, self._file)
        self._activations = ActivationSteps(session, self._file)
        self._loss_graph = LossGraph(
            session,
            models,
            self._file,
            lambda: self._timed.spans,
            lambda: self._timed.open_spans,
        )
        session.failures.layer_of_node = self._loss_graph.layer_of
        session.failures.note_held = self._note_held
        self._norms = GradientNorms(
            session,
            models,
            self._file,
            self._look_at_loss,
            self._look_at_activations,
            self._may_look,
            self._timed,
        )
        self._names: dict[StepLook, str] = {
            self._timed: "timing layers",
            self._memory: "looking at the memory of layers",
            self._activations: "looking at what layers return",
            self._operations: "counting the operations of layers",
            self._kernels: "recording kernels",
        }
        """What each look is called for people."""
        self._follow_guarded = session.guard(self._follow_step, failed=self._fail)
        self._end_norms = session.guard(self._end_norms_of_step)
        follow_fetch = session.guard(self._follow_fetch, decides=False, failed=self._fail)
        self._boundary = StepBoundary(session, fetches, follow_fetch)
        self._earlier = EarlierOperations()
        self._is_on = False
        self._look_at: StepLook | None = None
        """The way in which the step that runs is looked at …"""
        self._has_ended = False
        """… or was: what could not be taken out of torch at once is after a later step …"""
        self._why: str | None = None
        """… and why it could not be looked at to its end."""
        session.forgets.append(self.forget)
        session.restores.append(self._take_out)
        session.before_last_record.append(self._finish)
        turns.enders.append(self._make_room_for_profiler)
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child; what the parent had put into torch is out."""
        self._kernels.forget()
        self._take_out()
        self._look_at = None
        self._file.forget()
        self._timed.forget()
        self._kept.forget()
        self._operations.forget()
        self._activations.forget()
        self._norms.forget()
        self._loss_graph.forget()
        self._dropped: set[StepLook] = set()
        """The looks that have failed: none of them is begun again."""
        self._plan: list[StepLook] = []
        """The ways in which the next steps are looked at."""
        self._looked_at = perf_counter_ns()
        self._budget = self._layers_budget = TimeBudget(LAYERS_SHARE, self._looked_at)
        self._kernels_budget = TimeBudget(KERNELS_SHARE, self._looked_at)
        self._aligning = UsualCost()
        """Of finding out whether a step begins, for which steps are counted …"""
        self._aligning_ns, self._alignments = 0.0, 0
        """… what that has cost and how often it was done since it was last charged: with the burst
        that it is for, so that it puts off none but the next."""
        self._boundary.forget()
        self._wait(FIRST_BURST)
        self._steps_until_kept = self._kept_interval = FIRST_BURST
        self._parts = 0
        """Optimizers that have stepped in the present step, in a burst."""
        self._max_parts = 1
        self._bursts = self._lost = 0
        self._is_of_layers = False
        """Whether the burst is a planned one at layers: no alarm, and none at kernels alone."""
        self._was_compiling = False
        """Whether torch compiled something in the step that is looked at."""
        self._idle_ns: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        self._burst_ns: list[int] = []
        self._is_settling = False
        self._layers: list[ModelLayer] = []
        self._is_alarmed = False
        """Whether the next steps are looked at for the size of activations, whatever it costs."""
        self._earlier.forget()
        self._reached_back = False

    def begin(self) -> None:
        """Look at layers from here on."""
        if not self._is_on:
            self._is_on = True
            self._session.looks += [self._end_norms, self._follow_guarded]

    def make_room_for_compiler(self) -> None:
        """Torch is about to compile: it would compile our hooks too, or refuse because of them.

        The step takes longer than others by that, too: another one is looked at instead.
        """
        if self._look_at is not None:
            self._was_compiling = True
            self._look_at.take_out()

    def _may_look(self) -> bool:
        """Whether the device may be looked at: nothing of ours may run there while a profiler
        records, the script's or one of ours, because it would be taken for the script's work."""
        return not self._turns.is_running

    def _make_room_for_profiler(self) -> None:
        """A profiler begins: give up the burst."""
        self._norms.drop_latest()
        self._give_up_burst()

    def _give_up_burst(self) -> None:
        self._take_out()
        self._plan, self._layers, self._burst_ns = [], [], []
        self._is_settling = self._was_compiling = False
        self._parts = 0
        self._wait(MIN_STEPS_BETWEEN)

    def _end_norms_of_step(self) -> None:
        if self._may_look():
            with unseen_by_modes():
                self._norms.end_step()

    def _fail(self, error: BaseException) -> None:
        """Count a failure of our own, and look at no further step in the way that failed; where it
        was none of them alone, at none at all. All else is traced as before."""
        self._session.failed(error)
        look = self._look_at
        if look is None or look in self._dropped:
            self._stop(FAILED)
            return
        self._dropped.add(look)
        self._file.say(LOOK_FAILED.format(self._names[look]))
        self._has_ended, self._why = True, None
        self._give_up_burst()

    def _stop(self, why: str | None = None) -> None:
        if why is not None:
            self._file.say(why)
        self._plan, self._layers = [], []
        if self._is_on:
            self._is_on = False
            self._session.looks.remove(self._follow_guarded)
        self._boundary.stop()
        self._take_out()

    def _take_out(self) -> None:
        """Take our hooks out of torch, whatever they have seen so far; what cannot be taken out now
        is after a later step."""
        if self._look_at is not None and self._look_at.take_out():
            self._look_at = None

    def _finish(self) -> None:
        """The process ends: write what is there, each part even where another one fails."""
        if ended_by_device_error():
            self._norms.drop_latest()  # the device cannot be asked for them any more
        for finish in (
            self._stop,
            self._timed.finish,
            self._kernels.finish,
            self._activations.finish,
            self._norms.finish,
            self._look_at_kept,
        ):
            self._session.guard(finish, any_thread=True)()

    def _look_at_kept(self) -> None:
        """See which modules hold more than before; the longer the run, the seldomer."""
        self._kept_interval = self._steps_until_kept = int(KEPT_GROWTH * self._kept_interval)
        layers = layers_of(outermost(self._models.living()))
        self._kept.write_growth(layers, self._session.count_stepped())

    def _look_at_loss(self, loss: Any) -> bool:
        """Backward begins with this loss; whether it is not finite."""
        with unseen_by_modes():
            return self._see_loss(loss)

    def _see_loss(self, loss: Any) -> bool:
        self._memory.see_loss(loss)
        self._timed.see_loss()
        self._kernels.see_loss()
        if self._look_at is not None and self._earlier.are_behind(loss):
            self._look_at.lose_backward()
            if not self._reached_back:
                self._reached_back = True
                self._file.say(REACHES_BACK)
        return self._loss_graph.check_loss(loss)

    def _look_at_activations(self) -> None:
        """A gradient is no longer usual: look at the activations of the next steps."""
        self._is_alarmed = True

    def _note_held(self, step: int) -> None:
        """Memory ran out: write what each layer holds at that moment."""
        self._memory.tell_held(layers_of(self._models.training()), step)

    # After each step

    def _follow_step(self) -> None:
        with unseen_by_modes():
            self._follow_end(perf_counter_ns())

    def _follow_end(self, now: int) -> None:
        """An optimizer has stepped, at this moment."""
        took = now - self._looked_at
        self._earlier.note_end()
        if self._is_blocking_profiler():
            self._make_room_for_profiler()
        elif self._look_at is not None:
            self._burst_ns.append(took)
            self._follow_optimizer(self._look_at)
        elif not self._may_look():
            pass
        elif self._is_settling:
            self._burst_ns.append(took)
            self._end_burst()
        else:
            self._idle_ns.append(took)
            self._write_seen()
            self._steps_until_kept -= 1
            if self._steps_until_kept <= 0:
                self._look_at_kept()
            self._steps_until -= 1
            if self._is_alarmed or self._steps_until <= 0:
                self._begin_burst_when_aligned(now)
        self._looked_at = now

    def _is_blocking_profiler(self) -> bool:
        """Whether a step is being looked at although a profiler runs, which another thread has
        started."""
        return self._look_at not in (None, self._kernels) and not self._may_look()

    def _follow_optimizer(self, look: StepLook) -> None:
        """Ends the step that is looked at, if the optimizer that has just stepped was its last."""
        self._parts += 1
        was_known = self._boundary.is_at_fetch
        ended = self._boundary.steps_ended()
        if self._boundary.is_at_fetch and not was_known and look is not self._activations:
            self._give_up_burst()  # it began between two optimizers of one step
        elif ended or self._parts >= MAX_PARTS:
            self._end_step(look, ended or 1)

    def _follow_fetch(self, ended: int) -> None:
        """Ends the step that is looked at, or `ended` of them: they end with this fetch, where the
        next one begins."""
        with unseen_by_modes():
            self._follow_ends(ended)

    def _follow_ends(self, ended: int) -> None:
        if self._is_blocking_profiler():
            self._make_room_for_profiler()
        elif self._look_at is not None:
            self._end_step(self._look_at, ended)
        elif self._may_look() and self._steps_until <= 0 and not self._is_settling:
            self._begin_burst(self._allowing(perf_counter_ns()))

    def _wait(self, steps: int) -> None:
        """Look at no step before so many have ended; the last of them shows where a step ends."""
        self._steps_until = steps - 1
        self._boundary.stop()

    def _begin_burst_when_aligned(self, now: int) -> None:
        """Begin a burst where its cost is allowed and a step begins."""
        budget = self._allowing(now)
        if budget is None:
            return
        ended = self._boundary.steps_ended()
        self._aligning_ns += self._aligning.charge(perf_counter_ns() - now)
        self._alignments += 1
        if ended or self._is_alarmed:
            self._begin_burst(budget)
        elif self._alignments >= MAX_ALIGNMENTS:
            self._spend_aligning()

    def _spend_aligning(self) -> None:
        self._layers_budget.spend(self._aligning_ns)
        self._aligning_ns, self._alignments = 0.0, 0

    def _begin_burst(self, budget: TimeBudget | None) -> None:
        """Begin a burst, where its cost is allowed: a step begins here."""
        if budget is None:
            return
        self._budget = budget
        self._is_of_layers = not self._is_alarmed and budget is self._layers_budget
        if self._is_alarmed:
            self._is_alarmed = False
            self._plan = [self._activations] * ALARM_STEPS
        elif budget is self._kernels_budget:
            self._plan = [self._kernels]
        else:
            self._plan = [self._timed] * TIMED_STEPS
            if self._bursts % MEMORY_EVERY == 0:
                self._plan.append(self._memory)
            if self._bursts % MEMORY_EVERY == ACTIVATIONS_BURST:
                self._plan.append(self._activations)
            latest_elements = self._timed.latest_elements
            if self._bursts == COUNTED_BURST or self._operations.is_outdated(latest_elements):
                self._plan.append(self._operations)
        self._plan = [look for look in self._plan if look not in self._dropped]
        if self._file.is_full:
            self._stop()
        elif not self._plan:
            self._bursts += self._is_of_layers  # the next one may look at something else
            self._wait(MIN_STEPS_BETWEEN)
        else:
            self._layers = layers_of(self._models.training())
            self._write_known_notes()
            self._burst_ns, self._max_parts = [], 1
            if not self._begin_step():
                self._wait(MIN_STEPS_BETWEEN)

    def _write_known_notes(self) -> None:
        """Writes what is known before the first look: that some layers are not followed, and what
        the user states of the device."""
        if len(self._layers) == MAX_LAYERS:
            self._file.say(TOO_MANY)
        if stated := os.environ.get(STATED_BY):
            self._file.say(stated, "stated_peaks")

    def _allowing(self, now: int) -> TimeBudget | None:
        """The budget that allows a burst now."""
        if self._is_alarmed or self._layers_budget.allows(now):
            return self._layers_budget
        is_on_gpu = self._session.recorder.gpu is not None and self._kernels not in self._dropped
        if is_on_gpu and self._kernels_budget.allows(now):
            return self._kernels_budget
        return None

    def _begin_step(self) -> bool:
        """Look at the next step as planned; whether there is anything left to look at."""
        while self._plan and self._layers:
            look = self._plan.pop(0)
            self._look_at = look  # already: where it fails half-way, all of it is taken out again
            self._has_ended, self._why = False, None
            self._earlier.begin_look()
            if look.begin(self._layers):
                return True
            self._look_at = None
        self._layers = []  # a model that the script lets go of is freed
        return False

    def _end_step(self, look: StepLook, steps: int) -> None:
        self._max_parts = max(self._max_parts, self._parts)
        self._parts = 0
        self._timed.usual_ns = self._usual_ns() * self._max_parts
        if not self._has_ended:
            self._has_ended, self._why = True, look.end(self._session.count_stepped(), steps)
        if not look.take_out():
            return  # after the next step, which is not looked at
        why = self._why
        self._look_at = None
        if self._was_compiling:
            why, self._was_compiling = RECOMPILED, False
        self._lost = 0 if why is None else self._lost + 1
        if why is not None and self._lost == MAX_LOST:
            self._stop(why)
            return
        if why is not None:
            self._plan.insert(0, look)
        self._is_settling = not self._begin_step()

    def _end_burst(self) -> None:
        """The step after a burst has ended: count what the burst cost."""
        self._is_settling = False
        self._bursts += self._is_of_layers  # one that is given up is begun again, as it was planned
        self._write_seen()
        self._wait(MIN_STEPS_BETWEEN)
        usual = self._usual_ns()
        added = sum(self._burst_ns) - usual * len(self._burst_ns)
        self._budget.spend(max(added, MIN_COST * usual * (len(self._burst_ns) - 1)))
        self._spend_aligning()

    def _write_seen(self) -> None:
        """Write what the device has answered by now. It is a part of what looking costs, and lies
        in none of the burst's steps."""
        began = perf_counter_ns()
        self._timed.tell_passed()
        self._activations.tell_arrived()
        self._layers_budget.spend(perf_counter_ns() - began)

    def _usual_ns(self) -> float:
        """What usually passes between two looks; parts of a step may differ, whole ones hardly."""
        idle, parts = tuple(self._idle_ns), self._max_parts
        wholes = [sum(idle[at : at + parts]) for at in range(len(idle) - parts + 1)]
        return median(wholes) / parts if wholes else 0.0
