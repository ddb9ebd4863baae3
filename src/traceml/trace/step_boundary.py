"""Tells those who look at whole steps where a step ends: after its last optimizer, or at the next
fetch.

Hooks report each optimizer that steps. In a loop that fetches its batches, and steps several
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
"""Operations count back to so many optimizer steps ago. Older numbers may be another thread's, such
as those of backward passes on a GPU, which are numbered separately."""


class FetchWatch:
    """Calls functions before each batch is fetched. Without such functions torch is not patched.
    Made once in a process."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._callbacks: list[Callable[[], Any]] = []
        self._restore: Callable[[], None] | None = None
        session.forgets.append(self.forget)

    def add(self, callback: Callable[[], Any]) -> None:
        """Calls this function before each batch from now on."""
        if callback not in self._callbacks:
            self._callbacks.append(callback)
        if self._restore is None:
            self._put_in()

    def remove(self, callback: Callable[[], Any]) -> None:
        """Stops calling this function."""
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
    """Tells one observer of whole steps where they end.

    The observer asks after each optimizer (`steps_ended`). In a loop that steps several optimizers
    on one batch, the answer is 0, and `at_fetch` is called at the next fetch with the number of
    steps that have ended.
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
        """Stops watching fetches until the next question."""
        self._fetches.remove(self._see_fetch_guarded)
        self._counted: int | None = None
        """The number of complete steps at the last call of `steps_ended`."""
        self._stepped: int | None = None
        """The number of ended steps at the last fetch that followed an optimizer step …"""
        self._ends = -1
        """… and the number of optimizer steps by then."""
        self._waited = 0
        """Optimizer steps since then."""

    def steps_ended(self) -> int:
        """How many steps have ended since the last call, as far as can be told when an optimizer
        has just stepped; 0 for the first call.

        In a loop without fetches that has two optimizers, every second one ends a step. Where one
        of them steps more often (a critic, before its generator), two steps may turn out to have
        ended at once.
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
        """Reports ended steps, if optimizers have stepped since the last fetch: then this fetch is
        the first of a step."""
        ends = self._session.recorder.ends
        if ends == self._ends:
            return  # a further batch of the same step, or one of an evaluation
        self._ends, self._waited = ends, 0
        before, self._stepped = self._stepped, self._session.count_stepped()
        self._at_fetch(1 if before is None else max(1, self._stepped - before))


class EarlierOperations:
    """Tells whether a backward pass goes through operations that were computed shortly before a
    look began."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child."""
        self._at_ends: deque[int] = deque([0], maxlen=REMEMBERED_ENDS)
        """The number that an operation would have had after each of the last optimizer steps."""
        self._before = (0, 0)
        """The number of the first remembered operation when the look began, and of the look's own
        first one."""

    def note_end(self) -> None:
        """Notes that an optimizer has stepped."""
        self._at_ends.append(autograd_graph.next_operation())

    def begin_look(self) -> None:
        """Begins a look: operations from now on are its own."""
        self._before = self._at_ends[0], autograd_graph.next_operation()

    def are_behind(self, loss: Any) -> bool:
        """Whether the graph of a loss holds operations from before the look."""
        return autograd_graph.has_operation_between(loss, *self._before)
