"""Notes what the hooks see: one event of fixed size each, packed straight into the ring.

A hook in the middle of a step finds cold caches, so nothing is done here but taking the moment.
What the events mean is found out elsewhere (`steps`), by whoever reads the ring.

What runs in every step is here twice: in Python (`PythonEvents`), and in C (`recorder.c`) where a
compiler has built it. `Recorder` is made of whichever there is.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any
from zlib import crc32

from traceml.model.environment import WITHOUT_C
from traceml.steps import events
from traceml.steps.events import CAUSE_SHIFT, EVENT, EVENT_BYTES, EVENT_WITH_FLOAT, GC
from traceml.trace.interruptions import is_interruption

STAGED_EVENTS = 4096
"""What is noted before a process takes its first step, for which the ring is made; of more, the
last ones stay."""

MAX_ENDS_PER_FETCH = 16
"""Optimizers that step, or steps that are taken, on one batch: after more the loop is taken for
one that does not fetch."""

_pack = EVENT.pack_into
_pack_float = EVENT_WITH_FLOAT.pack_into


def _nobody() -> None:
    """Stands for a weak reference to nothing."""


def _not_asked_for(_: Any) -> Any:
    """Stands for what no hook has asked to be called."""


class PythonEvents:
    """The state that the hooks share, and the writing of events; in C it is `Events`.

    Slots are reserved before they are written, so that other threads (autograd's, a compiler's)
    may note events too.
    """

    __slots__ = (
        "_next_number",
        "_slots",
        "backwards_open",
        "by_hand",
        "collated_ns",
        "collected_ns",
        "contents_of",
        "copy_target",
        "due_ns",
        "elsewhere_ns",
        "ends",
        "ends_at_fetch",
        "ends_since_fetch",
        "explicit_depth",
        "followed",
        "forward_of",
        "gpu",
        "gpu_index",
        "has_new_marks",
        "identified",
        "is_explicit",
        "is_in_step",
        "is_interrupted",
        "is_loss_scaled",
        "is_watching",
        "iterator",
        "iterator_source",
        "latest_loss",
        "look_at_memory",
        "looks",
        "loss_device",
        "loss_due_ns",
        "loss_due_number",
        "loss_number",
        "loss_step",
        "loss_stream",
        "message_slots",
        "message_writers",
        "messages_at",
        "messages_counted_at",
        "metric_names",
        "modules",
        "modules_seen",
        "noted_ns",
        "optimizer",
        "optimizer_mark",
        "optimizer_number",
        "optimizers",
        "passes",
        "patience",
        "source",
        "step_ends",
        "step_model",
        "stepped_in_backward",
        "stream",
        "timed",
        "trained",
        "training_workers",
        "untimed_steps",
        "usual_passes",
        "watched_models",
        "workers",
        "written",
    )

    collected_ns: deque[int]
    """The time of all garbage collections, as the only item (see `garbage_collection`)."""
    noted_ns: int
    """How much of it has been noted; more than the total is only inside a collection."""
    written: int
    """How many events have been noted."""
    followed: int
    """The thread whose hooks note events at present; 0 while nothing is noted."""
    identified: bool
    """Whether it is written down which rank this process is."""
    looks: list[Callable[[], None]]
    """What wants to be called after each step, as long as it wants to."""
    modules: dict[str, Any]
    """Those that Python has loaded (`sys.modules`) …"""
    modules_seen: int
    """… and how many they were when somebody last looked (see `arrivals`)."""
    is_interrupted: Callable[[BaseException], Any]
    """Says whether an exception is to go on to the script (`Session.goes_on`)."""

    ends: int
    """How often a step has ended, as far as a hook can tell (a GAN's twice)."""
    ends_since_fetch: int
    """How many of these ends came after the last fetch …"""
    ends_at_fetch: int
    """… and how many before it."""
    is_explicit: bool
    """Whether the script bounds its steps itself …"""
    explicit_depth: int
    """… and how many of its `trace_step`s are open …"""
    step_model: Callable[[], Any]
    """… and the model of the last one, if it is still there."""
    by_hand: bool
    """Whether backward passes mark the steps, for want of an optimizer."""

    iterator: Callable[[], Any]
    """The loader's iterator that was fetched from last, if it is still there …"""
    iterator_source: int
    """… with the number of its loader …"""
    workers: int
    """… and how many workers that has."""
    source: int
    """The loader of the last batch …"""
    trained: int
    """… and that of the last step."""
    training_workers: int
    """How many workers the loader has that training fetches from; -1 until that is known."""
    collated_ns: int
    """What loaders without workers have spent on collating since the last fetch ended."""
    contents_of: Callable[[Any], Any]
    """Says how much a batch holds."""

    watched_models: dict[int, Any]
    """Weak references to the models whose calls are timed, by identity."""
    forward_of: int
    """The identity of the one whose call is open; 0 for none."""
    backwards_open: int
    """How many backward passes are open, one inside the other."""
    stepped_in_backward: bool
    """Whether optimizers stepped inside the one that is open."""
    elsewhere_ns: int
    """What a thread of the autograd engine's has compiled for it."""
    is_loss_scaled: bool
    """Whether a `GradScaler` has scaled a loss of which no gradients have been asked for."""
    latest_loss: tuple[Any, int, int] | None
    """The last loss on a GPU that was not sent for: detached, its version, its number …"""
    loss_number: int
    """… the number of the last loss on a GPU, sent for or not …"""
    loss_step: int
    """… the step that it belongs to (`step_key`) …"""
    loss_device: int
    """… its device, -1 before there is one, …"""
    loss_stream: int
    """… and its stream, as CUDA names it: 0 is the default one."""
    loss_due_ns: int
    """When a loss is to be sent for …"""
    loss_due_number: int
    """… or which one Python looks at in any case (`Losses`)."""
    look_at_memory: Callable[[int], Any]
    """Called with the moment where the next backward pass begins …"""
    due_ns: int
    """… once it is this late."""

    optimizer: Callable[[], Any]
    """The optimizer that stepped last, if it is still there …"""
    optimizer_number: int
    """… and its number."""
    optimizers: int
    """How many optimizers step, so far."""
    is_in_step: bool
    """Whether an optimizer that is seen steps: its closures may run backward passes."""
    is_watching: bool
    """Whether a change of the parameters is waited for (see `optimizer_search`)."""
    passes: int
    """Backward passes since the last step of an optimizer …"""
    usual_passes: int
    """… and before that step."""
    patience: int
    """How many of them are nothing to wonder about."""

    messages_at: int
    """Where in the ring the slots of messages begin, …"""
    message_slots: int
    """… how many there are (0 as long as there is no ring), …"""
    messages_counted_at: int
    """… and where it stands how many have been written: what `recorder.c` needs for metrics."""
    message_writers: int
    """Whether a call in Python writes a message at present: 0 or 1."""
    metric_names: dict[tuple[str, ...], bytes]
    """The names of values that were logged together, and the same as a list in JSON."""

    copy_target: Any
    """What the script named the device by when it last copied a tensor to it."""
    gpu: Any
    """The GPU's own clock (`trace.gpu.CudaTimeline`), once the model is known to be on one …"""
    gpu_index: int
    """… and the index of that GPU."""
    timed: bool
    """Whether every phase of the step is marked on the GPU."""
    step_ends: bool
    """Whether the step ends at the next boundary."""
    untimed_steps: int
    """How many steps are to end before the GPU's clock has something to do at a boundary."""
    has_new_marks: bool
    """Whether phases were marked since it was last asked which marks the GPU has passed."""
    stream: int
    """The stream of the last mark, as CUDA names it; -1 before there is one."""
    optimizer_mark: Any
    """What was marked on the GPU as the last optimizer step began."""

    _slots: tuple[Any, int, int]
    """Where events go: a buffer, where the first slot begins, and a mask for the number. One
    object, which another thread finds as it was or as it will be."""
    _next_number: Callable[[], int]

    def write_to(self, buffer: Any, base: int, capacity: int) -> None:
        """Write events into slots that begin at a place in a buffer; how many is a power of two."""
        if not self.written:
            self._next_number = count().__next__
        self._slots = buffer, base, capacity - 1

    @property
    def buffer(self) -> Any:
        """Where events are written to."""
        return self._slots[0]

    def shortcut(self, name: str, slow: Callable[..., Any]) -> Callable[..., Any]:
        """What a hook calls: `slow`; or, in C, a function that handles the plain case itself."""
        return slow

    def note(self, kind: int, argument: float = 0, flags: int = 0) -> int:
        """Something happens now; returns the number of its mark on the GPU, 0 for none."""
        now = perf_counter_ns()
        if self.collected_ns[0] > self.noted_ns:
            self.note_collections()
        mark = 0
        if self.timed:
            mark = self.gpu.mark()
            self.has_new_marks = True
            flags |= self.timed
        number = self._next_number()
        self.written = following = number + 1
        buffer, base, mask = self._slots
        slot = base + (number & mask) * EVENT_BYTES
        pack = _pack_float if type(argument) is float else _pack
        pack(buffer, slot, now, kind, flags, mark, argument, following)
        return mark

    def note_boundary(self, kind: int, argument: int = 0, flags: int = 0) -> int:
        """Something happens where a step may end or begin."""
        now = perf_counter_ns()
        if self.collected_ns[0] > self.noted_ns:
            self.note_collections()
        mark = 0
        if self.gpu is not None:
            flags |= self.timed  # of the step that may end here, before the next is planned
            if self.untimed_steps <= self.step_ends:
                mark = self.gpu.mark_boundary()
            elif self.step_ends:
                self.step_ends = False
                self.untimed_steps -= 1
        number = self._next_number()
        self.written = following = number + 1
        buffer, base, mask = self._slots
        slot = base + (number & mask) * EVENT_BYTES
        _pack(buffer, slot, now, kind, flags, mark, argument, following)
        return mark

    def note_on_host(
        self, kind: int, argument: float = 0, flags: int = 0, mark: int = 0, moment_ns: int = 0
    ) -> None:
        """Something that has no place on the GPU's timeline; its moment is 0 where it does not
        matter.

        What comes in the place of its mark may be any other number.
        """
        number = self._next_number()
        self.written = following = number + 1
        buffer, base, mask = self._slots
        slot = base + (number & mask) * EVENT_BYTES
        pack = _pack_float if type(argument) is float else _pack
        pack(buffer, slot, moment_ns, kind, flags, mark, argument, following)

    def begin_fetch(self, source: int) -> None:
        """A batch is asked for: the step before may end here."""
        self.note_boundary(events.BEGIN_FETCH, source)
        self.source = source
        self.ends_since_fetch = 0
        self.ends_at_fetch = self.ends

    def end_step(self, kind: int, argument: int, flags: int = 0) -> None:
        """Something happens that ends a step, or lets the next fetch end it."""
        if self.gpu is None:
            self.note(kind, argument, flags)  # as nearly always
        elif self.ends_since_fetch < MAX_ENDS_PER_FETCH:
            self.ends_since_fetch += 1
            self.note(kind, argument, flags)
            self.step_ends = True
        else:  # no fetch will end it
            self.step_ends = True
            self.note_boundary(kind, argument, flags)
        self.trained = self.source

    # Garbage collection: no event of its own, since no Python may run where one begins or ends.

    def note_collections(self) -> None:
        """Charge the collections since the last event, in the phase that is still open."""
        total_ns = self.collected_ns[0]
        if total_ns > self.noted_ns:
            self.note_on_host(events.SPEND, total_ns - self.noted_ns, GC << CAUSE_SHIFT)
            self.noted_ns = total_ns


class RecorderInPython(PythonEvents):
    """The events of this process, and what its hooks know about the loop by now."""

    __slots__ = ()

    def __init__(self, collected_ns: deque[int] | None = None) -> None:
        self.collected_ns = deque([0]) if collected_ns is None else collected_ns
        self.noted_ns = self.due_ns = self.modules_seen = 0
        self.looks, self.modules, self.watched_models, self.metric_names = [], {}, {}, {}
        self.is_interrupted = self.contents_of = _not_asked_for
        self.look_at_memory = _not_asked_for
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a forked child: nothing of the parent's is touched."""
        self.written = 0
        self.write_to(bytearray(STAGED_EVENTS * EVENT_BYTES), 0, STAGED_EVENTS)
        self.messages_at = self.message_slots = self.messages_counted_at = self.message_writers = 0
        self.followed = 0
        self.identified = False
        # Steps
        self.ends = self.ends_at_fetch = self.explicit_depth = 0
        self.ends_since_fetch = MAX_ENDS_PER_FETCH
        self.is_explicit = self.by_hand = False
        self.step_model = _nobody
        # Input
        self.iterator = _nobody
        self.iterator_source = self.workers = self.source = self.trained = self.collated_ns = 0
        self.training_workers = -1
        # The model, backward passes and optimizers
        self.forward_of = self.backwards_open = self.elsewhere_ns = 0
        self.stepped_in_backward = self.is_loss_scaled = False
        self.optimizer = _nobody
        self.optimizer_number = self.passes = self.usual_passes = self.patience = 0
        self.optimizers = 1
        self.is_in_step = self.is_watching = False
        # Losses on the GPU, and its clock
        self.latest_loss = None
        self.loss_number = self.loss_stream = self.loss_due_ns = self.loss_due_number = 0
        self.loss_step = self.loss_device = -1
        self.gpu = self.optimizer_mark = self.copy_target = None
        self.timed = self.step_ends = self.has_new_marks = False
        self.untimed_steps = self.gpu_index = 0
        self.stream = -1
        self.skip_collections()

    def move_to(self, buffer: Any, base: int, capacity: int) -> int:
        """Note events in a ring from here on; returns the number of the first that is in it."""
        first = max(0, self.written - STAGED_EVENTS)
        staged = self.buffer
        for number in range(first, self.written):
            slot = number % STAGED_EVENTS * EVENT_BYTES
            place = base + number % capacity * EVENT_BYTES
            buffer[place : place + EVENT_BYTES] = staged[slot : slot + EVENT_BYTES]
        self.write_to(buffer, base, capacity)
        return first

    @property
    def staged(self) -> bytearray | None:
        """Where the events are until there is a ring."""
        return self.buffer if isinstance(self.buffer, bytearray) else None

    def note_backward(self, loss: float | int | None, flags: int = 0) -> int:
        """Gradients of a loss are asked for; returns the moment.

        An integer stands for one that comes later from its device, under this number.
        """
        now = perf_counter_ns()
        if type(loss) is float:
            flags |= events.KNOWN_LOSS
        elif loss is not None:
            flags |= events.AWAITED_LOSS
        self.note(events.BEGIN_BACKWARD, loss or 0, flags)
        return now

    def note_loss(self, number_of_loss: int, loss: float) -> None:
        """The value of a loss has come from the device."""
        self.note_on_host(events.SEE_LOSS, float(loss), 0, number_of_loss)

    def note_spent(self, kind: int, cause: int, duration_ns: int, now_ns: int = 0) -> None:
        """Time that ends now went to a cause."""
        self.note_on_host(kind, duration_ns, cause << CAUSE_SHIFT, 0, now_ns)

    def step_key(self) -> int:
        """A number that stays the same within a step, as far as a hook can tell, and changes from
        step to step or nearly so."""
        if self.ends_since_fetch < MAX_ENDS_PER_FETCH:
            return self.ends_at_fetch
        return self.ends // self.optimizers

    def end_explicit_step(self, argument: int) -> None:
        """An explicit step ends here."""
        self.step_ends = True
        self.note_boundary(events.EXIT_STEP, argument)
        self.trained = self.source

    def skip_collections(self) -> None:
        """Leave the collections since the last event where they happened."""
        self.noted_ns = max(self.noted_ns, self.collected_ns[0])

    def lose_track(self) -> None:
        """Something was interrupted: what it began will not be ended."""
        self.note_on_host(events.LOSE_TRACK)

    def forget_steps(self) -> None:
        """Another thread turns out to train: nothing that was noted so far counts."""
        self.note_on_host(events.FORGET)
        self.optimizer_mark = None
        self.skip_collections()


def events_in_c() -> Any:
    """The module that `recorder.c` was built into; `None` where it is missing or not wanted."""
    if os.environ.get(WITHOUT_C, "") not in ("", "0"):
        return None
    if "t" in getattr(sys, "abiflags", ""):  # a Python without a global lock may load it, and crash
        return None
    try:
        found: Any = importlib.import_module("traceml.trace._recorder")
        source = Path(__file__).with_name("recorder.c")
        # In a checkout it may have been built from an older source.
        is_stale = source.is_file() and crc32(source.read_bytes()) != found.SOURCE_CRC
    except (ImportError, AttributeError, OSError) as error:  # not built here or for this Python
        if is_interruption(error):
            raise
        return None
    return None if is_stale else found


def recorder_of(base: type) -> Any:
    """The class of recorders with another base in the place of `PythonEvents`."""
    own = {name: each for name, each in vars(RecorderInPython).items() if name != "__slots__"}
    return type("Recorder", (base,), {**own, "__slots__": ()})


IN_C = events_in_c()
"""What `Recorder` is made of, for as long as this process lives."""

if TYPE_CHECKING:
    Recorder = RecorderInPython
else:
    Recorder = RecorderInPython if IN_C is None else recorder_of(IN_C.Events)
