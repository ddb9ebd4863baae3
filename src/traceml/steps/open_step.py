"""What is known of the step that is under way."""

from __future__ import annotations

from typing import Any

from traceml.model.record_layout import NOT_MEASURED
from traceml.steps.events import AFTER_EVALUATION, CHECKPOINT, EVALUATION, INPUT, SYNC, TOTALS

Span = tuple[int, int, int, "int | None"]
"""A phase between two marks on the GPU's timeline, and the phase it lies inside, if any."""


class OpenStep:
    """Everything that the step under way has shown so far; the next step gets a new one.

    The first half is the step's own. The second is what came since the last fetch: whether that was
    training shows only later, so that it can be taken back to the snapshot made at the fetch.
    """

    __slots__ = (
        "aborted",
        "allocated",
        "dry",
        "evaluated_at",
        "evaluation_end",
        "fetch_over",
        "fetched",
        "fetched_at",
        "fetched_in_step",
        "fetched_mark",
        "had_backward",
        "had_forward",
        "had_training_forward",
        "is_exhausted",
        "is_torn",
        "later_loss",
        "loss",
        "optimizer_end",
        "reserved",
        "rss",
        "seen",
        "snapshot",
        "snapshot_spans",
        "spans",
        "start",
        "start_mark",
        "stepped",
        "totals",
        "undecided",
    )

    def __init__(self, start: int | None, mark: int, empty: list[int]) -> None:
        self.start = start
        """When it began; `None` before training begins."""
        self.start_mark = mark
        self.totals = empty.copy()
        self.spans: list[Span] = []
        self.stepped: set[int] = set()
        """The optimizers that have stepped."""
        self.aborted = False
        self.is_torn = False
        """Events of it were lost: it is no complete step, however it goes on."""
        self.dry: bool | None = None
        """Whether the GPU's queue had run dry when the optimizer had stepped."""
        self.seen = 0
        """Flags of what was looked at."""
        self.rss = self.allocated = self.reserved = NOT_MEASURED
        self.loss: float | None = None
        """The loss of the first backward pass, or the first that is not finite."""
        self.later_loss: float | None = None
        """A loss since the optimizer stepped: it may be the next step's."""
        self.optimizer_end: tuple[int, int, list[int], int] | None = None
        """Where the last optimizer step ended, in case the step turns out to have ended there."""
        self.fetched_in_step = False
        self.make_provisional(start or 0, mark, empty)

    def make_provisional(self, now: int, mark: int, before: list[int]) -> None:
        """What comes from here on may be taken back to these totals."""
        self.fetched_at = now
        self.fetched_mark = mark
        self.snapshot = before
        self.snapshot_spans = len(self.spans)
        self.fetched = self.fetch_over = self.is_exhausted = False
        self.had_backward = self.had_forward = self.had_training_forward = False
        self.evaluated_at: int | None = None
        self.undecided: list[tuple[int, int, int, bool]] = []
        """Forward passes in evaluation mode since the first that keeps gradients and has had no
        backward pass yet: how long each took itself, when it ended, where its span is (-1: it has
        none), and whether it keeps gradients."""
        self.evaluation_end: tuple[int, int, int] | None = None
        """Where the present evaluation would end if nothing more of it comes: after its last
        forward pass, batch or region; with the time of checkpoints, and of waits for the device, up
        to then."""

    def may_end_evaluation(self, now: int) -> None:
        """Notes a possible end of an evaluation; the last such moment counts, if this turns out to
        be one."""
        self.evaluation_end = (now, self.totals[CHECKPOINT], self.totals[SYNC])

    def outside_body_ns(self) -> int:
        """The time so far outside of the body: input wait, evaluation and what follows it,
        checkpoints."""
        totals = self.totals
        waited = totals[INPUT]
        between = totals[EVALUATION] + totals[AFTER_EVALUATION] + totals[CHECKPOINT]
        return (waited if waited > 0 else 0) + between

    def as_plain(self) -> dict[str, Any]:
        """What JSON can hold."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {**found, "stepped": sorted(self.stepped)}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> OpenStep:
        """The step that `as_plain` was made of, also an earlier version's, which knew of less."""
        step = cls(None, 0, [])
        for name in cls.__slots__:
            if name in plain:
                setattr(step, name, plain[name])
        step.totals, step.snapshot = with_all_totals(step.totals), with_all_totals(step.snapshot)
        step.stepped = set(plain["stepped"])
        step.spans = [(phase, first, last, outer) for phase, first, last, outer in plain["spans"]]
        if plain["optimizer_end"] is not None:
            end, mark, totals, spans = plain["optimizer_end"]
            step.optimizer_end = (end, mark, with_all_totals(totals), spans)
        if step.evaluation_end is not None:
            moment, saved, waited = step.evaluation_end
            step.evaluation_end = (moment, saved, waited)
        return step


def with_all_totals(totals: list[int]) -> list[int]:
    """Returns saved totals, padded with zeros for those that an earlier version did not have."""
    return totals + [0] * (TOTALS - len(totals))
