"""The losses of a rank: which step each belongs to, and which of them are worth a line for ever."""

from __future__ import annotations

from typing import Any, NamedTuple

from traceml.model.record_layout import MAX_LOSS_LAG, StepFlag
from traceml.steps.open_step import OpenStep

MAX_AWAITED = 256
"""Losses that may be on their way from the device; older ones will not come."""

_LOSS_SEEN = int(StepFlag.LOSS_SEEN)


class Milestone(NamedTuple):
    """The first finite loss, or the first that is not, with the last finite one before it."""

    step: int
    value: float
    finite_step: int = 0
    finite_value: float = 0.0


class StepLosses:
    """The losses that gradients were asked for."""

    def __init__(self) -> None:
        self.milestones: list[Milestone] = []
        """New ones; whoever takes them empties the list."""
        self._awaited: dict[int, tuple[int, int]] = {}
        """The record and the step of losses that come later, by their numbers."""
        self.provisional: dict[int, float | None] = {}
        """Losses, by their numbers, that were asked for after an optimizer had stepped: they may be
        the next step's. With their values, where those came before it is known."""
        self._arrived: tuple[float, int] | None = None
        """A loss that came from the device, and the record of its backward pass."""
        self._finite_step = 0
        self._finite_loss = 0.0
        self._is_lost = False

    def take(self, loss: float, step: OpenStep) -> None:
        """Gradients of this loss are asked for."""
        if step.optimizer_end is None:
            step.loss = first_or_lost(step.loss, loss)
        else:
            step.later_loss = first_or_lost(step.later_loss, loss)

    def wait_for(self, number: int, record: int, step: int, is_provisional: bool) -> None:
        """Gradients of a loss on a device are asked for in this step; its value may come later."""
        self._awaited[number] = (record, step)
        if len(self._awaited) > MAX_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        if is_provisional:
            self.provisional[number] = None

    def settle(self, provisional: dict[int, float | None], record: int, step: int) -> None:
        """These losses, which were provisional, belong to this record and step."""
        for number, value in provisional.items():
            self.provisional.pop(number, None)
            if number in self._awaited:
                self._awaited[number] = (record, step)
            if value is not None:
                self.arrive(number, value)

    def arrive(self, number: int, loss: float) -> None:
        """The value of a loss came from the device."""
        if number in self.provisional:
            self.provisional[number] = loss
            return
        record, step = self._awaited.pop(number, (None, 0))
        if record is None:
            return
        self._know(loss, step)
        if self._arrived is None or is_finite(self._arrived[0]):
            self._arrived = loss, record

    def close(self, step: OpenStep, record: int, number: int) -> tuple[float, int, int]:
        """The loss that the record which ends now holds, its flags, and its lag in records."""
        if self.provisional:
            self.settle(self.provisional.copy(), record, number)
        loss = step.loss
        if step.later_loss is not None:
            loss = first_or_lost(loss, step.later_loss)
        if loss is None:
            return self._close_with_arrived(record)
        self._know(loss, number)
        return loss, _LOSS_SEEN, 0

    def _close_with_arrived(self, record: int) -> tuple[float, int, int]:
        if self._arrived is None:
            return 0.0, 0, 0
        (loss, belongs_to), self._arrived = self._arrived, None
        lag = record - belongs_to
        return (loss, _LOSS_SEEN, lag) if lag <= MAX_LOSS_LAG else (0.0, 0, 0)

    def _know(self, loss: float, step: int) -> None:
        """Remember the last finite loss, and note what is worth a line."""
        if is_finite(loss):
            if not self._finite_step:
                self.milestones.append(Milestone(step, loss))
            self._finite_step, self._finite_loss = step, loss
        elif not self._is_lost:
            self._is_lost = True
            self.milestones.append(Milestone(step, loss, self._finite_step, self._finite_loss))

    def as_plain(self) -> dict[str, Any]:
        """What JSON can hold; not the new milestones."""
        return {
            "awaited": list(self._awaited.items()),
            "arrived": self._arrived,
            "finite": (self._finite_step, self._finite_loss),
            "is_lost": self._is_lost,
            "provisional": list(self.provisional.items()),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> StepLosses:
        """The losses that `as_plain` was made of."""
        losses = cls()
        losses._awaited = {number: (record, step) for number, (record, step) in plain["awaited"]}
        if plain["arrived"] is not None:
            value, record = plain["arrived"]
            losses._arrived = (value, record)
        losses._finite_step, losses._finite_loss = plain["finite"]
        losses._is_lost = plain["is_lost"]
        losses.provisional = dict(plain["provisional"])
        return losses


def first_or_lost(first: float | None, later: float) -> float:
    """What stands for several losses of one step: the first, or the first that is not finite.

    The first, because where a step has several losses (a GAN) its values are those of one of them.
    """
    return later if first is None or (not is_finite(later) and is_finite(first)) else first


def is_finite(value: float) -> bool:
    """Whether a number is neither infinite nor none."""
    return value - value == 0.0
