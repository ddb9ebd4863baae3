"""The tracer of this process: its ring, its hooks, and the guard that keeps training safe."""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from traceml.model.environment import OOM_SNAPSHOT, TRAINER_MARK, TROUBLE_MARK
from traceml.model.failure import STACKS_SUFFIX
from traceml.model.printable import printable
from traceml.model.rank import Rank
from traceml.steps import events
from traceml.trace import ring as rings
from traceml.trace.failure import Failures
from traceml.trace.forked import keep_for_ever
from traceml.trace.garbage_collection import CollectionTime
from traceml.trace.interpreter import introduce
from traceml.trace.interruptions import drop_our_frames, is_interruption
from traceml.trace.marks import write_first_mark
from traceml.trace.messages import Messages
from traceml.trace.place import place
from traceml.trace.recorder import Recorder
from traceml.trace.regions import Regions
from traceml.trace.script_objects import Numbers
from traceml.trace.stacks import answer_with_stacks
from traceml.trace.step_count import StepCount

if TYPE_CHECKING:
    from traceml.trace.explicit import ExplicitSteps
    from traceml.trace.open_trackers import OpenTrackers

TOO_MANY_FAILURES = 1000
"""Exceptions of our own after which the tracer takes itself out of the process."""
MAX_EARLY_ENDS = 4
"""Optimizer steps after which no other thread is taken for the one that trains."""
LAST_LOOK_S = 0.05
"""How long the end of the process may be held up for the GPU times of the last steps."""


