"""Steps in which floating-point operations are counted: one in a run, since it is slow, and another
one where batches have changed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceml.model.layer_names import SAME_SIZE
from traceml.trace.deep.layer_file import LayerFile, by_place
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import OUTSIDE
from traceml.trace.deep.operations import OperationCount
from traceml.trace.models import something_may_be_compiled
from traceml.trace.session import Session

MAX_COUNTS = 4
"""How often a process tries to count a step at most."""
COMPILED = (
    "this script uses torch.compile, and torch does not show what compiled code does; run with "
    "TORCH_COMPILE_DISABLE=1, they are counted"
)
OTHERS_BEFORE = (
    "Floating-point operations are counted from the first call of a model that trains on: those of "
    "other modules that run before it, such as a teacher, are not counted"
)


class OperationSteps:
    """Counts operations by layer."""

    def __init__(self, session: Session, file: LayerFile) -> None:
        self._session, self._file = session, file
        self._count: OperationCount | None = None
        self._has_backward = True
        self._layers: Sequence[ModelLayer] = ()
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self._given_elements = self._counts = 0

    def is_outdated(self, latest_elements: Sequence[int]) -> bool:
        """Whether batches have changed for good since the step that was counted; the elements are
        those of the latest timed steps, empty as long as there are too few of them."""
        if not self._given_elements or not latest_elements or self._counts >= MAX_COUNTS:
            return False
        least, most = min(latest_elements), max(latest_elements)
        is_steady = 0 < most <= SAME_SIZE * least
        counted = self._given_elements
        return is_steady and (least > SAME_SIZE * counted or SAME_SIZE * most < counted)

    def begin(self, layers: Sequence[ModelLayer]) -> bool:
        """Count in the step that begins; not where it may be the first to call compiled code.

        Torch does not compile inside a mode like ours, and some versions never try again.
        """
        if something_may_be_compiled():
            self._say(COMPILED)
            return False
        self._layers, self._has_backward = layers, True
        self._counts += 1
        self._count = OperationCount(self._session, layers)
        self._count.begin()
        return True

    def lose_backward(self) -> None:
        """A backward pass goes through what was computed before the step: a part of the step's
        operations is nothing to go by."""
        self._has_backward = False

    def end(self, step: int, steps: int = 1) -> str | None:
        """The step has ended; why it was not seen to its end, `None` where it was."""
        counted = self._count
        if counted is None:
            return None
        is_new = counted.is_counting
        counted.end()
        if is_new and counted.is_complete and self._has_backward:
            line: dict[str, Any] = {"step": step}
            for name, values in counted.by_layer().items():
                per_step = {place: round(value / steps) for place, value in values.items()}
                line[name] = by_place(per_step, len(self._layers))
                line[f"outside_{name}"] = per_step.get(OUTSIDE, 0)
            line["uncounted"] = counted.uncounted()
            self._given_elements = round(counted.given_elements / steps)
            if self._given_elements:
                line["given_elements"] = self._given_elements
            self._file.write(self._layers, line)
            if counted.has_others_before:
                self._file.say(OTHERS_BEFORE)
        elif counted.lost is None and not counted.is_complete:
            self._say(counted.why_nothing)
        return counted.lost

    def _say(self, why: str) -> None:
        """Write why operations are not counted."""
        self._file.say(why, "why_uncounted")

    def take_out(self) -> bool:
        """Take everything out of torch; whether nothing of it is left there."""
        if self._count is not None:
            if not self._count.end():
                return False
            self._count = None
        self._layers = ()
        return True
