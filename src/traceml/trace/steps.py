"""Turns what the hooks see (fetch, copy, forward, backward, optimizer, save) into steps.

Time is accounted for completely. A step begins where the one before it ended, so the walls of all
records add up to the loop's wall time. Inside, `wall = input + body + between`.

Where a step ends:
- an explicit `trace_step` ends where the user says;
- otherwise at the next fetch once an optimizer has stepped;
- where no fetch is seen, at the end of the optimizer step that completes the set of optimizers
  (a GAN has two), and at the latest when an optimizer steps a second time;
- a script without any optimizer is marked by its backward passes instead.

What belongs to no step: batches that are fetched and never trained on (evaluation) and checkpoints
are `between`. Whether a batch was for evaluation is known only when the next one is fetched, so
everything since the last fetch is provisional: it can be taken back to the snapshot made there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple, Protocol

from traceml.model.layout import NOT_MEASURED, StepFlag

INPUT, H2D, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, EVALUATION, GC, SAMPLES, BACKWARDS, STEPS = (
    range(11)
)
"""Places in the list of what a step has accumulated so far."""

_OUTSIDE_STEPS_TOO = (H2D, CHECKPOINT)

_BY_HAND = 0
"""Stands for the optimizer where the script has none: no object has this id."""

_Totals = list[int]

Span = tuple[int, Any, Any, "int | None"]
"""A phase between two marks on the GPU's timeline, and the phase it lies inside, if any."""


class Bounds(NamedTuple):
    """A step on the GPU's timeline."""

    first: Any
    start: Any
    """Where the body begins: the same as `first` unless the step is explicit."""
    end: Any
    spans_before: int
    """How many of the step's spans lie before its body."""
    fetches: bool
    """Whether a step without a fetch is one that waited for none."""


class Role(Enum):
    """What a source of batches is for, as far as it has been seen."""

    TRAINING = "training"
    EVALUATION = "evaluation"


class Sink(Protocol):
    """Where finished steps go: the ring in production."""

    def write_step(self, *values: int) -> int:
        """Append a step; all fields of the layout but the sequence."""


class Timeline(Protocol):
    """The GPU's own clock; see `trace.gpu`."""

    def mark(self) -> Any:
        """A moment on the GPU's timeline; `None` when none can be taken now."""

    def queue_is_dry(self, mark: Any) -> bool | None:
        """Whether the GPU has passed this mark already."""

    def measure_later(self, number: int, step: Bounds, spans: list[Span]) -> None:
        """Fill in the GPU times of a written step when the GPU has got there."""

    def look_at_memory(self) -> None:
        """Read how much memory is in use, if it is time to."""

    def memory(self) -> tuple[int, int]:
        """The most bytes allocated and reserved seen since last asked, or not measured."""