class Session:
    """Tracing in one process; it makes no file before the first step or the first logged value."""

    def __init__(self, run_folder: Path, ring_folder: Path | None, max_steps: int | None) -> None:
        self.run_folder = run_folder
        self.max_steps = max_steps
        self.ring: rings.Ring | None = None
        self.device = "cpu"
        self._thread: int | None = None
        self._tracing = True
        self.active = True
        """Whether anything is still recorded: steps, or what the script logs."""
        self.is_forked = False
        """Whether this process was forked from one that traces, and has not begun anew yet."""
        self.restores: list[Callable[[], None]] = []
        self.running_hooks: list[Callable[[], None]] = []
        """What removes those hooks that were running when the others were taken out."""
        self.forgets: list[Callable[[], None]] = []
        """What a forked child calls to begin anew."""
        self.look_for_modules: Callable[[], None] = _nothing
        self.before_last_record: list[Callable[[], None]] = []
        """What wants to be called before the last record is closed."""
        self._folders = [ring_folder, run_folder] if ring_folder else [run_folder]
        self._failures = 0
        self.pid = os.getpid()
        self.collections = CollectionTime()
        self.recorder = Recorder(self.collections.total_ns)
        self.recorder.modules = sys.modules
        self.recorder.is_interrupted = self.goes_on
        self.looks = self.recorder.looks
        """What is called after each step, in the training thread."""
        self.on_memory_reading: list[Callable[[], None]] = []
        """What is called with the readings of memory, at most ten times a second."""
        self.on_loss_arrived: list[Callable[[float], None]] = []
        """Called with losses that were copied from a device, from time to time."""
        self.open_closures = 0
        """Closures of optimizers' steps that run. One that Ctrl-C cut off may be among them."""
        self.told_of_waiting: list[Callable[[int], None]] = []
        """Called where waiting for other ranks begins and ends, with the kind of event."""
        self.open_trackers: OpenTrackers | None = None
        self._count = StepCount(self.recorder, max_steps or 0)
        self.optimizers = Numbers()
        """The numbers of optimizers, and of models that stand for an unknown one."""
        self._call_guarded = self.guard(_call, any_thread=True)
        if max_steps is not None:
            self.looks.append(self._stop_when_done)
        # What a script may say for itself; `steps` is there once torch is.
        self.steps: ExplicitSteps | None = None
        self.begin_deep_profile: Callable[[], None] = _nothing
        self.regions = Regions(self)
        self.messages = Messages(self)
        self.failures = Failures(self)
        self._stacks: object = None
        self._ends_with_worker = False

    @property
    def thread(self) -> int | None:
        """The thread that trains, once one is known to."""
        return self._thread

    @property
    def tracing(self) -> bool:
        """Whether the hooks are in, and note events."""
        return self._tracing

    @tracing.setter
    def tracing(self, is_on: bool) -> None:
        self._tracing = is_on
        self.recorder.followed = self._thread or 0 if is_on else 0

    @property
    def backwards_open(self) -> int:
        """How many backward passes are open, one inside the other."""
        return self.recorder.backwards_open

    @backwards_open.setter
    def backwards_open(self, count: int) -> None:
        self.recorder.backwards_open = count

    # The guard

    def guard(
        self,
        function: Callable[..., Any],
        any_thread: bool = False,
        decides: bool = True,
        failed: Callable[[BaseException], None] | None = None,
    ) -> Callable[..., Any]:
        """Make one of our functions safe to call from training: it may fail, training goes on.

        Its failures are ours, and counted as such, unless `failed` takes them.

        Only the training thread is followed, unless asked otherwise: a fetch in a prefetching
        thread holds up nobody. As long as none trains, the first thread that calls what `decides`
        is taken for the one that does. What interrupts our function (a signal's handler that
        raises) is the script's and goes on to it.
        """
        recorder = self.recorder

        def guarded(*arguments: Any) -> Any:
            try:
                if recorder.followed != get_ident() and self._refuses(any_thread, decides):
                    return None
                return function(*arguments)
            except BaseException as error:  # counted, and shown in the summary
                if is_interruption(error):
                    self._leave_to_script(error)
                    raise
                (failed or self.failed)(error)
                return None

        return guarded

    def guard_step(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The same for what runs in every step: with one argument, in the training thread.

        A call with a given number of arguments takes half the time of one with any number.
        """
        recorder = self.recorder

        def guarded(argument: Any) -> Any:
            try:
                if recorder.followed != get_ident() and self._refuses(False, True):
                    return None
                return function(argument)
            except BaseException as error:  # counted, and shown in the summary
                if is_interruption(error):
                    self._leave_to_script(error)
                    raise
                self.failed(error)
                return None

        return guarded

    def shortcut(self, name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The same, guarded only where it is not the plain case that `recorder.c` handles."""
        return self.recorder.shortcut(name, self.guard_step(function))

    def goes_on(self, error: BaseException) -> bool:
        """Whether an exception that left `recorder.c` is somebody else's, and goes on."""
        is_theirs = is_interruption(error)
        if is_theirs:
            self._leave_to_script(error)
        return is_theirs

    def _leave_to_script(self, error: BaseException) -> None:
        """An exception goes on to the script, as if none of our code had been running."""
        self.lose_track()
        drop_our_frames(error)

    def _refuses(self, any_thread: bool, decides: bool) -> bool:
        """Whether a call is not recorded: nothing is any more, or another thread trains."""
        if self.is_forked:
            self.forget_parent()
        if any_thread:
            return not self.active
        if not self._tracing:
            return True
        if self._thread is None and decides:
            self._follow(get_ident())
        return self._thread != get_ident()

    def lose_track(self) -> None:
        """A hook was left in the middle: what it began will not be ended."""
        if self._thread == get_ident() and not self.is_forked:
            self.recorder.explicit_depth = 0
            self.recorder.lose_track()

    def _follow(self, thread: int | None) -> None:
        self._thread = thread
        self.recorder.followed = thread or 0 if self._tracing else 0
        self.collections.threads.clear()
        if thread is not None:
            self.collections.threads.add(thread)

    def failed(self, error: BaseException) -> None:
        """Count an exception of our own; too many of them end tracing."""
        self._failures += 1
        # As Python itself shows it: the text may be a user's `__str__`, which may fail.
        text = str(traceback.TracebackException(type(error), error, None))
        if self.ring is not None:
            self.ring.count_failure(f"{type(error).__name__}: {text}")
        if self._failures == TOO_MANY_FAILURES:
            self.say(f"tracing is off: it failed {self._failures} times, last with: {text}")
            self.stop()

    def follow_this_thread(self) -> None:
        """An optimizer steps here: before the first step that decides which thread trains."""
        me = get_ident()
        if self._thread == me or self.is_forked:
            return
        is_early = self.recorder.ends <= MAX_EARLY_ENDS and not self.recorder.backwards_open
        if is_early and self.count_steps() == 0:
            self._follow(me)
            self.recorder.forget_steps()

    def replace(self, owner: Any, name: str, replacement: Any) -> Callable[[], None]:
        """Set an attribute of torch's; returns the way back, which is also taken at the end.

        The way back restores what was there, or its absence.
        """
        attributes = vars(owner)
        had, original = name in attributes, attributes.get(name)
        setattr(owner, name, replacement)

        def restore() -> None:
            if vars(owner).get(name) is not replacement:
                return  # the user has replaced it since: theirs stays, ours lets everything through
            if had:
                setattr(owner, name, original)
            else:
                delattr(owner, name)
            if restore in self.restores:  # what is replaced again and again adds up otherwise
                self.restores.remove(restore)

        self.restores.append(restore)
        return restore

    # The ring

    def open(self) -> rings.Ring | None:
        """The ring; made when it is first needed, identified anew when the first step begins."""
        if self.ring is None and self.active:
            try:
                self.ring = ring = rings.create(self._folders, _ring_name())
            except OSError as error:
                if is_interruption(error):
                    raise
                self.disable(f"there is no room for the records of process {os.getpid()}: {error}")
                return None
            place = ring.mapping, ring.event_base, ring.event_capacity
            ring.begin_events(self.recorder.move_to(*place), self.max_steps or 0)
            self.messages.use_ring(ring)
            ring.identify(self._identity())
            if not self.tracing:
                self.ring.mark_recording_ended()
            self.end_with_worker()
        return self.ring

    def end_with_worker(self) -> None:
        """A rank that multiprocessing started skips `atexit`: its own finalizers end it."""
        multiprocessing: Any = sys.modules.get("multiprocessing")
        if self._ends_with_worker or multiprocessing is None:
            return
        if multiprocessing.parent_process() is not None:
            from multiprocessing.util import Finalize

            self._ends_with_worker = True
            Finalize(None, self.finish, exitpriority=100)

    def identify(self) -> None:
        """Write who this is: from the first step on its rank and device are known."""
        if not self.recorder.identified and self.open() is not None:
            assert self.ring is not None
            identity = self._identity()
            self.ring.identify(identity)
            self.recorder.identified = (
                True  # from here on: an interruption before it begins this again
            )
            self.guard(self._answer_with_stacks, any_thread=True)(self.ring.path)
            if identity.local_rank == 0:  # always the same one speaks for the run
                self.guard(introduce, any_thread=True)(self.run_folder, TRAINER_MARK)

    def _answer_with_stacks(self, ring: Path) -> None:
        self._stacks = answer_with_stacks(ring.with_suffix(STACKS_SUFFIX))  # kept open

    def rank(self) -> int:
        """This process's global rank, as far as it is known by now."""
        return place()[0]

    def follow_cuda(self, index: int) -> None:
        """The model lives on a CUDA device: time its phases there as well."""
        from traceml.trace.gpu import CudaTimeline, record_memory_history

        ring = self.open()
        if ring is not None:
            self.device = f"cuda:{index}"
            self.recorder.gpu = CudaTimeline(self.recorder, index)
            if os.environ.get(OOM_SNAPSHOT) == "1":
                self.guard(record_memory_history, any_thread=True)()
            if self.recorder.identified:  # an explicit step began before its model was known
                ring.identify(self._identity())

    def _identity(self) -> Rank:
        rank, world, local_rank, local_world, node = place()
        name, total, uuid = _describe(self.device)
        return Rank(
            rank=rank,
            local_rank=local_rank,
            world_size=world,
            local_world_size=local_world,
            node_rank=node,
            pid=os.getpid(),
            hostname=socket.gethostname(),
            device=self.device,
            device_name=name,
            device_total_bytes=total,
            monotonic_ns=time.perf_counter_ns(),
            unix_ns=time.time_ns(),
            process_unix_ns=_process_start_ns(),
            device_uuid=uuid,
        )

    # Steps

    def count_steps(self, events_before: int | None = None) -> int:
        """How many complete steps there were, so far or when so many events had been noted.

        It is exact, and takes too long for every step.
        """
        before = self.recorder.written if events_before is None else events_before
        return self._count.at(self.ring, before)

    def count_stepped(self) -> int:
        """The number of the step whose optimizer stepped last; in `looks`, of the one that ended.

        A step that fetches batches is complete only when the next one is fetched.
        """
        return self._count.stepped(self.ring, self.recorder.written)

    def count_begun(self) -> int:
        """The number of the step that is open, before a backward pass begins in it.

        Where backward passes mark the steps, the one before is complete only as this pass begins.
        """
        return (self.count_stepped() if self.marks_by_backward else self.count_steps()) + 1

    @property
    def marks_by_backward(self) -> bool:
        """Whether each backward pass is a step: the script has no optimizer, nor steps of its
        own."""
        return bool(self.recorder.by_hand and not self.recorder.is_explicit)

    def fetched_in_step(self) -> bool:
        """Whether the step that is open, or has just ended, has fetched a batch itself."""
        return self._count.has_fetched(self.ring, self.recorder.written)

    def mark_by_backward(self, is_by_hand: bool) -> None:
        """Backward passes mark the steps from here on, or no longer."""
        if self.recorder.by_hand != is_by_hand:
            self.recorder.by_hand = is_by_hand
            self.recorder.note_on_host(events.MARK_BY_BACKWARD, is_by_hand)

    def after_step(self) -> None:
        """A step has ended, as far as a hook can tell: let those look who want to."""
        recorder = self.recorder
        if recorder.has_new_marks:
            recorder.gpu.resolve()
        self.find_new_modules()
        if self.looks:
            for callback in tuple(self.looks):
                self._call_guarded(callback)

    def find_new_modules(self) -> None:
        """Calls those who wait for a module, if modules were loaded since the last time.

        This runs after each step, and before a batch, a step or a backward pass begins: most models
        are compiled in the first step.
        """
        if len(sys.modules) != self.recorder.modules_seen:
            self.recorder.modules_seen = len(sys.modules)
            self._call_guarded(self.look_for_modules)

    def _stop_when_done(self) -> None:
        limit = self.max_steps
        if limit is not None and self.recorder.ends >= limit and self.count_steps() >= limit:
            if self.ring is not None:
                self.ring.mark_limit_reached()
            self.take_hooks_out()

    # Ending

    def finish(self) -> None:
        """The process ends by itself: keep what is open, say goodbye."""
        if os.getpid() != self.pid:
            return
        events_before = self.recorder.written
        if self.ring is not None:
            events_before = self.guard(self._finish, any_thread=True)() or events_before
        self.guard(self.failures.conclude, any_thread=True)(events_before)
        if self.ring is not None:
            self.ring.mark_ended()
        self.stop()

    def _finish(self) -> int:
        """Close what is open; how many events there were before."""
        gpu: Any = self.recorder.gpu
        if self.tracing:
            memory = [] if gpu is None else [gpu.look_at_last_memory]
            for callback in [*memory, *self.before_last_record]:
                self._call_guarded(callback)
        events_before = self.recorder.written
        if self.tracing and self.restores:  # without hooks nothing is open
            self.recorder.note_boundary(events.FINISH)
        deadline = time.monotonic() + LAST_LOOK_S
        while gpu is not None and gpu.outstanding and time.monotonic() < deadline:
            gpu.resolve()
            time.sleep(0.001)
        self._call_guarded(self.messages.wait)
        for callback in tuple(self.looks):
            self._call_guarded(callback)
        return events_before

    def stop(self) -> None:
        """Record nothing any more; the ring stays for the agent."""
        self.take_hooks_out()
        self.active = False

    def disable(self, reason: str) -> None:
        """Record nothing in this process, and say why: to the user, and for the summary."""
        self.stop()
        try:
            write_first_mark(self.run_folder, TROUBLE_MARK, reason)
        except FileExistsError:
            return
        except OSError as error:
            if is_interruption(error):
                raise
            # nowhere to write: then every process says so itself
        self.say(f"tracing is off: {reason}")

    def take_hooks_out(self) -> None:
        """Leave torch as we found it; what the script logs is still recorded."""
        self.tracing = False
        if self.ring is not None:
            self.ring.mark_recording_ended()
        running, self.running_hooks = self.running_hooks, []
        for restores in (self.restores, running):
            while restores:
                self.guard(restores.pop(), any_thread=True)()

    def forget_parent(self) -> None:
        """In a forked child: nothing of the parent's is ours; a ring of our own may come.

        What the parent had is let go of below, and nothing of it may be finalised here.
        """
        keep_for_ever(self)
        self.is_forked = False
        self.ring = None
        self._follow(None)
        self.tracing = bool(self.restores)
        self._failures = 0
        self.pid = os.getpid()
        self.recorder.forget()
        self._count = StepCount(self.recorder, self.max_steps or 0)
        self.regions.forget()
        self.messages.forget()
        self.failures.forget()
        for forget in self.forgets:
            forget()
        self._ends_with_worker = False

    def say(self, text: str) -> None:
        """One line for people, on stderr; never an error of its own."""
        try:
            sys.stderr.write(f"traceml: {printable(text)}\n")
        except (OSError, ValueError, AttributeError) as error:
            if is_interruption(error):
                raise
            # stderr is closed: nobody is listening


def _call(function: Callable[[], None]) -> None:
    function()


def _nothing() -> None:
    """There is no torch yet, or nobody waits for a module."""


def _ring_name() -> str:
    """A name of its own: a process that executes itself anew keeps its number."""
    return f"rank-{place()[0]}-{os.getpid()}-{time.time_ns() // 1_000_000:x}.ring"


def _process_start_ns() -> int:
    """When this process was started, from what Linux keeps about it; 0 elsewhere."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError) as error:
        if is_interruption(error):
            raise
        return 0
    return time.time_ns() - int(age_s * 1e9)


def _describe(device: str) -> tuple[str, int | None, str]:
    """A device's name, memory and UUID, as torch knows them."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return "", None, ""
    properties = torch.cuda.get_device_properties(device)
    uuid = getattr(properties, "uuid", None)  # since torch 2.4
    name = _visible_name(device) if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
    return properties.name, properties.total_memory, name


def _visible_name(device: str) -> str:
    """The UUID, or its beginning, by which the process was given this GPU; empty for a number."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    number = device.partition(":")[2]
    place = int(number) if number.isdecimal() else 0
    name = given[place].strip() if place < len(given) else ""
    return name if name.startswith("GPU-") else ""
