"""Turns what the hooks saw (fetch, copy, forward, backward, optimizer, save) into steps.

Each event comes with its moment: a time on the host's clock and, where there is one, a mark on the
GPU's timeline. The machine itself reads no clock, so it can run after the fact (see `recorder`).

Time is accounted for completely. A step begins where the one before it ended, so the walls of all
records add up to the loop's wall time. Inside, `wall = input + body + between`.

Where a step ends:
- an explicit `trace_step` ends where the user says;
- otherwise at the next fetch once an optimizer has stepped;
- where no fetch is seen, at the end of the optimizer step that completes the set of optimizers
  (a GAN has two), and at the latest when an optimizer steps a second time;
- a script without any optimizer is marked by its backward passes instead;
- an optimizer that no hook can see (it is compiled) is known by the parameters that it changes;
- a replay of a CUDA graph that holds an optimizer step is one.

What belongs to no step: batches that are fetched and never trained on (evaluation) and checkpoints
are `between`. Whether a batch was for evaluation is known only when the next one is fetched, so
everything since the last fetch is provisional: it can be taken back to the snapshot made there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from traceml.model.layout import (
    GPU_FIELDS,
    MAX_LOSS_LAG,
    MAX_SYNCS,
    NO_STEP,
    NOT_MEASURED,
    StepFlag,
)
from traceml.trace.interruptions import is_interruption
from traceml.trace.timeline import Bounds, Sink, Timeline

INPUT, H2D, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, EVALUATION, GC, SAMPLES, BACKWARDS, STEPS = (
    range(11)
)
COMMUNICATION, SYNC, LOGGING, COMPILE, COLLATE, GRAPH, SYNCS = range(11, 18)
"""Places in the list of what a step has accumulated so far."""

EVALUATING, TRAINING_WITH_GRADIENTS = 0, 3
"""A forward pass's mode: 1 if the model is in training mode, plus 2 if gradients are kept."""

_OUTSIDE_STEPS_TOO = (H2D, CHECKPOINT, COMMUNICATION)

_ABORTED = int(StepFlag.ABORTED)
_EXPLICIT = int(StepFlag.EXPLICIT)
_TAIL = int(StepFlag.TAIL)
_GPU_TIMED = int(StepFlag.GPU_TIMED)
_QUEUE_WATCHED = int(StepFlag.QUEUE_WATCHED)
_QUEUE_DRY = int(StepFlag.QUEUE_DRY)
_LOADER_WATCHED = int(StepFlag.LOADER_WATCHED)
_LOADER_EMPTY = int(StepFlag.LOADER_EMPTY)
_LOSS_SEEN = int(StepFlag.LOSS_SEEN)
_NO_STEP = int(NO_STEP)
# Plain numbers: arithmetic on enum flags costs a microsecond each, in every step.

_BY_HAND = 0
"""Stands for the optimizer where the script has none: no object has this id."""

_UNCOUNTED = -(1 << 40)
"""Samples of a step with a batch that does not show how many it holds: less than any sum."""

_Totals = list[int]


class Role(Enum):
    """What a source of batches is for, as far as it has been seen."""

    TRAINING = "training"
    EVALUATION = "evaluation"


class AwaitedLoss:
    """A loss on a device whose value comes later: where it belongs, once its backward is noted."""

    __slots__ = ("record", "step")

    def __init__(self) -> None:
        self.record = self.step = 0


@dataclass(slots=True)
class GraphContents:
    """What of a training step a CUDA graph holds, seen while it was captured."""

    backwards: int = 0
    optimizers: set[int] = field(default_factory=set)
    optimizer_steps: int = 0

    @property
    def phase(self) -> int | None:
        """What a replay's time is charged to; `None` where nothing that we know is in it."""
        if self.backwards:
            return GRAPH  # with the forward pass before it: one launch cannot be told apart
        return OPTIMIZER if self.optimizers else None


