"""Notes what the hooks see: one event of fixed size each, packed straight into the ring.

A hook in the middle of a step finds cold caches, so nothing is done here but taking the moment.
What the events mean is found out elsewhere (`steps`), by whoever reads the ring.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from time import perf_counter_ns
from typing import Any

from traceml.steps import events
from traceml.steps.events import CAUSE_SHIFT, EVENT, EVENT_BYTES, EVENT_WITH_FLOAT, GC

STAGED_EVENTS = 4096
"""What is noted before a process takes its first step, for which the ring is made; of more, the
last ones stay."""

MAX_ENDS_PER_FETCH = 16
"""Optimizers that step, or steps that are taken, on one batch: after more the loop is taken for
one that does not fetch."""

_pack = EVENT.pack_into
_pack_float = EVENT_WITH_FLOAT.pack_into


class Recorder:
    """The events of this process.

    Slots are reserved before they are written, so that other threads (autograd's, a compiler's)
    may note events too.
    """

    __slots__ = (
        "_collected_ns",
        "_next_number",
        "_slots",
        "ends",
        "ends_at_fetch",
        "ends_since_fetch",
        "gpu",
        "noted_ns",
        "optimizer_mark",
        "optimizers",
        "source",
        "trained",
        "written",
    )

    def __init__(self, collected_ns: deque[int] | None = None) -> None:
        self._collected_ns = deque([0]) if collected_ns is None else collected_ns
        """The time of all garbage collections, as the only item (see `garbage_collection`)."""
        self.noted_ns = 0
        """How much of it has been noted; more than the total is only inside a collection."""
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a forked child: nothing of the parent's is touched."""
        staged: Any = bytearray(STAGED_EVENTS * EVENT_BYTES)
        self._slots = staged, 0, STAGED_EVENTS - 1
        """Where events go: a buffer, where the first slot begins, and a mask for the number. One
        object, which another thread finds as it was or as it will be."""
        self._next_number = count().__next__
        self.gpu: Any = None
        """The GPU's own clock (`trace.gpu.CudaTimeline`), once the model is known to be on one."""
        self.optimizer_mark: Any = None
        """What was marked on the GPU as the last optimizer step began."""
        self.written = 0
        """How many events have been noted."""
        self.ends = 0
        """How often a step has ended, as far as a hook can tell (a GAN's twice)."""
        self.ends_since_fetch = MAX_ENDS_PER_FETCH
        """How many of these ends came after the last fetch."""
        self.ends_at_fetch = 0
        """How many of these ends came before the last fetch."""
        self.optimizers = 1
        """How many optimizers step, so far."""
        self.source = 0
        """The loader of the last batch …"""
        self.trained = 0
        """… and that of the last step."""
        self.skip_collections()

    def move_to(self, buffer: Any, base: int, capacity: int) -> int:
        """Note events in a ring from here on; returns the number of the first that is in it."""
        first = max(0, self.written - STAGED_EVENTS)
        staged, _, mask = self._slots
        for number in range(first, self.written):
            slot = (number & mask) * EVENT_BYTES
            place = base + number % capacity * EVENT_BYTES
            buffer[place : place + EVENT_BYTES] = staged[slot : slot + EVENT_BYTES]
        self._slots = buffer, base, capacity - 1
        return first

    @property
    def staged(self) -> bytearray | None:
        """Where the events are until there is a ring."""
        buffer = self._slots[0]
        return buffer if isinstance(buffer, bytearray) else None

    def note(self, kind: int, argument: int = 0, flags: int = 0) -> int:
        """Something happens now; returns the number of its mark on the GPU, 0 for none."""
        now = perf_counter_ns()
        if self._collected_ns[0] > self.noted_ns:
            self.note_collections()
        mark, gpu = 0, self.gpu
        if gpu is not None:
            mark = gpu.mark()
            flags |= gpu.timed
        number = self._next_number()
        self.written = following = number + 1
        buffer, base, mask = self._slots
        slot = base + (number & mask) * EVENT_BYTES
        _pack(buffer, slot, now, kind, flags, mark, argument, following)
        return mark

    def note_boundary(self, kind: int, argument: int = 0, flags: int = 0) -> None:
        """Something happens where a step may end or begin."""
        now = perf_counter_ns()
        if self._collected_ns[0] > self.noted_ns:
            self.note_collections()
        mark, gpu = 0, self.gpu
        if gpu is not None:
            flags |= gpu.timed  # of the step that may end here, before the next is planned
            mark = gpu.mark_boundary()
        number = self._next_number()
        self.written = following = number + 1
        buffer, base, mask = self._slots
        slot = base + (number & mask) * EVENT_BYTES
        _pack(buffer, slot, now, kind, flags, mark, argument, following)

    def note_backward(self, loss: float | int | None) -> int:
        """Gradients of a loss are asked for; returns the moment.

        An integer stands for one that comes later from its device, under this number.
        """
        now = perf_counter_ns()
        if self._collected_ns[0] > self.noted_ns:
            self.note_collections()
        mark, flags, gpu, pack = 0, events.KNOWN_LOSS, self.gpu, _pack_float
        if gpu is not None:
            mark = gpu.mark()
            flags |= gpu.timed
        if type(loss) is not float:
            pack = _pack
            flags ^= events.KNOWN_LOSS if loss is None else events.KNOWN_LOSS | events.AWAITED_LOSS
        number = self._next_number()
        self.written = following = number + 1
        buffer, base, mask = self._slots
        slot = base + (number & mask) * EVENT_BYTES
        pack(buffer, slot, now, events.BEGIN_BACKWARD, flags, mark, loss or 0, following)
        return now

    def note_on_host(self, kind: int, argument: int = 0, flags: int = 0, mark: int = 0) -> None:
        """Something that has no place on the GPU's timeline, and whose moment does not matter.

        What comes in the place of its mark may be any other number.
        """
        number = self._next_number()
        self.written = following = number + 1
        buffer, base, mask = self._slots
        slot = base + (number & mask) * EVENT_BYTES
        _pack(buffer, slot, 0, kind, flags, mark, argument, following)

    def note_loss(self, number_of_loss: int, loss: float) -> None:
        """The value of a loss has come from the device."""
        number = self._next_number()
        self.written = following = number + 1
        buffer, base, mask = self._slots
        slot = base + (number & mask) * EVENT_BYTES
        _pack_float(buffer, slot, 0, events.SEE_LOSS, 0, number_of_loss, loss, following)

    def note_spent(self, kind: int, cause: int, duration_ns: int) -> None:
        """Time that ends now went to a cause."""
        self.note_on_host(kind, duration_ns, cause << CAUSE_SHIFT)

    def begin_fetch(self, source: int) -> None:
        """A batch is asked for: the step before may end here."""
        self.note_boundary(events.BEGIN_FETCH, source)
        self.source = source
        self.ends_since_fetch = 0
        self.ends_at_fetch = self.ends

    def step_key(self) -> int:
        """A number that stays the same within a step, as far as a hook can tell, and changes from
        step to step or nearly so."""
        if self.ends_since_fetch < MAX_ENDS_PER_FETCH:
            return self.ends_at_fetch
        return self.ends // self.optimizers

    def end_step(self, kind: int, argument: int, flags: int = 0) -> None:
        """Something happens that ends a step, or lets the next fetch end it."""
        gpu = self.gpu
        if gpu is None:
            self.note(kind, argument, flags)  # as nearly always
        elif self.ends_since_fetch < MAX_ENDS_PER_FETCH:
            self.ends_since_fetch += 1
            self.note(kind, argument, flags)
            gpu.step_ends()
        else:  # no fetch will end it
            gpu.step_ends()
            self.note_boundary(kind, argument, flags)
        self.trained = self.source

    def end_explicit_step(self, argument: int) -> None:
        """An explicit step ends here."""
        if self.gpu is not None:
            self.gpu.step_ends()
        self.note_boundary(events.EXIT_STEP, argument)
        self.trained = self.source

    # Garbage collection: no event of its own, since no Python may run where one begins or ends.

    def note_collections(self) -> None:
        """Charge the collections since the last event, in the phase that is still open."""
        total_ns = self._collected_ns[0]
        if total_ns > self.noted_ns:
            self.note_spent(events.SPEND, GC, total_ns - self.noted_ns)
            self.noted_ns = total_ns

    def skip_collections(self) -> None:
        """Leave the collections since the last event where they happened."""
        self.noted_ns = max(self.noted_ns, self._collected_ns[0])

    def lose_track(self) -> None:
        """Something was interrupted: what it began will not be ended."""
        self.note_on_host(events.LOSE_TRACK)

    def forget_steps(self) -> None:
        """Another thread turns out to train: nothing that was noted so far counts."""
        self.note_on_host(events.FORGET)
        self.optimizer_mark = None
        self.skip_collections()
