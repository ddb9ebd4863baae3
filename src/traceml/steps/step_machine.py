"""Turns the events of one training process (fetch, copy, forward, backward, optimizer) into steps.

Each event comes with its moment: a time on the host's clock and, where there is one, a mark on the
GPU's timeline. The machine reads no clock and no file: the agent runs it over a ring as training
goes on, `traceml recover` later, and tests over events that they made up.

Time is accounted for completely. A step begins where the one before it ended, so the walls of all
rows add up to the loop's wall time. Inside, `wall = input + body + between`.

Where a step ends:
- an explicit `trace_step` ends where the user says;
- otherwise at the next fetch once an optimizer has stepped;
- where no fetch is seen, at the end of the optimizer step that completes the set of optimizers
  (a GAN has two), and at the latest when an optimizer steps a second time;
- a script without any optimizer is marked by its backward passes instead;
- an optimizer that no hook can see (it is compiled) is known by the parameters that it changes;
- a replay of a CUDA graph that holds an optimizer step is one.

What belongs to no step: batches that are fetched and never trained on (evaluation) and checkpoints
are `between`. An evaluation ends with its last forward pass, when its source has no further batch,
or with a region that is named as one, whichever is the last; what follows it, up to the next fetch,
is `between` as well, and nobody's. Whether a batch was for evaluation is known only when the next
one is fetched, so everything since the last fetch is provisional: it can be taken back to the
snapshot made there. Without fetches, a forward pass in evaluation mode is one of an evaluation; if
it keeps gradients, only once the next training pass comes, or the next fetch, and no backward pass
has come before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from traceml.model.record_layout import (
    GPU_FIELDS,
    MAX_SYNCS,
    NO_STEP,
    NOT_MEASURED,
    StepFlag,
)
from traceml.steps import events
from traceml.steps.events import (
    AFTER_EVALUATION,
    ASKED_BY_GRAD,
    BACKWARD,
    BACKWARDS,
    BODY,
    CHECKPOINT,
    CLOSURE,
    COLLATE,
    COMMUNICATION,
    COMPILE,
    ELEMENTS,
    EVALUATION,
    FORWARD,
    GC,
    GRAPH,
    H2D,
    INPUT,
    LOGGING,
    MAY_BE_UNMEASURED,
    OPTIMIZER,
    RECEIVED,
    SAMPLES,
    STEPS,
    SYNC,
    SYNCS,
    TOTALS,
    as_float,
    split_fetched,
)
from traceml.steps.explicit_steps import ExplicitStepEvents
from traceml.steps.graph_replays import GraphReplays
from traceml.steps.losses import StepLosses, first_or_lost
from traceml.steps.open_step import OpenStep
from traceml.steps.rows import Bounds, Rows

EVALUATING, EVALUATING_WITH_GRADIENTS, TRAINING_WITH_GRADIENTS = 0, 2, 3
"""A forward pass's mode: 1 if the model is in training mode, plus 2 if gradients are kept."""
MAX_SOURCES = 256
"""Loaders whose purpose is remembered: a script may make one per epoch."""
MAX_UNDECIDED = 4_096
"""Forward passes in a row of which it is not known yet whether they train."""
MAX_CLOSINGS = 16_384
"""Steps of which it is remembered at which event they ended."""

_OUTSIDE_STEPS_TOO = (H2D, CHECKPOINT, COMMUNICATION, CLOSURE)

_ABORTED = int(StepFlag.ABORTED)
_EXPLICIT = int(StepFlag.EXPLICIT)
_TAIL = int(StepFlag.TAIL)
_GPU_TIMED = int(StepFlag.GPU_TIMED)
_QUEUE_WATCHED = int(StepFlag.QUEUE_WATCHED)
_QUEUE_DRY = int(StepFlag.QUEUE_DRY)
_LOADER_WATCHED = int(StepFlag.LOADER_WATCHED)
_LOADER_EMPTY = int(StepFlag.LOADER_EMPTY)
_NO_STEP = int(NO_STEP)
# Plain numbers: arithmetic on enum flags costs a microsecond each, in every step.

_BY_HAND = 0
"""Stands for the optimizer where the script has none: no optimizer has this number."""

_UNCOUNTED = -(1 << 40)
"""Samples of a step with a batch that does not show how many it holds: less than any sum."""

_FRAME_LENGTH = 4
"""Of an open phase, as long as no backward pass began in it."""

_body_of = itemgetter(*BODY)
_NO_GPU_TIMES = (NOT_MEASURED,) * len(GPU_FIELDS)

Handler = Callable[[int, int, int, int], object]
"""Takes an event's argument, its moment, its mark (0: none) and its flags."""


