"""Steps that the script bounds itself, with `trace_step`: then nothing else ends one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traceml.model.record_layout import StepFlag
from traceml.steps import events

if TYPE_CHECKING:
    from traceml.steps.step_machine import StepMachine

_ABORTED = int(StepFlag.ABORTED)
_EXPLICIT = int(StepFlag.EXPLICIT)
# Plain numbers: arithmetic on enum flags costs a microsecond each, in every step.


class ExplicitStepEvents:
    """Handles the events of `with trace_step(model)` in one training process."""

    def __init__(self, machine: StepMachine) -> None:
        self._machine = machine
        self.reset()

    def reset(self) -> None:
        """Know of no explicit step."""
        self.is_used = False
        """Whether the script bounds its steps itself."""
        self.depth = 0
        """How many `with trace_step` are open, one inside the other."""
        self.start: tuple[int, int, int, int] = (0, 0, 0, 0)
        """Where the outermost began: its moment, its mark, the time since the step before that is
        not the body's, and how many spans on the GPU's timeline lie before it."""

    def enter_step(self, _: int, now: int, mark: int, flags: int) -> None:
        """`with trace_step(model)` begins."""
        self.depth += 1
        if self.depth > 1:
            return
        machine = self._machine
        machine.frames.clear()
        step = machine.step
        if step.start is None:
            step.start, step.start_mark = now, mark
        elif step.had_forward:
            machine.end_evaluation(now, mark)
        machine.decide_passes(is_training=False)
        if machine.source is not None:
            machine.set_role(machine.source, True)
        self.is_used = True
        self.start = (now, mark, step.outside_body_ns(), len(step.spans))
        if mark:
            machine.rows.idle.see_mark(mark, now)
        step.make_provisional(now, mark, step.totals.copy())

    def exit_step(self, ended: int, now: int, mark: int, flags: int) -> None:
        """`with trace_step(model)` ends."""
        count, is_aborted = events.split_step_ended(ended)
        machine = self._machine
        if not self.depth:
            if machine.has_gap:  # its beginning was lost
                machine.count_end(count)
                if machine.step.start is not None:
                    machine.close(now, mark, _ABORTED)
            return  # it began in the process that this one was forked from, or track was lost
        self.depth -= 1
        if not self.depth:
            machine.count_end(count)
            machine.frames.clear()
            if machine.step.had_backward:  # else its forward passes may be all that it does
                machine.decide_passes(is_training=False)
            machine.close(now, mark, _EXPLICIT | _ABORTED if is_aborted else _EXPLICIT)

    def as_plain(self) -> tuple[bool, int, tuple[int, ...]]:
        """What JSON can hold."""
        return self.is_used, self.depth, self.start

    def restore(self, plain: Any) -> None:
        """Know again what `as_plain` was made of."""
        self.is_used, self.depth, (now, mark, outside_ns, spans) = plain
        self.start = (now, mark, outside_ns, spans)
