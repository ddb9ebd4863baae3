"""Where a step ends, for those who look at whole steps: after its last optimizer, or at the next
fetch.

Hooks tell of each optimizer that steps. In a loop that fetches its batches, and steps several
optimizers on each (a GAN), only the next fetch shows which of them was the step's last.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from traceml.trace import autograd_graph
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.recorder import MAX_ENDS_PER_FETCH
from traceml.trace.session import Session

REMEMBERED_ENDS = 4
"""Optimizers' steps back to which operations count: older numbers may be another thread's, such as
those of the backward passes of a GPU, which count by themselves."""


class FetchWatch:
    """Calls those who want to know before a batch is fetched; as long as nobody does, torch is left
    alone. Made once in a process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._callbacks: list[Callable[[], Any]] = []
        self._restore: Callable[[], None] | None = None
        session.forgets.append(self.forget)

    def add(self, callback: Callable[[], Any]) -> None:
        """Call this before each batch from here on."""
        if callback not in self._callbacks:
            self._callbacks.append(callback)
        if self._restore is None:
            self._put_in()

    def remove(self, callback: Callable[[], Any]) -> None:
        """Call it no more."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)
        if not self._callbacks:
            self._take_out()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self._callbacks.clear()
        self._take_out()

    def _put_in(self) -> None:
        fetch: Any = _BaseDataLoaderIter.__next__
        callbacks = self._callbacks = list(self._callbacks)

        @functools.wraps(fetch)
        def fetch_next(iterator: Any) -> Any:
            try:
                for callback in tuple(callbacks):
                    callback()
                return fetch(iterator)
            except BaseException as error:
                drop_our_frames(error)
                raise

        self._restore = self._session.replace(_BaseDataLoaderIter, "__next__", fetch_next)

    def _take_out(self) -> None:
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()


class StepBoundary:
    """Tells one who looks at whole steps where they end.

    Whoever asks after each optimizer (`steps_ended`) is told there, unless the loop steps several
    on one batch: then `at_fetch` is called with how many steps have ended, as the next is fetched.
    """

    def __init__(
        self, session: Session, fetches: FetchWatch, at_fetch: Callable[[int], None]
    ) -> None:
        """`at_fetch` is a guarded function."""
        self._session, self._fetches, self._at_fetch = session, fetches, at_fetch
        self._see_fetch_guarded = session.guard(self._see_fetch, decides=False)
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self.is_at_fetch = False
        """Whether steps of this loop end where the next batch is fetched."""
        self.stop()

    def stop(self) -> None:
        """Nobody asks for the time being."""
        self._fetches.remove(self._see_fetch_guarded)
        self._counted: int | None = None
        """The steps that were complete when that was last asked."""
        self._stepped: int | None = None
        """The steps that had ended at the last fetch that ended any …"""
        self._ends = -1
        """… and how many ends of optimizers there were by then."""
        self._waited = 0
        """Ends of optimizers since then."""

    def steps_ended(self) -> int:
        """How many steps have ended, as far as an optimizer that has stepped can tell, since this
        was last asked; none the first time.

        Without fetches every second optimizer ends the step of a loop with two. Where one of them
        steps more often (a critic, before its generator), two may be known to have ended at once.
        """
        session = self._session
        before, self._counted = self._counted, session.count_steps()
        if session.recorder.is_explicit:
            self.is_at_fetch = False
        elif before == self._counted and session.fetched_in_step():
            self.is_at_fetch = True  # two optimizers on one batch: a third one may come
        if self.is_at_fetch:
            self._waited += 1
            self.is_at_fetch = self._waited <= MAX_ENDS_PER_FETCH
        if self.is_at_fetch:
            self._fetches.add(self._see_fetch_guarded)
            return 0
        self._fetches.remove(self._see_fetch_guarded)
        return 0 if before is None else self._counted - before

    def _see_fetch(self) -> None:
        """A batch is fetched: the first of a step, if optimizers have stepped since the last."""
        ends = self._session.recorder.ends
        if ends == self._ends:
            return  # a further batch of the same step, or one of an evaluation
        self._ends, self._waited = ends, 0
        before, self._stepped = self._stepped, self._session.count_stepped()
        self._at_fetch(1 if before is None else max(1, self._stepped - before))


class EarlierOperations:
    """Knows what was computed shortly before a look: a backward pass may go through it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self._at_ends: deque[int] = deque([0], maxlen=REMEMBERED_ENDS)
        """The number that an operation would have had after each of the last optimizer steps."""
        self._before = (0, 0)
        """The first of these as the look began, and the number of the look's own first one."""

    def note_end(self) -> None:
        """An optimizer has stepped."""
        self._at_ends.append(autograd_graph.next_operation())

    def begin_look(self) -> None:
        """What is done from here on is the look's own."""
        self._before = self._at_ends[0], autograd_graph.next_operation()

    def are_behind(self, loss: Any) -> bool:
        """Whether the graph of a loss holds any of them."""
        return autograd_graph.has_operation_between(loss, *self._before)