class StepMachine:
    """The steps of one training process; fed with its events in order (see `handlers`)."""

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        """How many complete steps are asked for; 0 for all."""
        self.graphs = GraphReplays(self)
        self.explicit = ExplicitStepEvents(self)
        self.handlers = _handlers(self)
        """By an event's kind."""
        self.is_timed = 0
        """Whether the event that is being handled says that every phase is marked on the GPU."""
        self.event = 0
        """The number of the event that is being handled, plus one."""
        self.steps = 0
        """Complete steps so far, lost ones among them."""
        self.records = 0
        """Rows so far: complete steps and others, those that still wait for the GPU among them."""
        self.rows = Rows()
        self.losses = StepLosses()
        self.closings: deque[int] = deque(maxlen=MAX_CLOSINGS)
        """The number of the event, plus one, at which each of the last steps was complete."""
        self.ends = 0
        """How many ends of steps the process had counted at the last of them."""
        self.has_gap = False
        """Whether events were lost since then."""
        self.collectives: int | None = 0
        """Calls of collectives that were begun since the last step; `None` where events were
        lost since then."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Know of no step that is open, and of nothing that steps usually do."""
        self.by_hand = False
        self.fetches = False
        self.empty = [0] * TOTALS
        """The totals that a step begins with."""
        for place in MAY_BE_UNMEASURED:
            self.empty[place] = NOT_MEASURED
        self.roles: dict[int, bool] = {}
        """Whether a source of batches is for training (or for evaluation), as far as is known."""
        self.usual_optimizers: set[int] = set()
        self.frames: list[list[int]] = []
        """The phases that are open: phase, beginning, time charged to others inside it, mark; and
        of an optimizer's step in which a backward pass began, when its first such closure was
        called."""
        self.source: int | None = None
        """Where the last batch came from."""
        self.step = OpenStep(None, 0, self.empty)
        self.local_gradients: tuple[int, int, int] | None = None
        """Where the rank's own last gradient was there, before it waited for the others'."""
        self.backward_end: tuple[int, int] = (0, 0)
        self.changed: set[int] = set()
        """Optimizers that no hook sees and that are being told to have stepped."""
        self.graphs.reset()
        self.explicit.reset()
        self.paused_at: int | None = None
        """Since when no cell of a notebook runs."""

    def steps_at(self, events_before: int) -> int:
        """How many complete steps there were when so many events had been noted."""
        later = len(self.closings) - bisect_right(self.closings, events_before)
        return self.steps - later

    @property
    def is_done(self) -> bool:
        """Whether there are as many steps as are asked for."""
        return 0 < self.limit <= self.steps

    def end_if_done(self) -> None:
        """Make no further step once there are as many as are asked for."""
        if self.is_done:
            self.handlers = _handlers_after_limit(self)

    # Gaps

    def lose_events(self, now: int) -> None:
        """Events were overwritten before anybody read them; the next one is of this moment.

        What is open will not be ended, and never is one step's beginning joined to another's end;
        a step whose optimizer has stepped is complete.
        """
        if self.step.optimizer_end is not None and not self.explicit.is_used:
            self.close_at_optimizer_end()
        self.frames.clear()
        self.changed.clear()
        self.explicit.depth = 0
        self.local_gradients = None
        self.graphs.is_replaying = False
        self.has_gap = True
        self.collectives = None
        if self.step.start is not None:
            self._open_next(max(now, self.step.start), 0)
            self.step.is_torn = self.step.aborted = True

    def count_end(self, count: int) -> None:
        """The process notes an end of a step, its `count`-th: after a gap that tells how many
        were lost."""
        if self.has_gap:
            self.has_gap = False
            per_step = 1 if self.explicit.is_used else max(1, len(self.usual_optimizers))
            lost = max(0, count - self.ends - 1) // per_step
            self.records += lost
            self.steps += lost
        self.ends = count

    # Phases: a stack, so that a phase inside another (a copy inside forward, a closure inside the
    # optimizer step) is charged once, to the inner one.

    def begin(self, phase: int, now: int, mark: int, flags: int = 0) -> None:
        """A phase begins."""
        if phase == COMMUNICATION and self.collectives is not None:
            self.collectives += 1
        step = self.step
        if step.start is None:
            if phase in _OUTSIDE_STEPS_TOO:
                return  # a model that moves to its device before training begins
            step.start, step.start_mark = now, mark
            step.fetched_at, step.fetched_mark = now, mark
        self.frames.append([phase, now, 0, mark])

    def end(self, phase: int, now: int, mark: int, flags: int = 0) -> int:
        """The innermost phase of this name ends; returns its own duration."""
        frames = self.frames
        while frames:
            frame = frames.pop()
            if frame[0] != phase:
                continue  # left open by an exception that passed it
            total = now - frame[1]
            own = total - frame[2]
            outer = None
            if frames:
                frames[-1][2] += total
                outer = frames[-1][0]
            totals = self.step.totals
            if outer == CHECKPOINT:  # what a saver copies and waits for is part of saving
                totals[CHECKPOINT] += own
                return own
            totals[phase] = own if totals[phase] < 0 else totals[phase] + own
            if mark and frame[3]:
                self.step.spans.append((phase, frame[3], mark, outer))
                self.rows.idle.see_mark(frame[3], frame[1])
                self.rows.idle.see_mark(mark, now)
            return own
        return 0

    def abort(self, phase: int, now: int, mark: int, flags: int = 0) -> None:
        """An exception leaves a phase: its time counts, the step is not a complete one."""
        self.end(phase, now, mark)
        self.step.aborted = True

    def lose_track(self, _: int, now: int, mark: int, flags: int) -> None:
        """A signal's handler raised in the middle of a hook: what is open will not be ended."""
        self.frames.clear()
        self.explicit.depth = 0
        self.step.aborted = True

    def spend(self, duration: int, now: int, mark: int, flags: int) -> None:
        """Time that ends now went to no phase: garbage collection, logging, compiling."""
        cause = events.cause_of(flags)
        if self.step.start is None or cause >= TOTALS:
            return  # before the first step it is nobody's
        self.step.totals[cause] += duration
        if self.frames:
            self.frames[-1][2] += duration
        self.rows.idle.spend(self._latest_mark(), cause, duration)

    def spend_waiting(self, duration: int, now: int, mark: int, flags: int) -> None:
        """A wait for the device ends now; it stays in its phase, and is counted."""
        if self.step.start is not None:
            totals = self.step.totals
            totals[SYNC] += duration
            totals[SYNCS] += 1
            self.rows.idle.wait(self._latest_mark(), duration, now)

    def _latest_mark(self) -> int:
        """The last mark that was put in this step; 0 where none was."""
        step = self.step
        begun = self.frames[-1][3] if self.frames else 0
        ended = step.spans[-1][2] if step.spans else 0
        entered = self.explicit.start[1] if self.explicit.depth else 0
        return max(step.start_mark, begun, ended, entered)

    def spend_within(self, duration: int, now: int, mark: int, flags: int) -> None:
        """Time that ends now, in whose phase it stays: collating."""
        cause = events.cause_of(flags)
        if self.step.start is not None and cause < TOTALS:
            totals = self.step.totals
            totals[cause] = duration if totals[cause] < 0 else totals[cause] + duration

    # What is looked at now and then

    def see_loss(self, value: int, now: int, number: int, flags: int) -> None:
        """The value of a loss came from the device; its backward pass was noted before."""
        self.losses.arrive(number, as_float(value))

    def see_memory(self, rss_bytes: int, now: int, mark: int, flags: int) -> None:
        """How much memory the process holds."""
        self.step.rss = rss_bytes

    def see_allocated(self, allocated_bytes: int, now: int, mark: int, flags: int) -> None:
        """How much memory is allocated on the GPU."""
        self.step.allocated = allocated_bytes

    def see_reserved(self, reserved_bytes: int, now: int, mark: int, flags: int) -> None:
        """How much memory is reserved on the GPU."""
        self.step.reserved = reserved_bytes

    def see_loader(self, source: int, now: int, mark: int, flags: int) -> None:
        """Whether a loader's workers had no batch ready when one was asked for."""
        if self.trains(source):
            is_empty = flags & events.EMPTY
            self.step.seen |= _LOADER_WATCHED | _LOADER_EMPTY if is_empty else _LOADER_WATCHED

    # Fetching

    def begin_fetch(self, source: int, now: int, mark: int, flags: int) -> None:
        """A batch is asked for from a source."""
        if self.frames and not any(frame[0] == CLOSURE for frame in self.frames):
            self._drop_stale_frames()  # a closure that fetches a batch goes on
        step = self.step
        is_going_on = step.fetched and not step.fetch_over and source == self.source
        if not is_going_on and not self.frames and not self.explicit.depth:  # else workers started
            self._settle(source, now, mark)
            step = self.step
            if step.fetched_at != now:
                if step.had_backward or self.explicit.is_used:
                    self.decide_passes(is_training=False)
                step.make_provisional(now, mark, step.totals.copy())
        self.source = source
        step.fetched = True
        self.begin(INPUT, now, mark)

    def end_fetch(self, contents: int, now: int, mark: int, flags: int) -> None:
        """The batch is there."""
        self.end(INPUT, now, mark)
        step = self.step
        step.fetched_in_step = step.fetch_over = True
        samples, elements = split_fetched(contents)
        _add_counted(step.totals, SAMPLES, samples)
        _add_counted(step.totals, ELEMENTS, elements)

    def receive(self, elements: int, now: int, mark: int, flags: int) -> None:
        """Other ranks have sent their parts of a tensor."""
        _add_counted(self.step.totals, RECEIVED, elements)

    def end_epoch(self, source: int, now: int, mark: int, flags: int) -> None:
        """The source had no further batch."""
        self.end(INPUT, now, mark)
        step = self.step
        step.fetch_over = step.is_exhausted = True
        step.may_end_evaluation(now)
        if self.roles.get(source) is False:
            step.had_forward = True  # this ends the evaluation

    def _settle(self, source: int, now: int, mark: int) -> None:
        """Decide what the time since the last fetch was: a step, evaluation, or neither yet."""
        step = self.step
        if step.stepped and step.had_backward and not self.explicit.is_used:
            self.decide_passes(is_training=False)
            self.close(now, mark, 0)  # as nearly always
        elif self.steps == 0 and not step.stepped and not step.had_backward:
            self._forget_before(now, mark)
        elif self._was_evaluation(source):
            self.set_role(self.source or 0, self.roles.get(self.source or 0, False))
            self._take_as_evaluation(now, mark, source == self.source and not step.is_exhausted)
        elif step.stepped and not self.explicit.is_used:
            self.close(now, mark, 0)
        elif step.aborted and not self.explicit.is_used:
            self.close(now, mark, _ABORTED)

    def _was_evaluation(self, source: int) -> bool:
        step = self.step
        if step.had_backward or not step.fetched or self.source is None:
            return False
        trains = self.trains(self.source)
        if step.had_forward:
            return not trains or not step.had_training_forward
        return not trains and source == self.source

    def _forget_before(self, now: int, mark: int) -> None:
        """Before the first backward nothing was training: the loop begins here."""
        step = self.step
        step.start, step.start_mark = now, mark
        step.totals, step.spans = self.empty.copy(), []

    def _take_as_evaluation(self, now: int, mark: int, goes_on: bool = False) -> None:
        """Counts the time since the last fetch as evaluation; checkpoints in it stay checkpoints.

        Unless the evaluation goes on, the time after its last forward pass or batch does not count
        as evaluation, but as what follows one.
        """
        step = self.step
        totals, before = step.totals, step.snapshot
        lasted = now - step.fetched_at - (totals[CHECKPOINT] - before[CHECKPOINT])
        after = 0
        if not goes_on and step.evaluation_end is not None:
            end, saved, waited = step.evaluation_end
            # Who waits for the device waits for the work of the evaluation that is still queued.
            after = now - end - (totals[CHECKPOINT] - saved) - (totals[SYNC] - waited)
            after = max(0, min(after, lasted - (totals[EVALUATION] - before[EVALUATION])))
        step.totals = before.copy()
        step.totals[CHECKPOINT] = totals[CHECKPOINT]
        step.totals[EVALUATION] += max(lasted - after, totals[EVALUATION] - before[EVALUATION])
        step.totals[AFTER_EVALUATION] += after
        if step.fetched_mark and mark:  # on the GPU's timeline neither is a step's
            del step.spans[step.snapshot_spans :]
            step.spans.append((EVALUATION, step.fetched_mark, mark, None))
        step.make_provisional(now, mark, step.totals.copy())

    def _drop_stale_frames(self) -> None:
        """An optimizer step that raised leaves its frame open: nothing says so but the next one."""
        if self.frames[0][0] == OPTIMIZER and not self.explicit.depth:
            self.frames.clear()
            self.step.aborted = True

    # Forward and backward

    def begin_forward(self, mode: int, now: int, mark: int, flags: int) -> None:
        """The model is called; the mode says whether it trains and whether gradients are kept."""
        step = self.step
        if mode == TRAINING_WITH_GRADIENTS:
            self.decide_passes(is_training=False)
            if step.had_forward:
                self.have_training_forward(now, mark)
            step.had_training_forward = True
            step.evaluated_at = None
        step.had_forward = True
        if step.start is None:
            self.begin(FORWARD, now, mark)
        else:
            self.frames.append([FORWARD, now, 0, mark])

    def have_training_forward(self, now: int, mark: int) -> None:
        """A forward pass for training begins: what came before it since the fetch was none."""
        step = self.step
        if not step.had_training_forward and step.had_forward and not self.frames:
            self.end_evaluation(now, mark)
        step.had_training_forward = True
        step.evaluated_at = None

    def end_forward(self, mode: int, now: int, mark: int, flags: int) -> None:
        """The model's call returned."""
        own = self.end(FORWARD, now, mark)
        if self.frames:
            return
        self.step.may_end_evaluation(now)
        if mode not in (EVALUATING, EVALUATING_WITH_GRADIENTS) or not self._is_for_training():
            return
        step, place = self.step, len(self.step.spans) - 1
        keeps_gradients = mode == EVALUATING_WITH_GRADIENTS
        if not keeps_gradients and not step.undecided:
            self._claim_evaluation(own, now, place)
        elif len(step.undecided) < MAX_UNDECIDED:
            step.undecided.append((own, now, place, keeps_gradients))

    def end_evaluation(self, now: int, mark: int) -> None:
        """A training loop without fetches goes on after an evaluation with them."""
        step = self.step
        if step.fetched and not step.had_backward and not self.trains(self.source):
            self._take_as_evaluation(now, mark)

    def leave_evaluation(self, _: int, now: int, mark: int, flags: int) -> None:
        """Ends a region that the script names as an evaluation: what it does after the last batch
        (metrics) is part of the evaluation."""
        if not self.frames and self.step.evaluation_end is not None:
            self.step.may_end_evaluation(now)

    def trains(self, source: int | None) -> bool:
        """Whether a source is known to be for training."""
        return self.roles.get(source or 0, False)

    def set_role(self, source: int, is_for_training: bool) -> None:
        """Remember whether a source's batches are for training, or for evaluation."""
        self.roles[source] = is_for_training
        if len(self.roles) > MAX_SOURCES:
            del self.roles[next(iter(self.roles))]

    def _is_for_training(self) -> bool:
        """Whether what came since the last fetch is known to be a step's, not an evaluation's."""
        return self.step.had_backward or not self.step.fetched or self.trains(self.source)

    def decide_passes(self, is_training: bool) -> None:
        """Counts the undecided forward passes as evaluation; where a backward pass has come for
        those that keep gradients (`is_training`), only the others."""
        step = self.step
        if not step.undecided:
            return
        passes, step.undecided = step.undecided, []
        spans = len(step.spans)
        for own, ended, place, keeps_gradients in passes:
            if is_training and keeps_gradients:
                step.evaluated_at = None
            else:
                # A span that is joined with the one before it moves those behind it.
                self._claim_evaluation(own, ended, place - spans + len(step.spans))

    def _claim_evaluation(self, own: int, now: int, place: int) -> None:
        """A forward pass for evaluation without a fetch of its own, and the gap since the last."""
        step = self.step
        since = now - own if step.evaluated_at is None else step.evaluated_at
        step.totals[FORWARD] -= own
        step.totals[EVALUATION] += now - since
        spans = step.spans
        if place >= 0 and spans[place][0] == FORWARD:
            _, first, last, _ = spans[place]
            if step.evaluated_at is not None and place and spans[place - 1][0] == EVALUATION:
                first = spans[place - 1][1]  # the gap is part of it on the GPU's clock, too
                del spans[place]
                place -= 1
            spans[place] = (EVALUATION, first, last, None)
        step.evaluated_at = now

    def begin_backward(self, loss: int, now: int, mark: int, flags: int) -> None:
        """Gradients are asked for, of this loss if it is known."""
        self.decide_passes(is_training=True)
        if self.by_hand and self.step.stepped and not self.step.fetched_in_step:
            self.close_at_optimizer_end()
        step = self.step
        step.had_backward = True
        step.evaluated_at = None
        if flags & events.KNOWN_LOSS:
            self.losses.take(as_float(loss), step)
        elif flags & events.AWAITED_LOSS:
            is_provisional = step.optimizer_end is not None
            self.losses.wait_for(loss, self.records, self.steps + 1, is_provisional)
        if not flags & ASKED_BY_GRAD and (not self.frames or self._is_of_micro_batch(now)):
            step.totals[BACKWARDS] += 1
        if step.start is None:
            self.begin(BACKWARD, now, mark)
        else:
            self.frames.append([BACKWARD, now, 0, mark])

    def _is_of_micro_batch(self, now: int) -> bool:
        """Whether a backward pass that begins inside other phases is one of a micro-batch.

        Inside another pass it is a part of that one (reentrant checkpointing). Of an optimizer that
        calls its closure several times (LBFGS), the passes of the first call count.
        """
        phases = [frame[0] for frame in self.frames]
        if BACKWARD in phases or OPTIMIZER not in phases:
            return BACKWARD not in phases
        called_at = self.frames[phases.index(CLOSURE)][1] if CLOSURE in phases else now
        optimizer = self.frames[phases.index(OPTIMIZER)]
        if len(optimizer) == _FRAME_LENGTH:
            optimizer.append(called_at)
        return optimizer[_FRAME_LENGTH] == called_at

    def have_local_gradients(self, _: int, now: int, mark: int, flags: int) -> None:
        """This rank's own gradients are there; what is left of backward waits for the others'.

        Of several such moments in one backward pass the last one counts.
        """
        if self.frames and self.frames[-1][0] == BACKWARD:
            self.local_gradients = (now, mark, self.frames[-1][2])

    def _charge_waiting(self, moment: tuple[int, int, int], now: int, mark: int) -> None:
        """Since its last local gradient backward has waited; what was charged since stays so."""
        began, began_mark, charged = moment
        backward = self.frames[-1] if self.frames else [COMMUNICATION]
        if backward[0] != BACKWARD or began < backward[1]:
            return  # the moment is another pass's: one around this, or one that failed
        self.local_gradients = None
        self.frames.append([COMMUNICATION, began, backward[2] - charged, began_mark])
        backward[2] = charged
        self.end(COMMUNICATION, now, mark)

    def end_backward(self, count: int, now: int, mark: int, flags: int) -> None:
        """Gradients are there."""
        if self.local_gradients is not None:
            self._charge_waiting(self.local_gradients, now, mark)
        self.end(BACKWARD, now, mark)
        self.backward_end = (now, mark)
        if self.by_hand and not self.frames:
            self.count_end(count)
            self.have_stepped_by_hand(now, mark)

    def mark_by_backward(self, is_by_hand: int, now: int, mark: int, flags: int) -> None:
        """The script has no optimizer: from here on backward passes mark the steps; or no longer.

        That was decided with the last backward pass, which counts as well.
        """
        step, self.by_hand = self.step, bool(is_by_hand)
        if is_by_hand and step.had_backward and not step.stepped and not self.frames:
            self.have_stepped_by_hand(*self.backward_end)
        elif not is_by_hand and _BY_HAND in step.stepped:
            step.stepped.discard(_BY_HAND)
            step.totals[STEPS] -= 1
            step.optimizer_end = None

    def have_stepped_by_hand(self, now: int, mark: int) -> None:
        """Without any optimizer: each backward pass stands for a step, which ends later."""
        self.step.stepped.add(_BY_HAND)
        self.step.totals[STEPS] += 1
        if self.source is not None:
            self.set_role(self.source, True)
        self._remember_optimizer_end(now, mark)

    # Optimizer

    def begin_optimizer(self, optimizer: int, now: int, mark: int, flags: int) -> None:
        """An optimizer steps."""
        is_inside = flags & events.INSIDE_ANOTHER
        if self.frames and self.frames[-1][0] in (OPTIMIZER, CLOSURE) and not is_inside:
            self._drop_stale_frames()
        if optimizer in self.step.stepped and not self.explicit.is_used and not self.frames:
            self.close_at_optimizer_end()
        if self.step.start is None:
            self.begin(OPTIMIZER, now, mark)
        else:
            self.frames.append([OPTIMIZER, now, 0, mark])

    def end_optimizer(self, ended: int, now: int, mark: int, flags: int) -> None:
        """The optimizer has stepped; whether the GPU's queue had run dry by then comes with it."""
        count, optimizer = events.split_optimizer_ended(ended)
        if not self.explicit.is_used:
            self.count_end(count)
        is_watched = flags & events.QUEUE_WATCHED
        self.step.dry = bool(flags & events.QUEUE_DRY) if is_watched else None
        self.end(OPTIMIZER, now, mark)
        self.step.stepped.add(optimizer)
        self.have_stepped(1, now, mark)

    def change_optimizer(self, optimizer: int, now: int, mark: int, flags: int) -> None:
        """An optimizer that no hook sees has stepped; when all of them are told, it counts."""
        self.changed.add(optimizer)

    def change_parameters(self, ended: int, now: int, mark: int, flags: int) -> None:
        """Since the last backward pass the optimizers told of took so many steps."""
        count, steps = events.split_optimizer_ended(ended)
        if not self.explicit.is_used:
            self.count_end(count)
        optimizers, self.changed = self.changed, set()
        is_repeated = not self.step.stepped.isdisjoint(optimizers)
        if not self.explicit.is_used and not self.frames and is_repeated:
            self.close_at_optimizer_end()
        self.step.stepped.update(optimizers)
        self.have_stepped(steps, now, mark)

    def have_stepped(self, steps: int, now: int, mark: int) -> None:
        """Optimizers have stepped; the step ends here, or goes on to the next fetch."""
        step = self.step
        step.totals[STEPS] += steps
        if self.source is not None and step.had_backward:
            self.set_role(self.source, True)
        if self.frames:
            return  # parameter by parameter inside a backward pass: the step goes on
        step.aborted = False
        if self.explicit.is_used:
            return
        self._remember_optimizer_end(now, mark)
        if step.fetched_in_step:
            return
        if self.usual_optimizers and self.usual_optimizers <= step.stepped:
            self.close_at_optimizer_end()

    def _remember_optimizer_end(self, now: int, mark: int) -> None:
        self.decide_passes(is_training=True)  # before what the step has until here is kept
        step = self.step
        step.aborted = False
        step.optimizer_end = (now, mark, step.totals.copy(), len(step.spans))
        if step.later_loss is not None:
            step.loss = first_or_lost(step.loss, step.later_loss)
            step.later_loss = None
        if self.losses.provisional:
            self.losses.settle(self.losses.provisional.copy(), self.records, self.steps + 1)

    # Notebooks

    def pause(self, _: int, now: int, mark: int, flags: int) -> None:
        """A cell of a notebook ends: until the next one begins no time is any step's."""
        self.paused_at = now
        step = self.step
        if step.start is None or (step.had_backward and not step.stepped):
            return  # a step that goes on in another cell stays open
        self.finish(0, now, mark, flags)
        self._open_next(now, 0)
        self.step.start = None

    def resume(self, _: int, now: int, mark: int, flags: int) -> None:
        """A cell begins: a step that was left open goes on, as if no time had passed."""
        paused_at, self.paused_at = self.paused_at, None
        step = self.step
        if paused_at is None or step.start is None:
            return
        idle = now - paused_at
        self.frames.clear()
        step.start += idle
        step.fetched_at += idle
        if step.evaluated_at is not None:
            step.evaluated_at += idle
        # On the GPU's timeline the pause cannot be taken out.
        step.start_mark = step.fetched_mark = 0
        step.spans, step.undecided = [], []
        step.snapshot_spans = 0

    # Closing

    def forget(self, _: int, now: int, mark: int, flags: int) -> None:
        """Another thread turns out to train: nothing of what came before is a step's."""
        if self.steps == 0:
            self._begin_anew()

    def finish(self, _: int, now: int, mark: int, flags: int) -> None:
        """The process ends: close the step that is done, keep the rest as the tail."""
        if self.step.start is None:
            return
        self.frames.clear()
        if self.usual_optimizers <= self.step.stepped and not self.explicit.is_used:
            self.close_at_optimizer_end()  # nothing, where no optimizer has stepped
        if self.steps == 0 or self.is_done:
            return
        if self.source is not None and self._was_evaluation(self.source):
            self._take_as_evaluation(now, mark)
        self.close(now, mark, _ABORTED if self.step.aborted else _TAIL)

    def close_at_optimizer_end(self) -> None:
        """The step ended where its last optimizer did; what came after belongs to the next."""
        step = self.step
        if step.optimizer_end is None:
            return
        end, mark, totals, spans = step.optimizer_end
        later, later_spans, later_loss = step.totals, step.spans[spans:], step.later_loss
        step.later_loss = None
        provisional, self.losses.provisional = self.losses.provisional, {}
        step.totals, step.spans = totals, step.spans[:spans]
        self.usual_optimizers = step.stepped.copy()
        self.close(end, mark, 0)
        self.losses.settle(provisional, self.records, self.steps + 1)
        if later == totals:
            return
        following = self.step
        following.spans, following.loss = later_spans, later_loss
        following.totals = [
            empty if after == before else after - max(before, 0)
            for after, before, empty in zip(later, totals, self.empty, strict=True)
        ]
        following.had_backward = step.had_backward
        following.had_training_forward = step.had_training_forward

    def close(self, end: int, mark: int, flags: int) -> None:
        """Make the row of the step that ends here, and open the next."""
        step = self.step
        totals = step.totals
        start = end if step.start is None else step.start
        body_start, outside = start, 0
        if step.is_torn:
            flags |= _ABORTED
        if flags & _EXPLICIT:
            body_start, _, outside, _ = self.explicit.start
        loss, seen, loss_lag = self.losses.close(step, self.records, self.steps + 1)
        if step.dry is not None:
            seen |= _QUEUE_DRY | _QUEUE_WATCHED if step.dry else _QUEUE_WATCHED
        is_timed = bool(self.is_timed and mark and step.start_mark)
        row = [
            start,
            end - start,
            totals[INPUT],
            end - body_start - (step.outside_body_ns() - outside),
            totals[EVALUATION],
            totals[CHECKPOINT],
            *_body_of(totals),
            totals[GC],
            totals[GRAPH],
            *_NO_GPU_TIMES,
            step.allocated,
            step.reserved,
            step.rss,
            totals[SYNC],
            totals[LOGGING],
            totals[COMPILE],
            totals[COLLATE],
            totals[ELEMENTS] if totals[ELEMENTS] >= 0 else NOT_MEASURED,
            totals[RECEIVED] if totals[RECEIVED] >= 0 else NOT_MEASURED,
            loss,
            totals[SAMPLES] if totals[SAMPLES] >= 0 else NOT_MEASURED,
            totals[BACKWARDS],
            flags | seen | step.seen | (_GPU_TIMED if is_timed else 0),
            totals[STEPS],
            totals[SYNCS] if totals[SYNCS] < MAX_SYNCS else MAX_SYNCS,
            loss_lag,
            self.records + 1,
        ]
        if is_timed:
            self.rows.idle.see_mark(mark, end)
        self.rows.add(row, self._bounds(mark, flags) if is_timed else None, step.spans, mark)
        self.records += 1
        if not flags & _NO_STEP:
            self.steps += 1
            self.closings.append(self.event)
            self.end_if_done()
        self.collectives = 0
        self._open_next(end, mark)

    @property
    def open_phase(self) -> int | None:
        """The innermost phase that has begun and not ended; `None` where none is open."""
        return self.frames[-1][0] if self.frames else None

    def _bounds(self, mark: int, flags: int) -> Bounds | None:
        start, spans_before = self.step.start_mark, 0
        if flags & _EXPLICIT:
            _, start, _, spans_before = self.explicit.start
        return Bounds(start, mark, spans_before, self.fetches) if start else None

    def _open_next(self, end: int, mark: int) -> None:
        step, empty = self.step, self.empty
        if step.fetched_in_step and not self.fetches:
            self.fetches = True
            empty[INPUT] = 0  # fetches are seen: a step without one waited for none
        if step.totals[SAMPLES] > 0:
            empty[SAMPLES] = 0  # it fetched none
        if step.totals[ELEMENTS] > 0:
            empty[ELEMENTS] = 0
        if step.totals[COMMUNICATION] >= 0:
            empty[COMMUNICATION] = 0  # the same with collectives
        self.step = OpenStep(end, mark, empty)

    def reach_mark(self, after: int, now: int, mark: int, flags: int) -> None:
        """The GPU has passed a mark, so long after the one before it that was told."""
        ended = self.step.optimizer_end  # after which the process asks
        self.rows.reach(mark, after, (self.step.start or 0) if ended is None else ended[0])

    def lose_marks(self, _: int, now: int, mark: int, flags: int) -> None:
        """The process waits no longer for the GPU to pass the marks up to this one."""
        self.rows.lose(mark)


