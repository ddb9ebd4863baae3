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

from traceml.model import layout
from traceml.model.environment import MARKS, TRAINER_MARK, TROUBLE_MARK
from traceml.model.failure import STACKS_SUFFIX
from traceml.model.layout import StepFlag
from traceml.model.printable import printable
from traceml.model.rank import Rank
from traceml.trace import ring as rings
from traceml.trace.failure import Failures
from traceml.trace.forked import keep_for_ever
from traceml.trace.garbage_collection import CollectionTime
from traceml.trace.interpreter import introduce
from traceml.trace.interruptions import drop_our_frames, is_interruption
from traceml.trace.messages import Messages
from traceml.trace.place import place
from traceml.trace.recorder import Recorder
from traceml.trace.regions import Regions
from traceml.trace.stacks import answer_with_stacks
from traceml.trace.steps import StepTracer

if TYPE_CHECKING:
    from traceml.trace.explicit import ExplicitSteps

TOO_MANY_FAILURES = 1000
"""Exceptions of our own after which the tracer takes itself out of the process."""
LAST_LOOK_S = 0.05
"""How long the end of the process may be held up for the GPU times of the last steps."""

_FLAGS = [name for name, _ in layout.STEP].index("flags")


class Session:
    """Tracing in one process; it makes no file before the first step or the first logged value."""

    def __init__(self, run_folder: Path, ring_folder: Path | None, max_steps: int | None) -> None:
        self.run_folder = run_folder
        self.max_steps = max_steps
        self.ring: rings.Ring | None = None
        self.device = "cpu"
        self.thread: int | None = None
        self.active = True
        """Whether anything is still recorded: steps, or what the script logs."""
        self.tracing = True
        """Whether the hooks are in, and record; off in a forked child until it begins anew."""
        self.is_forked = False
        """Whether this process was forked from one that traces, and has not begun anew yet."""
        self.restores: list[Callable[[], None]] = []
        self.forgets: list[Callable[[], None]] = []
        """What a forked child calls to begin anew."""
        self.last_looks: list[Callable[[], None]] = []
        """What wants to be called before the last record is closed."""
        self._folders = [ring_folder, run_folder] if ring_folder else [run_folder]
        self._failures = 0
        self.identified = False
        self.pid = os.getpid()
        self.tracer = StepTracer(_NoRing())
        self.tracer.on_failed_look = self.failed
        self.collections = CollectionTime()
        self.recorder = Recorder(self.tracer, self.collections.total_ns)
        self.backwards_open = 0
        if max_steps is not None:
            self.tracer.looks.append(self._stop_when_done)
        # What a script may say for itself; `steps` is there once torch is.
        self.steps: ExplicitSteps | None = None
        self.regions = Regions(self)
        self.messages = Messages(self)
        self.failures = Failures(self)
        self._stacks: object = None
        self._ends_with_worker = False

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

        def guarded(*arguments: Any) -> Any:
            try:
                if (self.thread != get_ident() or not self.tracing) and self._refuses(
                    any_thread, decides
                ):
                    return None
                return function(*arguments)
            except BaseException as error:  # counted, and shown in the summary
                if is_interruption(error):
                    self.lose_track()
                    drop_our_frames(error)
                    raise
                (failed or self.failed)(error)
                return None

        return guarded

    def _refuses(self, any_thread: bool, decides: bool) -> bool:
        """Whether a call is not recorded: nothing is any more, or another thread trains."""
        if self.is_forked:
            self.forget_parent()
        if any_thread:
            return not self.active
        if not self.tracing:
            return True
        if self.thread is None and decides:
            self._follow(get_ident())
        return self.thread != get_ident()

    def lose_track(self) -> None:
        """A hook was left in the middle: what it began will not be ended."""
        if self.thread == get_ident():
            self.recorder.lose_track()

    def _follow(self, thread: int | None) -> None:
        self.thread = thread
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
        if self.thread == me or self.is_forked:
            return
        if self.tracer.steps == 0 and not self.backwards_open:
            self._follow(me)
            self.recorder.forget()

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

        self.restores.append(restore)
        return restore

    # The ring

    def open(self) -> rings.Ring | None:
        """The ring; made when it is first needed, identified anew when the first step begins."""
        if self.ring is None and self.active:
            try:
                self.ring = self.tracer.sink = rings.create(self._folders, _ring_name())
            except OSError as error:
                if is_interruption(error):
                    raise
                self.give_up(f"there is no room for the records of process {os.getpid()}: {error}")
                return None
            self.ring.identify(self._identity())
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
        if not self.identified and self.open() is not None:
            assert self.ring is not None
            identity = self._identity()
            self.ring.identify(identity)
            self.identified = True  # from here on: an interruption before it begins this again
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
        from traceml.trace.gpu import CudaTimeline

        ring = self.open()
        if ring is not None:
            self.device = f"cuda:{index}"
            self.tracer.gpu = CudaTimeline(ring, index)
            if self.identified:  # an explicit step began before its model was known
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

    def _stop_when_done(self) -> None:
        if self.max_steps is not None and self.tracer.steps >= self.max_steps:
            if self.ring is not None:
                self.ring.mark_limit_reached()
            self.take_hooks_out()

    # Ending

    def finish(self) -> None:
        """The process ends by itself: keep what is open, say goodbye."""
        if os.getpid() != self.pid:
            return
        counted = self.tracer.steps
        if self.ring is not None:
            counted = self.guard(self._finish, any_thread=True)() or counted
        self.guard(self.failures.conclude, any_thread=True)(counted)
        if self.ring is not None:
            self.ring.mark_ended()
        self.stop()

    def _finish(self) -> int:
        """Close what is open; how many steps were complete before."""
        gpu: Any = self.tracer.gpu
        counted = self.tracer.steps
        if self.tracing:
            last_looks = self.last_looks if gpu is None else [gpu.look_at_memory, *self.last_looks]
            for last_look in last_looks:
                self.guard(last_look, any_thread=True)()
            self.recorder.digest()
            counted = self.tracer.steps
            self.recorder.note_and_digest(self.tracer.finish, None)
        deadline = time.monotonic() + LAST_LOOK_S
        while gpu is not None and gpu.outstanding and time.monotonic() < deadline:
            gpu.resolve(gpu.outstanding)
            time.sleep(0.001)
        for look in tuple(self.tracer.looks):
            self.guard(look, any_thread=True)()
        return counted

    def stop(self) -> None:
        """Record nothing any more; the ring stays for the agent."""
        self.take_hooks_out()
        self.active = False

    def give_up(self, reason: str) -> None:
        """Record nothing in this process, and say why: to the user, and for the summary."""
        self.stop()
        place = self.run_folder / MARKS / TROUBLE_MARK
        try:
            place.parent.mkdir(exist_ok=True)
            with place.open("x") as file:  # the first process to say so is enough
                file.write(reason)
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
        while self.restores:
            self.guard(self.restores.pop(), any_thread=True)()

    def forget_parent(self) -> None:
        """In a forked child: nothing of the parent's is ours; a ring of our own may come.

        What the parent had is let go of below, and nothing of it may be finalised here.
        """
        keep_for_ever(self)
        self.is_forked = False
        self.tracing = bool(self.restores)
        self.ring = None
        self._follow(None)
        self.identified = False
        self.backwards_open = 0
        self._failures = 0
        self.pid = os.getpid()
        self.tracer.sink = _NoRing()
        self.tracer.gpu = None
        self.recorder.forget()
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


class _NoRing:
    """Stands in for the ring until the first step opens it."""

    def write_step(self, *values: float) -> int:
        if int(values[_FLAGS]) & StepFlag.ABORTED:
            return 0  # what was aborted before the first step is nobody's
        raise RuntimeError("a step was closed before its ring was open")


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
