"""`--kineto STEPS`: whole traces of torch's profiler of steps that are typical, and of the worst.

As many steps as were asked for are recorded at once when training is warm; later candidates only
as often as a small share of the training time allows. A recording that is kept is written right
away, so that a run that is killed has it; the one that it replaces is deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from traceml.model.environment import STEP_TRACE, STEP_TRACES
from traceml.trace.deep.time_budget import TimeBudget
from traceml.trace.interruptions import is_interruption
from traceml.trace.place import place
from traceml.trace.profiler_turns import NSYS, ProfilerTurns
from traceml.trace.session import Session
from traceml.trace.step_boundary import FetchWatch, StepBoundary
from traceml.trace.step_choice import (
    FIRST_STEP,
    MIN_STEPS_BETWEEN,
    KeptSteps,
    RecordedStep,
    StepWatch,
)
from traceml.trace.step_recording import StepRecording, write_trace

SHARE = 0.01
"""Of the training time: what candidates may take beyond the first recordings, over all ranks."""
MAX_RANKS = 8
"""Ranks that record, from 0 on: the traces of more of them are looked at by nobody."""
MAX_RECORDINGS = 1000
MAX_RECORDING_S, MAX_TIMES_USUAL = 5.0, 3.0
"""A step that takes longer than both, this time and this many usual steps, is not kept: it holds an
evaluation, whose trace would take very much memory."""
MAX_ALIGNING = 32
"""Ends of optimizers after which it is given up to wait for the beginning of a step."""

GRAPHS = "this script uses CUDA graphs, which break when a recording ends: no step was traced"
NSIGHT = "Nsight Systems profiles this run, and the GPU serves one profiler at a time"
FAILED = "recording steps failed in this process, and was ended"
THEIRS = "the script ran a profiler of its own, and ours made room for it"
TOO_LONG = "a step took so long that its trace was given up, perhaps with an evaluation in it"
INTERRUPTED = "the end of a recorded step was interrupted, and its trace was not kept"
TOO_LARGE = "the trace of a step was too large to be opened, and was not kept"
TOO_SHORT = f"the script ended before a step was recorded: that begins after {FIRST_STEP} steps"
OTHER_RANKS = f"ranks 0 to {MAX_RANKS - 1} record steps, the others do not"


class StepTraces:
    """Records steps of this process, and keeps some of the recordings."""

    def __init__(
        self,
        session: Session,
        count: int,
        turns: ProfilerTurns,
        uses_graphs: Callable[[], bool | None],
        fetches: FetchWatch,
    ) -> None:
        self._session, self._count, self._turns = session, count, turns
        self._uses_graphs, self._fetches = uses_graphs, fetches
        follow_fetch = session.guard(self._follow_fetch, decides=False, failed=self._fail)
        self._boundary = StepBoundary(session, fetches, follow_fetch)
        self._follow_guarded = session.guard(self._follow_step, failed=self._fail)
        self._recording: StepRecording | None = None
        self.forget()
        session.forgets.append(self.forget)
        session.looks.append(self._follow_guarded)
        session.restores.append(self._give_up)
        session.before_last_record.append(self._finish)
        turns.enders.append(self._make_room)

    def forget(self) -> None:
        """Begin anew in a forked child."""
        if self._recording is not None:
            self._recording.forget()
        self._recording = None
        self._watch, self._kept = StepWatch(), KeptSteps(self._count)
        self._file: int | None = None
        self._said: set[str] = set()
        self._looked_at = perf_counter_ns()
        self._budget: TimeBudget | None = None
        self._recorded = 0
        self._last = 0
        """The number of the last step that was recorded, among those that were seen here."""
        self._boundary.forget()
        self._aligning = 0
        """Ends of optimizers for which the end of a step has been waited for; 0 while none is."""
        self._is_slow_one = self._was_slow_one = False
        """Whether the recording, and the one before it, was chosen because a slow step is
        expected."""
        self._steps = 0
        """How many steps there were when the recording began."""
        self._cost_ns = 0

    # After each step

    def _follow_step(self) -> None:
        if self._recording is not None and self._recording.is_on:
            self._follow_optimizer(self._recording)
        else:
            self._recording = None  # Ctrl-C may have left one behind that has ended
            self._watch.see(perf_counter_ns() - self._looked_at)
            if self._is_due():
                self._begin_when_aligned()
        self._looked_at = perf_counter_ns()

    def _follow_optimizer(self, recording: StepRecording) -> None:
        """Ends the recorded step, if the optimizer that has just stepped was its last."""
        was_known = self._boundary.is_at_fetch
        ended = self._boundary.steps_ended()
        if self._boundary.is_at_fetch and not was_known:
            self._give_up()  # it began between two optimizers of one step
        elif ended or recording.so_far_ns() > self._max_ns():
            self._end_step(recording)

    def _follow_fetch(self, _: int) -> None:
        """Ends the recorded step with this fetch, or begins to record the next one."""
        if self._recording is not None and self._recording.is_on:
            self._end_step(self._recording)
        elif self._aligning:
            self._begin_if_possible()

    def _is_due(self) -> bool:
        """Whether one of the next steps is to be recorded: the one after the next, because it takes
        one step to know where steps begin."""
        seen = self._watch.seen
        if self._aligning:
            return True
        if seen < FIRST_STEP or seen < self._last + MIN_STEPS_BETWEEN:
            return False
        if self._recorded >= MAX_RECORDINGS:
            return False
        if self._recorded < self._count:
            return True  # these were asked for, whatever they cost
        slow = None if self._was_slow_one else self._watch.next_slow
        if slow is not None and slow != seen + 2:
            return False
        is_allowed = self._budget is not None and self._budget.allows(perf_counter_ns())
        self._is_slow_one = is_allowed and slow is not None
        return is_allowed

    def _begin_when_aligned(self) -> None:
        """Begin where a step does: a script with several optimizers steps them one by one."""
        self._aligning += 1
        if self._boundary.steps_ended():
            self._begin_if_possible()
        elif self._aligning > MAX_ALIGNING:
            self._last = self._watch.seen
            self._stop_aligning()

    def _begin_if_possible(self) -> None:
        self._aligning = 0
        if self._may_begin():
            self._begin(self._session.count_stepped())
        else:
            self._stop_aligning()

    def _stop_aligning(self) -> None:
        self._aligning = 0
        self._boundary.stop()

    def _may_begin(self) -> bool:
        if self._session.rank() >= MAX_RANKS:
            self._stop(OTHER_RANKS)
            return False
        if NSYS in os.environ:
            self._stop(NSIGHT)
            return False
        if self._uses_graphs():
            self._stop(GRAPHS)
            return False
        if self._turns.is_running:
            self._last = self._watch.seen
            self._say(THEIRS)
            return False
        return True

    def _begin(self, steps: int) -> None:
        began = perf_counter_ns()
        self._turns.end_ours()  # the deep profile looks at other steps
        if self._budget is None:
            ranks = min(place()[1], MAX_RANKS)
            self._budget = TimeBudget(SHARE / max(ranks, 1), began)
        self._steps = steps
        self._recording = StepRecording(
            self._session, self._turns, self._fetches, self._end_if_too_long
        )
        self._recording.begin(steps + 1)
        self._cost_ns = perf_counter_ns() - began

    def _end_step(self, recording: StepRecording) -> None:
        steps = self._session.count_stepped()
        took_ns = recording.took_ns()
        if took_ns > self._max_ns():
            self._throw_away(recording, TOO_LONG)
        elif steps > self._steps + 1:
            self._throw_away(recording, INTERRUPTED)
        else:
            ended = perf_counter_ns()
            self._boundary.stop()
            result = recording.end()
            self._recording = None
            self._recorded += 1
            self._judge(steps, took_ns, result)
            self._watch.see_recorded(took_ns, self._kept.usual_ns)
            self._last = self._watch.seen
            self._was_slow_one, self._is_slow_one = self._is_slow_one, False
            self._tell(steps, took_ns, perf_counter_ns() - ended)

    def _end_if_too_long(self) -> None:
        """A batch is fetched in a step that is recorded: an evaluation fetches very many."""
        if self._recording is not None and self._recording.so_far_ns() > self._max_ns():
            self._throw_away(self._recording, TOO_LONG)

    def _throw_away(self, recording: StepRecording, why: str) -> None:
        took_ns, ended = recording.so_far_ns(), perf_counter_ns()
        recording.end()
        self._recording = None
        self._boundary.stop()
        self._recorded += 1
        self._watch.pass_over()
        self._last = self._watch.seen
        self._say(why)
        self._tell(self._steps + 1, took_ns, perf_counter_ns() - ended)

    def _max_ns(self) -> float:
        return max(MAX_RECORDING_S * 1e9, MAX_TIMES_USUAL * self._watch.usual_ns)

    def _judge(self, step: int, took_ns: int, result: Any) -> None:
        """Write a recording that is worth keeping, and delete the one it replaces."""
        is_kept, instead_of = self._kept.replaced_by(took_ns, self._is_slow_one)
        if not is_kept:
            return
        folder = self._session.run_folder
        name = STEP_TRACE.format(rank=self._session.rank(), step=step, pid=os.getpid())
        try:
            if write_trace(result, folder / name) is None:
                self._say(TOO_LARGE)
                return
        except OSError as error:
            if is_interruption(error):
                raise
            self._stop(f"the trace of step {step} could not be written: {error.strerror}")
            return
        self._kept.keep(RecordedStep(step, took_ns, name), instead_of)
        if instead_of is not None:
            (folder / instead_of.file).unlink(missing_ok=True)

    def _tell(self, step: int, took_ns: int, ended_in_ns: int) -> None:
        """Write which step was recorded, what that cost, and what is kept by now."""
        slower_ns = max(0.0, took_ns - self._watch.usual_ns)
        if self._kept.times_ns and took_ns > self._kept.usual_ns:  # it may have been slow anyway
            slower_ns = max(0.0, self._kept.usual_ns - self._watch.usual_ns)
        cost_ns = round(self._cost_ns + ended_in_ns + slower_ns)
        if self._budget is not None and self._recorded > self._count:
            self._budget.spend(cost_ns)
        roles = self._kept.roles()
        kept = [
            {"step": each.step, "took_ns": each.took_ns, "file": each.file, "is": roles[each.step]}
            for each in self._kept.kept
        ]
        self._append({"step": step, "took_ns": took_ns, "cost_ns": cost_ns, "kept": kept})

    # Ending

    def _finish(self) -> None:
        """The process ends."""
        self._give_up()
        if self._watch.seen and not self._recorded and not self._said:
            self._say(TOO_SHORT)

    def _make_room(self) -> None:
        """A profiler of the script's begins: ours is thrown away."""
        if self._recording is not None:
            self._give_up()
            self._say(THEIRS)

    def _give_up(self) -> None:
        """End a recording without keeping it."""
        recording, self._recording = self._recording, None
        self._stop_aligning()
        if recording is not None:
            recording.end()
            self._last = self._watch.seen

    def _fail(self, error: BaseException) -> None:
        self._session.failed(error)
        self._stop(FAILED)

    def _stop(self, why: str) -> None:
        """Record nothing more, and say why."""
        self._give_up()
        self._say(why)
        if self._follow_guarded in self._session.looks:
            self._session.looks.remove(self._follow_guarded)

    # The file

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self._append({"why": why})

    def _append(self, line: Mapping[str, Any]) -> None:
        about = {"rank": self._session.rank(), "asked": self._count}
        payload = json.dumps({**about, **line}, separators=(",", ":")).encode() + b"\n"
        try:
            if self._file is None:
                path = self._session.run_folder / STEP_TRACES.format(pid=os.getpid())
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(path, flags, 0o600)
            os.write(self._file, payload)
        except OSError as error:
            if is_interruption(error):
                raise
            # the disk is full: what is there can be read