class StepTracer:
    """The steps of one training process; fed with events, all from one thread.

    Every event's method takes what happened, the moment, and the mark, in this order.
    """

    __slots__ = (
        "_aborted",
        "_awaited",
        "_dry",
        "_empty",
        "_evaluated_at",
        "_explicit",
        "_explicit_depth",
        "_explicit_start",
        "_fetch_over",
        "_fetched",
        "_fetched_at",
        "_fetched_in_step",
        "_fetched_mark",
        "_frames",
        "_had_backward",
        "_had_forward",
        "_had_training_forward",
        "_local_gradients",
        "_loss",
        "_loss_after_optimizer",
        "_optimizer_end",
        "_paused_at",
        "_replaying",
        "_roles",
        "_rss",
        "_seen",
        "_snapshot",
        "_snapshot_spans",
        "_source",
        "_spans",
        "_start",
        "_start_mark",
        "_stepped",
        "_totals",
        "_usual_optimizers",
        "by_hand",
        "fetches",
        "finite_loss",
        "finite_step",
        "gpu",
        "looks",
        "on_failed_look",
        "on_loss",
        "records",
        "sink",
        "steps",
    )
    # More than thirty attributes: without slots Python would keep them in a slower place.

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.gpu: Timeline | None = None
        self.looks: list[Callable[[], None]] = []
        """What wants to be called after each step, as long as it wants to."""
        self.on_failed_look: Callable[[BaseException], None] = _raise
        """Called with what one of them raised, unless that is for the script."""
        self.on_loss: Callable[[float, int], None] | None = None
        """Called with a loss and its step: the first finite ones and all that are not finite."""
        self.forget()

    def forget(self) -> None:
        """Begin anew, as if nothing had been seen."""
        self.steps = 0
        self.records = 0
        """Records written: complete steps and others."""
        self.by_hand = False
        self.fetches = False
        self._empty: _Totals = [-1, -1, -1, -1, -1, 0, 0, 0, -1, 0, 0, -1, 0, 0, 0, -1, -1, 0]
        self._roles: dict[int, Role] = {}
        self._start: int | None = None
        self._start_mark: Any = None
        self._frames: list[list[Any]] = []
        self._totals = self._empty.copy()
        self._spans: list[Any] = []
        self._stepped: set[int] = set()
        self._usual_optimizers: set[int] = set()
        self._aborted = False
        self._dry: bool | None = None
        self.finite_step = 0
        """The last step whose loss is known to be finite; 0 where `on_loss` is to be called."""
        self.finite_loss = 0.0
        # What was looked at in this step, and not in every one: flags, memory.
        self._seen = 0
        self._rss = NOT_MEASURED
        # The loss of the first backward pass, or the first that is not finite; a loss since the
        # optimizer stepped may be the next step's.
        self._loss: float | None = None
        self._loss_after_optimizer: float | None = None
        # A loss that came from the device, and the record of its backward pass.
        self._awaited: tuple[float, int] | None = None
        # Where the last gradient of this rank's own was there, before it waited for the others'.
        self._local_gradients: tuple[int, Any, int] | None = None
        self._replaying = False
        # What came since the last fetch, and the way back to before it.
        self._source: int | None = None
        self._fetched_at = 0
        self._fetched_mark: Any = None
        self._snapshot = self._empty
        self._snapshot_spans = 0
        self._fetched = self._fetch_over = False
        self._fetched_in_step = False
        self._had_backward = False
        self._had_forward = False
        self._had_training_forward = False
        self._evaluated_at: int | None = None
        # Where the last optimizer step ended, in case the step turns out to have ended there.
        self._optimizer_end: tuple[int, Any, _Totals, int] | None = None
        # An explicit step that is open.
        self._explicit = False
        self._explicit_depth = 0
        self._explicit_start: tuple[int, Any, int, int] = (0, None, 0, 0)
        # Since when no cell of a notebook runs.
        self._paused_at: int | None = None

    # Phases: a stack, so that a phase inside another (a copy inside forward, a closure inside the
    # optimizer step) is charged once, to the inner one.

    def begin(self, phase: int, now: int, mark: Any) -> None:
        """A phase begins."""
        if self._start is None:
            if phase in _OUTSIDE_STEPS_TOO:
                return  # a model that moves to its device before training begins
            self._start, self._start_mark = now, mark
            self._fetched_at, self._fetched_mark = now, mark
        self._frames.append([phase, now, 0, mark])

    def end(self, phase: int, now: int, mark: Any) -> int:
        """The innermost phase of this name ends; returns its own duration."""
        frames = self._frames
        while frames:
            frame = frames.pop()
            if frame[0] != phase:
                continue  # left open by an exception that passed it
            total = now - frame[1]
            own: int = total - frame[2]
            outer = None
            if frames:
                frames[-1][2] += total
                outer = frames[-1][0]
            totals = self._totals
            if outer == CHECKPOINT:  # what a saver copies and waits for is part of saving
                totals[CHECKPOINT] += own
                return own
            totals[phase] = own if totals[phase] < 0 else totals[phase] + own
            if mark is not None and frame[3] is not None:
                self._spans.append((phase, frame[3], mark, outer))
            return own
        return 0

    def abort(self, phase: int, now: int, mark: Any) -> None:
        """An exception leaves a phase: its time counts, the step is not a complete one."""
        self.end(phase, now, mark)
        self._aborted = True

    def lose_track(self, is_half_written: bool, now: int, mark: Any) -> None:
        """A signal's handler raised in the middle of a hook: what is open will not be ended.

        Where that was inside this machine a step may be half written, and another begins here.
        """
        self._frames.clear()
        self._explicit_depth = 0
        if is_half_written and self._start is not None:
            self._open_next(now, mark)
        self._aborted = True

    def spend(self, what: tuple[int, int], now: int, mark: Any) -> None:
        """Time that ends now went to no phase: garbage collection, logging, compiling."""
        if self._start is None:
            return  # before the first step it is nobody's
        kind, duration = what
        self._totals[kind] += duration
        if self._frames:
            self._frames[-1][2] += duration

    def spend_waiting(self, what: tuple[int, int], now: int, mark: Any) -> None:
        """A wait for the device ends now; it stays in its phase, and is counted."""
        if self._start is None:
            return
        totals = self._totals
        totals[SYNC] += what[1]
        totals[SYNCS] += 1

    def spend_within(self, what: tuple[int, int], now: int, mark: Any) -> None:
        """Time that ends now, in whose phase it stays: collating."""
        if self._start is None:
            return
        kind, duration = what
        totals = self._totals
        totals[kind] = duration if totals[kind] < 0 else totals[kind] + duration

    # What is looked at now and then

    def see_loss(self, arrived: tuple[float, AwaitedLoss], now: int, mark: Any) -> None:
        """The value of a loss came from the device; its backward pass was noted before."""
        loss, awaited = arrived
        self._know_loss(loss, awaited.step)
        if self._awaited is None or _is_finite(self._awaited[0]):
            self._awaited = loss, awaited.record

    def _take_loss(self, loss: float | AwaitedLoss) -> None:
        """Gradients of this loss are asked for."""
        if isinstance(loss, AwaitedLoss):
            loss.record, loss.step = self.records, self.steps + 1
        elif self._optimizer_end is None:
            self._loss = loss if self._loss is None else _first_or_lost(self._loss, loss)
        else:
            self._loss_after_optimizer = _first_or_lost(self._loss_after_optimizer, loss)

    def _know_loss(self, loss: float, step: int) -> None:
        """Remember the last finite loss, and report what is worth a word."""
        if self.finite_step and _is_finite(loss):
            self.finite_step, self.finite_loss = step, loss
        elif self.on_loss is not None:
            self.on_loss(loss, step)

    def _end_loss(self) -> tuple[float, int, int]:
        """The loss that the record which ends now holds, its flags, and its lag in records."""
        loss, later = self._loss, self._loss_after_optimizer
        if later is not None:
            loss = _first_or_lost(loss, later)
        if loss is None:
            return self._end_awaited_loss()
        if self.finite_step and loss - loss == 0.0:  # as nearly always
            self.finite_step, self.finite_loss = self.steps + 1, loss
        else:
            self._know_loss(loss, self.steps + 1)
        return loss, _LOSS_SEEN, 0

    def _end_awaited_loss(self) -> tuple[float, int, int]:
        if self._awaited is None:
            return 0.0, 0, 0
        (loss, record), self._awaited = self._awaited, None
        lag = self.records - record
        return (loss, _LOSS_SEEN, lag) if lag <= MAX_LOSS_LAG else (0.0, 0, 0)

    def see_memory(self, rss_bytes: int, now: int, mark: Any) -> None:
        """How much memory the process holds."""
        self._rss = rss_bytes

    def see_loader(self, is_empty: bool, now: int, mark: Any) -> None:
        """Whether the loader's workers had no batch ready when one was asked for."""
        self._seen |= _LOADER_WATCHED | _LOADER_EMPTY if is_empty else _LOADER_WATCHED

    # Fetching

    def begin_fetch(self, source: int, now: int, mark: Any) -> None:
        """A batch is asked for from a source (a dataset, by identity)."""
        if self._frames:
            self._drop_stale_frames()
        going_on = (
            self._fetched and not self._fetch_over and source == self._source
        )  # workers started
        if not going_on and not self._frames and not self._explicit_depth:
            self._settle(source, now, mark)
            if self._fetched_at != now:
                self._provisional_from(now, mark)
        self._source = source
        self._fetched = True
        self.begin(INPUT, now, mark)

    @property
    def is_explicit(self) -> bool:
        """Whether the script bounds its steps itself: then no fetch ends one."""
        return self._explicit

    def resume_fetch(self, now: int) -> None:
        """The fetch goes on now: what we did since it began is not waiting for data."""
        if self._frames and self._frames[-1][0] == INPUT:
            self._frames[-1][1] = now

    def end_fetch(self, samples: int, now: int, mark: Any) -> None:
        """The batch is there."""
        self.end(INPUT, now, mark)
        self._fetched_in_step = self._fetch_over = True
        totals = self._totals
        if samples < 0:
            totals[SAMPLES] = _UNCOUNTED
        else:
            totals[SAMPLES] = samples if totals[SAMPLES] == -1 else totals[SAMPLES] + samples

    def end_epoch(self, source: int, now: int, mark: Any) -> None:
        """The source had no further batch."""
        self.end(INPUT, now, mark)
        self._fetch_over = True
        if self._roles.get(source) is Role.EVALUATION:
            self._had_forward = True  # what follows, up to the next fetch, concludes evaluation

    def _settle(self, source: int, now: int, mark: Any) -> None:
        """Decide what the time since the last fetch was: a step, evaluation, or neither yet."""
        if self._stepped and self._had_backward and not self._explicit:
            self._close(now, mark, 0)  # as nearly always
        elif self.steps == 0 and not self._stepped and not self._had_backward:
            self._forget_before(now, mark)
        elif self._was_evaluation(source):
            self._roles.setdefault(self._source or 0, Role.EVALUATION)
            self._take_as_evaluation(now, mark)
        elif self._stepped and not self._explicit:
            self._close(now, mark, 0)
        elif self._aborted and not self._explicit:
            self._close(now, mark, _ABORTED)

    def _was_evaluation(self, source: int) -> bool:
        if self._had_backward or not self._fetched or self._source is None:
            return False
        role = self._roles.get(self._source)
        if self._had_forward:
            return role is not Role.TRAINING or not self._had_training_forward
        return role is not Role.TRAINING and source == self._source

    def _forget_before(self, now: int, mark: Any) -> None:
        """Before the first backward nothing was training: the loop begins here."""
        self._start, self._start_mark = now, mark
        self._totals, self._spans = self._empty.copy(), []

    def _take_as_evaluation(self, now: int, mark: Any) -> None:
        """Everything since the last fetch was evaluation (checkpoints in it stay checkpoints)."""
        totals, before = self._totals, self._snapshot
        saved = totals[CHECKPOINT] - before[CHECKPOINT]
        evaluated = totals[EVALUATION] - before[EVALUATION]
        self._totals = before.copy()
        self._totals[CHECKPOINT] = totals[CHECKPOINT]
        self._totals[EVALUATION] += max(now - self._fetched_at - saved, evaluated)
        if self._fetched_mark is not None and mark is not None:
            del self._spans[self._snapshot_spans :]
            self._spans.append((EVALUATION, self._fetched_mark, mark, None))
        self._provisional_from(now, mark)

    def _provisional_from(self, now: int, mark: Any, before: _Totals | None = None) -> None:
        """What comes from here on may be taken back to `before`: to what there is by now."""
        self._fetched_at, self._fetched_mark = now, mark
        self._snapshot = self._totals.copy() if before is None else before
        self._snapshot_spans = len(self._spans)
        self._fetched = self._fetch_over = False
        self._had_backward = self._had_forward = self._had_training_forward = False
        self._evaluated_at = None

    def _drop_stale_frames(self) -> None:
        """An optimizer step that raised leaves its frame open: nothing says so but the next one."""
        if self._frames[0][0] == OPTIMIZER and not self._explicit_depth:
            self._frames.clear()
            self._aborted = True

    # Forward and backward

    def begin_forward(self, mode: int, now: int, mark: Any) -> None:
        """The model is called; the mode says whether it trains and whether gradients are kept."""
        if mode == TRAINING_WITH_GRADIENTS:
            if self._had_forward:
                self._have_training_forward(now, mark)
            self._had_training_forward = True
            self._evaluated_at = None
        self._had_forward = True
        if self._start is None:
            self.begin(FORWARD, now, mark)
        else:
            self._frames.append([FORWARD, now, 0, mark])

    def _have_training_forward(self, now: int, mark: Any) -> None:
        if not self._had_training_forward and self._had_forward and not self._frames:
            self._end_evaluation(now, mark)
        self._had_training_forward = True
        self._evaluated_at = None

    def end_forward(self, mode: int, now: int, mark: Any) -> None:
        """The model's call returned."""
        own = self.end(FORWARD, now, mark)
        if mode == EVALUATING and not self._frames and self._is_for_training():
            self._claim_evaluation(own, now)

    def _end_evaluation(self, now: int, mark: Any) -> None:
        """A training loop without fetches goes on after an evaluation with them."""
        if self._fetched and not self._had_backward and not self.trains(self._source):
            self._take_as_evaluation(now, mark)

    def trains(self, source: int | None) -> bool:
        """Whether a source is known to be for training."""
        return self._roles.get(source or 0) is Role.TRAINING

    def _is_for_training(self) -> bool:
        """Whether what came since the last fetch is known to be a step's, not an evaluation's."""
        return self._had_backward or not self._fetched or self.trains(self._source)

    def _claim_evaluation(self, own: int, now: int) -> None:
        """A forward pass for evaluation without a fetch of its own, and the gap since the last."""
        since = now - own if self._evaluated_at is None else self._evaluated_at
        self._totals[FORWARD] -= own
        self._totals[EVALUATION] += now - since
        if self._spans and self._spans[-1][0] == FORWARD:
            _, start, end, _ = self._spans.pop()
            self._spans.append((EVALUATION, start, end, None))
        self._evaluated_at = now

    def begin_backward(self, loss: float | AwaitedLoss | None, now: int, mark: Any) -> None:
        """Gradients are asked for, of this loss if it is known."""
        if self.by_hand and self._stepped and not self._fetched_in_step:
            self._close_at_optimizer_end()
        self._had_backward = True
        self._evaluated_at = None
        if loss is not None:
            if type(loss) is float and self._loss is None and self._optimizer_end is None:
                self._loss = loss  # as nearly always
            else:
                self._take_loss(loss)
        self._totals[BACKWARDS] += 1
        if self._start is None:
            self.begin(BACKWARD, now, mark)
        else:
            self._frames.append([BACKWARD, now, 0, mark])

    def have_local_gradients(self, _: None, now: int, mark: Any) -> None:
        """This rank's own gradients are there; what is left of backward waits for the others'.

        Of several such moments in one backward pass the last one counts.
        """
        if self._frames and self._frames[-1][0] == BACKWARD:
            self._local_gradients = (now, mark, self._frames[-1][2])

    def _charge_waiting(self, moment: tuple[int, Any, int], now: int, mark: Any) -> None:
        """Since its last local gradient backward has waited; what was charged since stays so."""
        began, began_mark, charged = moment
        backward = self._frames[-1] if self._frames else [COMMUNICATION]
        if backward[0] != BACKWARD or began < backward[1]:
            return  # the moment is another pass's: one around this, or one that failed
        self._local_gradients = None
        self._frames.append([COMMUNICATION, began, backward[2] - charged, began_mark])
        backward[2] = charged
        self.end(COMMUNICATION, now, mark)

    def end_backward(self, _: None, now: int, mark: Any) -> None:
        """Gradients are there."""
        if self._local_gradients is not None:
            self._charge_waiting(self._local_gradients, now, mark)
        self.end(BACKWARD, now, mark)
        if self.by_hand and not self._frames:
            self._have_stepped_by_hand(now, mark)

    def _have_stepped_by_hand(self, now: int, mark: Any) -> None:
        """Without any optimizer: each backward pass stands for a step, which ends later."""
        self._stepped.add(_BY_HAND)
        self._totals[STEPS] += 1
        if self._source is not None:
            self._roles[self._source] = Role.TRAINING
        self._remember_optimizer_end(now, mark)

    # Optimizer

    def begin_optimizer(self, identity: int, now: int, mark: Any) -> None:
        """An optimizer steps."""
        if self._frames and self._frames[-1][0] == OPTIMIZER:
            self._drop_stale_frames()
        if identity in self._stepped and not self._explicit and not self._frames:
            self._close_at_optimizer_end()
        if self._start is None:
            self.begin(OPTIMIZER, now, mark)
        else:
            self._frames.append([OPTIMIZER, now, 0, mark])

    def end_optimizer(self, what: tuple[int, bool | None], now: int, mark: Any) -> None:
        """The optimizer has stepped; whether the GPU's queue had run dry by then comes with it."""
        identity, self._dry = what
        self.end(OPTIMIZER, now, mark)
        self._stepped.add(identity)
        self._have_stepped(1, now, mark)

    def change_parameters(self, what: tuple[Collection[int], int], now: int, mark: Any) -> None:
        """Since the last backward pass these optimizers, which no hook sees, took so many steps."""
        optimizers, steps = what
        if not self._explicit and not self._frames and not self._stepped.isdisjoint(optimizers):
            self._close_at_optimizer_end()
        self._stepped.update(optimizers)
        self._have_stepped(steps, now, mark)

    def _have_stepped(self, steps: int, now: int, mark: Any) -> None:
        """Optimizers have stepped; the step ends here, or goes on to the next fetch."""
        self._totals[STEPS] += steps
        if self._source is not None and self._had_backward:
            self._roles[self._source] = Role.TRAINING
        if self._frames:
            return  # parameter by parameter inside a backward pass: the step goes on
        self._aborted = False
        if self._explicit:
            return
        self._remember_optimizer_end(now, mark)
        if self._fetched_in_step:
            return
        if self._usual_optimizers and self._usual_optimizers <= self._stepped:
            self._close_at_optimizer_end()

    def _remember_optimizer_end(self, now: int, mark: Any) -> None:
        self._aborted = False
        self._optimizer_end = (now, mark, self._totals.copy(), len(self._spans))
        if self._loss_after_optimizer is not None:
            self._loss = _first_or_lost(self._loss, self._loss_after_optimizer)
            self._loss_after_optimizer = None

    # CUDA graphs

    def begin_replay(self, held: GraphContents, now: int, mark: Any) -> None:
        """A CUDA graph that holds a part of the step, or all of it, is launched."""
        self._replaying = not self._frames
        if not self._replaying:
            return  # a part of the phase that it is launched in
        if not self._explicit and self._ends_step_before(held):
            self._close_at_optimizer_end()
        if held.backwards:
            self._have_training_forward(now, mark)
            self._had_forward = self._had_backward = True
            self._totals[BACKWARDS] += held.backwards
        if held.phase is not None:
            self.begin(held.phase, now, mark)

    def _ends_step_before(self, held: GraphContents) -> bool:
        """Whether what a graph holds has happened in this step already, so that it is another."""
        if self.by_hand:
            return bool(held.backwards and self._stepped and not self._fetched_in_step)
        return bool(held.optimizers & self._stepped)

    def end_replay(self, held: GraphContents, now: int, mark: Any) -> None:
        """The launch returned; on the GPU's timeline the work ends at the mark."""
        if not self._replaying:
            return
        self._replaying = False
        if held.phase is not None:
            self.end(held.phase, now, mark)
        if held.optimizers:
            self._stepped |= held.optimizers
            self._have_stepped(held.optimizer_steps, now, mark)
        elif self.by_hand and held.backwards:
            self._have_stepped_by_hand(now, mark)

    def abort_replay(self, held: GraphContents, now: int, mark: Any) -> None:
        """An exception leaves the launch."""
        if self._replaying and held.phase is not None:
            self.abort(held.phase, now, mark)
        self._replaying, self._aborted = False, True

    # Notebooks

    def pause(self, _: None, now: int, mark: Any) -> None:
        """A cell of a notebook ends: until the next one begins no time is any step's."""
        self._paused_at = now
        if self._start is None or (self._had_backward and not self._stepped):
            return  # a step that goes on in another cell stays open
        self.finish(None, now, mark)
        self._open_next(now, None)
        self._start = None

    def resume(self, _: None, now: int, mark: Any) -> None:
        """A cell begins: a step that was left open goes on, as if no time had passed."""
        paused_at, self._paused_at = self._paused_at, None
        if paused_at is None or self._start is None:
            return
        idle = now - paused_at
        self._frames.clear()
        self._start += idle
        self._fetched_at += idle
        if self._evaluated_at is not None:
            self._evaluated_at += idle
        # On the GPU's timeline the pause cannot be taken out.
        self._start_mark = self._fetched_mark = None
        self._spans = []
        self._snapshot_spans = 0

    # Explicit steps

    def enter_step(self, _: None, now: int, mark: Any) -> None:
        """`with trace_step(model)` begins."""
        self._explicit_depth += 1
        if self._explicit_depth > 1:
            return
        self._frames.clear()
        if self._start is None:
            self._start, self._start_mark = now, mark
        elif self._had_forward:
            self._end_evaluation(now, mark)
        if self._source is not None:
            self._roles[self._source] = Role.TRAINING
        self._explicit = True
        self._explicit_start = (now, mark, self._outside_body(), len(self._spans))
        self._provisional_from(now, mark)

    def exit_step(self, aborted: bool, now: int, mark: Any) -> None:
        """`with trace_step(model)` ends."""
        if not self._explicit_depth:
            return  # it began in the process that this one was forked from, or track was lost
        self._explicit_depth -= 1
        if not self._explicit_depth:
            self._frames.clear()
            self._close(now, mark, _EXPLICIT | _ABORTED if aborted else _EXPLICIT)

    def _outside_body(self) -> int:
        totals = self._totals
        waited = totals[INPUT]
        return (waited if waited > 0 else 0) + totals[EVALUATION] + totals[CHECKPOINT]

    # Closing

    def finish(self, _: None, now: int, mark: Any) -> None:
        """The process ends: close the step that is done, keep the rest as the tail."""
        if self._start is None:
            return
        self._frames.clear()
        if self._usual_optimizers <= self._stepped and not self._explicit:
            self._close_at_optimizer_end()  # nothing, where no optimizer has stepped
        if self.steps == 0:
            return
        if self._source is not None and self._was_evaluation(self._source):
            self._take_as_evaluation(now, mark)
        self._close(now, mark, _ABORTED if self._aborted else _TAIL)

    def _close_at_optimizer_end(self) -> None:
        """The step ended where its last optimizer did; what came after belongs to the next."""
        if self._optimizer_end is None:
            return
        end, mark, totals, spans = self._optimizer_end
        later, later_spans = self._totals, self._spans[spans:]
        backward, forward = self._had_backward, self._had_training_forward
        later_loss, self._loss_after_optimizer = self._loss_after_optimizer, None
        self._totals, self._spans = totals, self._spans[:spans]
        self._usual_optimizers = self._stepped.copy()
        self._close(end, mark, 0)
        if later == totals:
            return
        self._spans, self._loss = later_spans, later_loss
        self._totals = [
            empty if after == before else after - max(before, 0)
            for after, before, empty in zip(later, totals, self._empty, strict=True)
        ]
        self._had_backward, self._had_training_forward = backward, forward

    def _close(self, end: int, mark: Any, flags: int) -> None:
        """Write the step that ends here and open the next."""
        totals = self._totals
        start = end if self._start is None else self._start
        body_start, outside = start, 0
        if flags & _EXPLICIT:
            body_start, _, outside, _ = self._explicit_start
        gpu, (loss, seen, loss_lag) = self.gpu, self._end_loss()
        seen |= self._seen
        number = self.sink.write_step(
            start,
            end - start,
            totals[INPUT],
            end - body_start - (self._outside_body() - outside),
            totals[EVALUATION],
            totals[CHECKPOINT],
            totals[H2D],
            totals[FORWARD],
            totals[BACKWARD],
            totals[OPTIMIZER],
            totals[COMMUNICATION],
            totals[GC],
            totals[GRAPH],
            *(_NO_GPU if gpu is None else (*_NO_GPU_TIMES, *gpu.memory())),
            self._rss,
            totals[SYNC],
            totals[LOGGING],
            totals[COMPILE],
            totals[COLLATE],
            loss,
            totals[SAMPLES] if totals[SAMPLES] >= 0 else NOT_MEASURED,
            totals[BACKWARDS],
            flags | seen if gpu is None else flags | seen | self._gpu_flags(mark),
            totals[STEPS],
            totals[SYNCS] if totals[SYNCS] < MAX_SYNCS else MAX_SYNCS,
            loss_lag,
        )
        if gpu is not None:
            gpu.measure_later(number, self._bounds(mark, flags), self._spans)
        self.records += 1
        if not flags & _NO_STEP:
            self.steps += 1
        self._open_next(end, mark)
        if self.looks:
            for look in tuple(self.looks):
                try:
                    look()
                except BaseException as error:  # counted; the other looks, and the step, are done
                    if is_interruption(error):
                        raise
                    self.on_failed_look(error)

    def _gpu_flags(self, mark: Any) -> int:
        flags = _GPU_TIMED if self._is_timed(mark) else 0
        if self._dry is not None:
            flags |= _QUEUE_DRY | _QUEUE_WATCHED if self._dry else _QUEUE_WATCHED
        return flags

    def _is_timed(self, mark: Any) -> bool:
        """Whether the phases were marked too: a step between two timed ones has only its ends."""
        timed = self.gpu is not None and self.gpu.is_timing()
        return timed and mark is not None and self._start_mark is not None

    def _bounds(self, mark: Any, flags: int) -> Bounds:
        first = self._start_mark if self._is_timed(mark) else None
        if flags & _EXPLICIT:
            _, began, _, spans_before = self._explicit_start
            return Bounds(first, None if first is None else began, mark, spans_before, self.fetches)
        return Bounds(first, first, mark, 0, self.fetches)

    def _open_next(self, end: int, mark: Any) -> None:
        if self._fetched_in_step and not self.fetches:
            self.fetches = True
            self._empty[INPUT] = 0  # fetches are seen: a step without one waited for none
        if self._totals[SAMPLES] > 0:
            self._empty[SAMPLES] = 0  # it fetched none
        if self._totals[COMMUNICATION] >= 0:
            self._empty[COMMUNICATION] = 0  # the same with collectives
        self._start, self._start_mark = end, mark
        self._totals, self._spans = self._empty.copy(), []
        self._seen, self._rss = 0, NOT_MEASURED
        self._loss = self._loss_after_optimizer = None
        self._stepped.clear()
        self._optimizer_end = self._dry = None
        self._aborted = self._fetched_in_step = False
        self._provisional_from(end, mark, self._empty)


def _first_or_lost(first: float | None, later: float) -> float:
    """What stands for several losses of one step: the first, or the first that is not finite.

    The first, because where a step has several losses (a GAN) its values are those of one of them.
    """
    return later if first is None or (not _is_finite(later) and _is_finite(first)) else first


def _raise(error: BaseException) -> None:
    raise error


def _is_finite(value: float) -> bool:
    return value - value == 0.0


_NO_GPU_TIMES = (NOT_MEASURED,) * len(GPU_FIELDS)
_NO_GPU = (*_NO_GPU_TIMES, NOT_MEASURED, NOT_MEASURED)
"""The GPU's times and memory of a step without one."""