def _add_counted(totals: list[int], place: int, number: int) -> None:
    """Add to a count; one that is not known makes the whole of the step unknown."""
    if number < 0:
        totals[place] = _UNCOUNTED
    else:
        totals[place] = number if totals[place] == -1 else totals[place] + number


def _ignore(argument: int, now: int, mark: int, flags: int) -> None:
    """An event of no kind that is known, or one after the last step that was asked for."""


def _handlers(machine: StepMachine) -> list[Handler]:
    found: list[Handler] = [_ignore] * events.KINDS
    for kind, handler in (
        (events.BEGIN, machine.begin),
        (events.END, machine.end),
        (events.ABORT, machine.abort),
        (events.LOSE_TRACK, machine.lose_track),
        (events.SPEND, machine.spend),
        (events.SPEND_WAITING, machine.spend_waiting),
        (events.SPEND_WITHIN, machine.spend_within),
        (events.SEE_LOSS, machine.see_loss),
        (events.SEE_MEMORY, machine.see_memory),
        (events.SEE_ALLOCATED, machine.see_allocated),
        (events.SEE_RESERVED, machine.see_reserved),
        (events.SEE_LOADER, machine.see_loader),
        (events.BEGIN_FETCH, machine.begin_fetch),
        (events.END_FETCH, machine.end_fetch),
        (events.END_EPOCH, machine.end_epoch),
        (events.BEGIN_FORWARD, machine.begin_forward),
        (events.END_FORWARD, machine.end_forward),
        (events.BEGIN_BACKWARD, machine.begin_backward),
        (events.HAVE_LOCAL_GRADIENTS, machine.have_local_gradients),
        (events.END_BACKWARD, machine.end_backward),
        (events.BEGIN_OPTIMIZER, machine.begin_optimizer),
        (events.END_OPTIMIZER, machine.end_optimizer),
        (events.CHANGED_OPTIMIZER, machine.change_optimizer),
        (events.CHANGE_PARAMETERS, machine.change_parameters),
        (events.HOLD_IN_GRAPH, machine.graphs.hold_in_graph),
        (events.HOLD_OPTIMIZER, machine.graphs.hold_optimizer),
        (events.BEGIN_REPLAY, machine.graphs.begin_replay),
        (events.END_REPLAY, machine.graphs.end_replay),
        (events.ABORT_REPLAY, machine.graphs.abort_replay),
        (events.PAUSE, machine.pause),
        (events.RESUME, machine.resume),
        (events.ENTER_STEP, machine.explicit.enter_step),
        (events.EXIT_STEP, machine.explicit.exit_step),
        (events.MARK_BY_BACKWARD, machine.mark_by_backward),
        (events.FORGET, machine.forget),
        (events.FINISH, machine.finish),
        (events.REACH_MARK, machine.reach_mark),
        (events.LOSE_MARKS, machine.lose_marks),
        (events.RECEIVE, machine.receive),
        (events.LEAVE_EVALUATION, machine.leave_evaluation),
    ):
        found[kind] = handler
    return found


def _handlers_after_limit(machine: StepMachine) -> list[Handler]:
    """No further step is made; the last ones may still wait for the GPU."""
    found: list[Handler] = [_ignore] * events.KINDS
    found[events.REACH_MARK] = machine.reach_mark
    found[events.LOSE_MARKS] = machine.lose_marks
    return found