class StepTracer:
    """The steps of one training process; fed by hooks, all from one thread."""

    def __init__(self, sink: Sink, clock: Callable[[], int]) -> None:
        self.sink = sink
        self.clock = clock
        self.gpu: Timeline | None = None
        self.on_step: Callable[[], None] = lambda: None
        self.forget()

    def forget(self) -> None:
        """Begin anew, as if nothing had been seen."""
        self.steps = 0
        self.by_hand = False
        self.fetches = False
        self._roles: dict[int, Role] = {}
        self._start: int | None = None
        self._start_mark: Any = None
        self._frames: list[list[Any]] = []
        self._totals = self._fresh()
        self._spans: list[Any] = []
        self._stepped: set[int] = set()
        self._usual_optimizers: set[int] = set()
        self._aborted = False
        self._dry: bool | None = None
        # What came since the last fetch, and the way back to before it.
        self._source: int | None = None
        self._fetched_at = 0
        self._fetched_mark: Any = None
        self._snapshot = self._totals
        self._snapshot_spans = 0
        self._fetched = False
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

    # Phases: a stack, so that a phase inside another (a copy inside forward, a closure inside the
    # optimizer step) is charged once, to the inner one.

    def begin(self, phase: int) -> None:
        """A phase begins."""
        mark = None if self.gpu is None else self.gpu.mark()
        self._begin_at(phase, self.clock(), mark)

    def _begin_at(self, phase: int, now: int, mark: Any) -> None:
        if self._start is None:
            if phase in _OUTSIDE_STEPS_TOO:
                return  # a model that moves to its device before training begins
            self._start, self._start_mark = now, mark
            self._fetched_at, self._fetched_mark = now, mark
        self._frames.append([phase, now, 0, mark])

    def end(self, phase: int) -> int:
        """The innermost phase of this name ends; returns its own duration."""
        now = self.clock()
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
            value = self._totals[phase]
            self._totals[phase] = own if value < 0 else value + own
            if frame[3] is not None and self.gpu is not None:
                mark = self.gpu.mark()
                if mark is not None:
                    self._spans.append((phase, frame[3], mark, outer))
            return own
        return 0

    def abort(self, phase: int) -> None:
        """An exception leaves a phase: its time counts, the step is not a complete one."""
        self.end(phase)
        self._aborted = True

    def add(self, place: int, amount: int) -> None:
        """Add to one of the totals without a phase of its own."""
        self._totals[place] += amount

    # Fetching

    def begin_fetch(self, source: int) -> None:
        """A batch is asked for from a source (a dataset, by identity)."""
        if self._frames:
            self._drop_stale_frames()
        mark = None if self.gpu is None else self.gpu.mark()
        now = self.clock()
        if not self._frames and not self._explicit_depth:
            self._settle(now, mark, source)
            self._provisional_from(now, mark)
        self._source = source
        self._fetched = True
        self._begin_at(INPUT, now, mark)

    def end_fetch(self, samples: int) -> None:
        """The batch is there."""
        self.end(INPUT)
        self._fetched_in_step = True
        if samples >= 0:
            value = self._totals[SAMPLES]
            self._totals[SAMPLES] = samples if value < 0 else value + samples

    def end_epoch(self) -> None:
        """The source had no further batch."""
        self.end(INPUT)
        if self._roles.get(self._source or 0) is Role.EVALUATION:
            self._had_forward = True  # what follows, up to the next fetch, concludes evaluation

    def _settle(self, now: int, mark: Any, source: int) -> None:
        """Decide what the time since the last fetch was: a step, evaluation, or neither yet."""
        if self.steps == 0 and not self._stepped and not self._had_backward:
            self._forget_before(now, mark)
        elif self._was_evaluation(source):
            self._roles.setdefault(self._source or 0, Role.EVALUATION)
            self._take_as_evaluation(now, mark)
        elif self._stepped and not self._explicit:
            self._close(now, mark, StepFlag(0))
        elif self._aborted and not self._explicit:
            self._close(now, mark, StepFlag.ABORTED)

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
        self._totals, self._spans = self._fresh(), []

    def _take_as_evaluation(self, now: int, mark: Any) -> None:
        """Everything since the last fetch was evaluation (checkpoints in it stay checkpoints)."""
        totals, before = self._totals, self._snapshot
        saved = totals[CHECKPOINT] - before[CHECKPOINT]
        evaluated = totals[EVALUATION] - before[EVALUATION]
        self._totals = before.copy()
        self._totals[CHECKPOINT] = totals[CHECKPOINT]
        self._totals[GC] = totals[GC]
        self._totals[EVALUATION] += max(now - self._fetched_at - saved, evaluated)
        if self._fetched_mark is not None and mark is not None:
            del self._spans[self._snapshot_spans :]
            self._spans.append((EVALUATION, self._fetched_mark, mark, None))
        self._provisional_from(now, mark)

    def _provisional_from(self, now: int, mark: Any) -> None:
        self._fetched_at, self._fetched_mark = now, mark
        self._snapshot, self._snapshot_spans = self._totals.copy(), len(self._spans)
        self._fetched = False
        self._had_backward = self._had_forward = self._had_training_forward = False
        self._evaluated_at = None

    def _drop_stale_frames(self) -> None:
        """An optimizer step that raised leaves its frame open: nothing says so but the next one."""
        if self._frames[0][0] == OPTIMIZER and not self._explicit_depth:
            self._frames.clear()
            self._aborted = True

    # Forward and backward

    def begin_forward(self, training: bool, gradients: bool) -> None:
        """The model is called."""
        if training and gradients:
            if not self._had_training_forward and self._had_forward and not self._frames:
                self._end_evaluation()
            self._had_training_forward = True
            self._evaluated_at = None
        self._had_forward = True
        self.begin(FORWARD)

    def _end_evaluation(self) -> None:
        """A training loop without fetches goes on after an evaluation with them."""
        if self._fetched and not self._had_backward and not self.source_trains():
            mark = None if self.gpu is None else self.gpu.mark()
            self._take_as_evaluation(self.clock(), mark)

    def source_trains(self) -> bool:
        """Whether the last fetch was from a source that is known to be for training."""
        return self._roles.get(self._source or 0) is Role.TRAINING

    def end_forward(self, training: bool, gradients: bool) -> None:
        """The model's call returned."""
        own = self.end(FORWARD)
        if not training and not gradients and not self._frames and self._is_for_training():
            self._claim_evaluation(own)

    def _is_for_training(self) -> bool:
        """Whether what came since the last fetch is known to be a step's, not an evaluation's."""
        return self._had_backward or not self._fetched or self.source_trains()

    def _claim_evaluation(self, own: int) -> None:
        """A forward pass for evaluation without a fetch of its own, and the gap since the last."""
        now = self.clock()
        since = now - own if self._evaluated_at is None else self._evaluated_at
        self._totals[FORWARD] -= own
        self._totals[EVALUATION] += now - since
        if self._spans and self._spans[-1][0] == FORWARD:
            _, start, end, _ = self._spans.pop()
            self._spans.append((EVALUATION, start, end, None))
        self._evaluated_at = now

    def begin_backward(self) -> None:
        """Gradients are asked for."""
        if self.by_hand and self._stepped and not self._fetched_in_step:
            self._close_at_optimizer_end()
        self._had_backward = True
        self._evaluated_at = None
        self._totals[BACKWARDS] += 1
        if self.gpu is not None and not self._frames:
            self.gpu.look_at_memory()
        self.begin(BACKWARD)

    def end_backward(self) -> None:
        """Gradients are there."""
        self.end(BACKWARD)
        if self.by_hand and not self._frames:
            self._stepped.add(_BY_HAND)
            self._totals[STEPS] += 1
            if self._source is not None:
                self._roles[self._source] = Role.TRAINING
            self._remember_optimizer_end()

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has stepped in the step that is open."""
        return bool(self._stepped)

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass is open: an optimizer per parameter may step inside it."""
        return any(frame[0] == BACKWARD for frame in self._frames)

    # Optimizer

    def begin_optimizer(self, identity: int) -> None:
        """An optimizer steps."""
        if self._frames and self._frames[-1][0] == OPTIMIZER:
            self._drop_stale_frames()
        if identity in self._stepped and not self._explicit and not self._frames:
            self._close_at_optimizer_end()
        self.begin(OPTIMIZER)

    def end_optimizer(self, identity: int) -> None:
        """The optimizer has stepped."""
        watched = self._frames[-1][3] if self._frames else None
        self.end(OPTIMIZER)
        if watched is not None and self.gpu is not None:
            self._dry = self.gpu.queue_is_dry(watched)
        self._totals[STEPS] += 1
        if self._source is not None and self._had_backward:
            self._roles[self._source] = Role.TRAINING
        self._stepped.add(identity)
        if self._frames:
            return  # parameter by parameter inside a backward pass: the step goes on
        self._remember_optimizer_end()
        complete = self._usual_optimizers and self._usual_optimizers <= self._stepped
        if complete and not self._fetched_in_step and not self._explicit:
            self._close_at_optimizer_end()

    def _remember_optimizer_end(self) -> None:
        self._aborted = False
        mark = self._spans[-1][2] if self._spans else None
        self._optimizer_end = (self.clock(), mark, self._totals.copy(), len(self._spans))

    # Explicit steps

    def enter_step(self) -> None:
        """`with trace_step(model)` begins."""
        self._explicit_depth += 1
        if self._explicit_depth > 1:
            return
        mark = None if self.gpu is None else self.gpu.mark()
        now = self.clock()
        self._frames.clear()
        if self._start is None:
            self._start, self._start_mark = now, mark
        elif self._had_forward:
            self._end_evaluation()
        if self._source is not None:
            self._roles[self._source] = Role.TRAINING
        self._explicit = True
        self._explicit_start = (now, mark, self._outside_body(), len(self._spans))
        self._provisional_from(now, mark)

    def exit_step(self, aborted: bool) -> None:
        """`with trace_step(model)` ends."""
        self._explicit_depth = max(0, self._explicit_depth - 1)
        if self._explicit_depth:
            return
        mark = None if self.gpu is None else self.gpu.mark()
        now = self.clock()
        self._frames.clear()
        flags = StepFlag.EXPLICIT | (StepFlag.ABORTED if aborted else StepFlag(0))
        self._close(now, mark, flags)

    def _outside_body(self) -> int:
        totals = self._totals
        return max(totals[INPUT], 0) + totals[EVALUATION] + totals[CHECKPOINT]

    # Closing

    def finish(self) -> None:
        """The process ends: close the step that is done, keep the rest as the tail."""
        if self._start is None:
            return
        self._frames.clear()
        if self._usual_optimizers <= self._stepped and not self._explicit:
            self._close_at_optimizer_end()  # nothing, where no optimizer has stepped
        if self.steps == 0:
            return
        mark = None if self.gpu is None else self.gpu.mark()
        if self.gpu is not None:
            self.gpu.look_at_memory()
        now = self.clock()
        if self._source is not None and self._was_evaluation(self._source):
            self._take_as_evaluation(now, mark)
        self._close(now, mark, StepFlag.ABORTED if self._aborted else StepFlag.TAIL)

    def _close_at_optimizer_end(self) -> None:
        """The step ended where its last optimizer did; what came after belongs to the next."""
        if self._optimizer_end is None:
            return
        end, mark, totals, spans = self._optimizer_end
        later, later_spans = self._totals, self._spans[spans:]
        backward, forward = self._had_backward, self._had_training_forward
        self._totals, self._spans = totals, self._spans[:spans]
        self._usual_optimizers = self._stepped.copy()
        self._close(end, mark, StepFlag(0))
        self._spans = later_spans
        self._totals = [
            empty if after == before else after - max(before, 0)
            for after, before, empty in zip(later, totals, self._fresh(), strict=True)
        ]
        if later != totals:
            self._had_backward, self._had_training_forward = backward, forward

    def _close(self, end: int, mark: Any, flags: StepFlag) -> None:
        totals = self._totals
        start = end if self._start is None else self._start
        wall = end - start
        body = wall - self._outside_body()
        bounds = Bounds(self._start_mark, self._start_mark, mark, 0, self.fetches)
        if flags & StepFlag.EXPLICIT:
            began, began_mark, outside, spans_before = self._explicit_start
            body = end - began - (self._outside_body() - outside)
            bounds = bounds._replace(start=began_mark, spans_before=spans_before)
        allocated = reserved = NOT_MEASURED
        gpu = self.gpu
        if gpu is not None:
            allocated, reserved = gpu.memory()
            if self._dry is not None:
                flags |= StepFlag.QUEUE_WATCHED
                if self._dry:
                    flags |= StepFlag.QUEUE_DRY
            if bounds.start is not None and mark is not None:
                flags |= StepFlag.GPU_TIMED
        number = self.sink.write_step(
            start,
            wall,
            totals[INPUT],
            body,
            totals[EVALUATION],
            totals[CHECKPOINT],
            totals[H2D],
            totals[FORWARD],
            totals[BACKWARD],
            totals[OPTIMIZER],
            NOT_MEASURED,
            totals[GC],
            *_NO_GPU_TIMES,
            allocated,
            reserved,
            totals[SAMPLES],
            max(totals[BACKWARDS], 0),
            flags,
            totals[STEPS],
        )
        if gpu is not None:
            gpu.measure_later(number, bounds, self._spans)
        if not flags & (StepFlag.ABORTED | StepFlag.TAIL):
            self.steps += 1
        self._start, self._start_mark = end, mark
        self._open_next(end, mark)
        self.on_step()

    def _open_next(self, end: int, mark: Any) -> None:
        if self._fetched_in_step:
            self.fetches = True
        self._totals, self._spans = self._fresh(), []
        self._stepped = set()
        self._optimizer_end = None
        self._aborted = self._fetched_in_step = False
        self._dry = None
        self._provisional_from(end, mark)

    def _fresh(self) -> _Totals:
        """Nothing yet; once fetches are known to be seen, a step without one waited for none."""
        return [0 if self.fetches else -1, -1, -1, -1, -1, 0, 0, 0, -1, 0, 0]


_NO_GPU_TIMES = (NOT_MEASURED,) * 6
