"""The agent's loop: follows rings, samples once a second, answers, and closes the run."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from traceml.agent.artifacts import CLOSING_S as ARTIFACTS_S
from traceml.agent.artifacts import Artifacts, yield_to_training
from traceml.agent.close import keep_output, summarise, write_answer, write_ending
from traceml.agent.failures import FailureWatch
from traceml.agent.gpus import gpu_share
from traceml.agent.lineage import CLOSING_S, PIECE_S, LineageCapture
from traceml.agent.live import Live
from traceml.agent.processes import ProcessSampler, is_alive, process_of
from traceml.agent.sampler import Sampler, Sampling
from traceml.agent.stack_sampler import StackSampler, Target
from traceml.agent.stacks import TrainingThread, training_thread
from traceml.agent.stalls import Training
from traceml.model.environment import AGENT_MARK
from traceml.model.errors import UnreadableRecords
from traceml.model.rank import Rank
from traceml.model.sample import Sample, StackBurst
from traceml.store import folder as folders
from traceml.store.failures import remove_ring, script_pids, stacks_of
from traceml.store.load import not_on_disk, ring_paths
from traceml.store.record_file import RankFiles
from traceml.store.rings import RingReader
from traceml.store.samples import SampleFile
from traceml.store.stack_samples import StackSampleFile

TICK_S = 0.1
"""How often the agent looks up: fast loops fill a ring in seconds, and questions want answers."""
LOOK_S = 0.5
"""How often steps are brought to disk and the last ones diagnosed."""
SECOND_S = 1.0
"""How often everything else is done."""
FULL = 0.125
"""A ring that holds this share of its capacity undrained is drained before its time has come."""
FRESH_S = 5 * SECOND_S
"""A sample older than this says nothing about now: the driver answers slowly, or not at all."""
LAST_DEATHS_S = 0.3
"""How long the end of a run waits for processes that outlive the command: a large one takes a
while to give its memory back after a SIGKILL."""
MAX_TRACEBACKS = 20
"""After so many the log has said it."""


@dataclass
class _Followed:
    """A ring that the agent follows, where its records go, and the process that writes it."""

    ring: RingReader
    files: RankFiles
    rank: int
    pid: int
    process: psutil.Process | None
    trouble: OSError | None = None
    """Why the last drain could not bring everything to disk."""


class _Due:
    """When something that is done again and again is due; what was missed is not made up for."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._at_s = time.monotonic()

    def is_now(self, now_s: float) -> bool:
        """Whether it is due; then the next time is planned."""
        if now_s < self._at_s:
            return False
        self._at_s += self._every_s * max(1, int((now_s - self._at_s) / self._every_s))
        return True


class Agent:
    """One node's agent for one run.

    `control` is the reading end of a pipe from whoever started us: the launcher, or (`owner`) the
    training process itself. Its end tells us that they are gone.
    """

    def __init__(self, folder: Path, control: int, owner: int | None = None) -> None:
        self._folder = folder
        self._control: int | None = control
        self._manifest = folders.read_manifest(folder)
        self._owned_by_trainer = owner is not None
        self._training = None if owner is None else process_of(owner)
        self._terminals: list[int] = []
        self._rings: dict[Path, _Followed | None] = {}
        self._samples = SampleFile(folder)
        self._threads: dict[int, TrainingThread] = {}
        """The training thread of each rank's process, once the rank has said which it is."""
        self._sampling = Sampling(Sampler(processes=ProcessSampler(self._native_thread)))
        self._stack_sampler = StackSampler()
        self._stack_file = StackSampleFile(folder)
        self._artifacts = Artifacts(folder)
        self._artifact_thread = Thread(target=self._store_artifacts, daemon=True)
        self._lineage = LineageCapture(folder, self._manifest)
        self._lineage_thread = Thread(target=self._capture_lineage, daemon=True)
        self._live = Live(folder, self._manifest)
        self._watch = FailureWatch(folder)
        self._received = b""
        self._over = False
        self._exit_status: int | None = None
        self.lacks_room = False
        """Whether the summary is written, and steps are missing for which the disk had no room."""
        self._failures = 0
        self._seconds = 0
        self._last_sample: Sample | None = None
        self._told_to_end: set[int] = set()
        self._scripts: set[int] = set()

    def run(self) -> bool:
        """Follow the run to its end, then write its summary; whether everything is on disk."""
        self._guarded(folders.reserve_room, self._folder, self._manifest.expected_world_size or 1)
        self._guarded(self._say_who_looks)
        self._lineage_thread.start()
        self._artifact_thread.start()
        steps_due, all_due = _Due(LOOK_S), _Due(SECOND_S)
        while not self._over:
            self._listen(TICK_S)
            now_s = time.monotonic()
            self._poll(steps_due.is_now(now_s), all_due.is_now(now_s))
        return self._finish()

    def _say_who_looks(self) -> None:
        """Where the system lets only the allowed look into a process, ranks ask who that is."""
        folders.write_mark(self._folder, AGENT_MARK, f"{os.getpid()} {socket.gethostname()}")

    def _guarded(self, function: Callable[..., object], *arguments: Any) -> bool:
        """Whatever goes wrong is counted and written down, and the agent goes on."""
        try:
            function(*arguments)
        except Exception:  # noqa: BLE001 - counted, and its traceback kept in the agent's log
            self._failures += 1
            if self._failures <= MAX_TRACEBACKS:
                _log_traceback()
            return False
        return True

    def _poll(self, steps: bool, second: bool) -> None:
        """Polls everything that is due; what fails in one place holds up no other."""
        if steps:
            self._guarded(self._find_rings)
            self._guarded(self._follow_scripts)
            self._guarded(self._count_on_gpus)
        for followed in self._followed():
            if steps or followed.ring.is_filling(FULL):
                self._guarded(self._drain, followed)
        self._guarded(self._answer)
        self._guarded(self._look_for_deaths)
        self._guarded(self._keep_sample, self._sampling.take)
        self._guarded(self._sampling.check)
        self._guarded(self._look_at_stacks)
        if second:
            self._guarded(self._look_for_stalls)
            self._guarded(self._let_go_of_the_dead)
            self._guarded(self._begin_sample)
            self._guarded(self._look_after_training)
        if steps:
            self._guarded(self._show_live)

    # Rings

    def _followed(self) -> list[_Followed]:
        return [followed for followed in self._rings.values() if followed is not None]

    def _find_rings(self) -> None:
        for path in ring_paths(self._folder, self._manifest):
            if path in self._rings:
                continue
            try:
                ring = RingReader(path)
            except (UnreadableRecords, ValueError) as error:  # ValueError: it is empty yet
                if time.time() - path.stat().st_mtime > 5 * SECOND_S:  # not just being made
                    self._rings[path] = None
                    print(error, file=sys.stderr)
                continue
            rank = ring.head().rank
            files = RankFiles.of(self._folder, path.stem)
            self._rings[path] = _Followed(ring, files, rank.rank, rank.pid, process_of(rank.pid))
            self._watch.follow(rank.pid)

    def _drain(self, followed: _Followed, everything: bool = False) -> None:
        self._guarded(self._live.recent.follow, followed.ring, everything)
        try:
            messages = followed.files.drain(followed.ring, everything)
        except OSError as error:
            followed.trouble = error
            raise
        followed.trouble = None
        followed.rank = followed.ring.head().rank.rank
        self._guarded(self._live.recent.add_messages, messages)
        self._artifacts.note(messages)
        self._lineage.note(messages)

    def _let_go_of_the_dead(self) -> None:
        """Bring the rings of processes that have ended to disk and give their memory back."""
        for path, followed in list(self._rings.items()):
            if followed is None or followed.process is None or is_alive(followed.process):
                continue
            self._drain(followed, everything=True)
            followed.ring.close()
            remove_ring(path)
            del self._rings[path]

    # What goes wrong

    def _follow_scripts(self) -> None:
        """A script that dies before its first step has no ring yet."""
        for pid in script_pids(self._folder, socket.gethostname()):
            if pid not in self._scripts:
                self._scripts.add(pid)
                self._watch.follow(pid)

    def _look_for_deaths(self) -> None:
        ranks = {followed.pid: followed.rank for followed in self._followed()}
        self._watch.look_for_deaths(ranks, time.time())

    def _look_for_last_deaths(self) -> None:
        """The command has ended: what it started is usually dead, or about to die of a signal."""
        deadline_s = time.monotonic() + LAST_DEATHS_S
        self._look_for_deaths()
        while (wakers := self._watch.wakers()) and (left_s := deadline_s - time.monotonic()) > 0:
            select.select(wakers, [], [], left_s)
            self._look_for_deaths()

    def _look_for_stalls(self) -> None:
        ranks = [
            Training(
                rank=followed.rank,
                pid=followed.pid,
                steps=followed.ring.written(),
                stacks=stacks_of(followed.ring.path),
                walls_s=followed.ring.last_walls_s,
                on_gpu=head.rank.is_on_gpu,
                gpu_share=self._gpu_share(head.rank),
            )
            for followed in self._followed()
            if not _is_silent((head := followed.ring.head()).counters)
        ]
        self._watch.look_for_stalls(ranks, time.monotonic(), time.time())

    def _gpu_share(self, rank: Rank) -> float | None:
        sample = self._last_sample
        if sample is None or time.time() - sample.unix_s > FRESH_S:
            return None
        return gpu_share(rank, sample.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))

    def _show_live(self) -> None:
        self._live.recent.add_failures(self._watch.seen)
        self._live.evaluate()

    # Sampling

    def _begin_sample(self) -> None:
        self._note_training_threads()
        self._sampling.begin(self._pids())

    def _count_on_gpus(self) -> None:
        """Have the counters of the GPUs read that ranks train on; of all, where one cannot say."""
        ranks = [followed.ring.head().rank for followed in self._followed()]
        uuids = [rank.device_uuid for rank in ranks if rank.is_on_gpu]
        self._sampling.count_on(frozenset(uuids) if all(uuids) else None)

    def _note_training_threads(self) -> None:
        for followed in self._followed():
            if followed.pid not in self._threads:
                thread = training_thread(stacks_of(followed.ring.path))
                if thread is not None:
                    self._threads[followed.pid] = thread

    def _native_thread(self, pid: int) -> int | None:
        thread = self._threads.get(pid)
        return None if thread is None else thread.native

    def _pids(self) -> dict[int, int]:
        """By rank; several may claim one rank, and a pid tells them apart."""
        pids: dict[int, int] = {}
        for followed in self._followed():
            free = next(n for n in count(followed.rank) if n not in pids)
            pids[free] = followed.pid
        return pids

    def _keep_sample(self, take: Callable[[], Sample | None]) -> None:
        sample = take()
        if sample is None:
            return
        self._seconds += 1
        self._last_sample = sample
        self._live.recent.add_sample(sample)
        if self._seconds % self._samples.stride == 0:
            self._samples.append(sample)

    def _look_at_stacks(self) -> None:
        """See at which lines training threads spend their time, while that is worth knowing."""
        wanted = () if self._stack_file.is_full else self._live.wants_stacks
        targets = [
            Target(followed.rank, followed.pid, stacks_of(followed.ring.path))
            for followed in self._followed()
            if followed.pid in wanted
        ]
        self._keep_stacks(self._stack_sampler.poll(targets))

    def _keep_stacks(self, burst: StackBurst | None) -> None:
        if burst is not None:
            self._stack_file.append(burst)
            self._live.recent.add_stacks(burst)

    # Where the run comes from

    def _capture_lineage(self) -> None:
        """In a thread of its own: a slow disk or a large repository holds up no ring."""
        for piece in self._lineage.pieces():
            self._guarded(piece)

    def _finish_lineage(self) -> None:
        self._lineage.close()
        self._lineage_thread.join(PIECE_S + CLOSING_S)

    # Logged files

    def _store_artifacts(self) -> None:
        """In a thread of its own: copying gigabytes holds up no ring."""
        self._guarded(yield_to_training)
        for piece in self._artifacts.pieces():
            self._guarded(piece)

    def _finish_artifacts(self) -> None:
        self._artifacts.close()
        self._artifact_thread.join(ARTIFACTS_S)
        if not self._artifact_thread.is_alive():
            self._artifacts.prune()

    # Questions from the training process

    def _answer(self) -> None:
        """Write a summary of the run so far for whoever asks; the request vanishes with it."""
        requests = list(self._folder.glob(folders.REQUESTS))
        if not requests:
            return
        self._find_rings()
        for followed in self._followed():
            self._drain(followed)
        write_answer(self._folder, summarise(self._folder))
        for request in requests:
            request.unlink(missing_ok=True)

    # The launcher, or whoever holds the other end of the control pipe

    def _listen(self, timeout_s: float) -> None:
        heard = [] if self._control is None else [self._control]
        ready, _, _ = select.select([*heard, *self._watch.wakers()], [], [], timeout_s)
        if self._control is None or self._control not in ready:
            return
        content = os.read(self._control, 1 << 16)
        if not content:
            self._control = None
            self._guarded(self._left_alone)
            return
        *lines, self._received = (self._received + content).split(b"\n")
        for line in lines:
            self._guarded(self._handle_message, line)

    def _handle_message(self, line: bytes) -> None:
        """The launcher says which process trains, or that it has ended."""
        message: dict[str, Any] = json.loads(line)
        if "training_pid" in message:
            self._training = process_of(message["training_pid"])
            self._terminals = message.get("terminals", [])
        if "ended" in message:
            self._end(message["ended"].get("exit_status"))

    def _end(self, exit_status: int | None) -> None:
        self._over, self._exit_status = True, exit_status
        self._write_ending()

    def _write_ending(self) -> None:
        if folders.read_ending(self._folder) is None:
            write_ending(self._folder, self._exit_status)

    def _left_alone(self) -> None:
        """The launcher died without a word, or the trainer closed our pipe."""
        for terminal in self._terminals:
            Thread(target=keep_output, args=(terminal, self._folder), daemon=True).start()
        if not self._owned_by_trainer and self._training is not None:
            self._tell_to_end(self._training)
        self._look_after_training()

    def _look_after_training(self) -> None:
        """Without a launcher, the run is over when nobody trains any more."""
        if self._over or (self._control is not None and not self._owned_by_trainer):
            return
        if self._training is not None and is_alive(self._training):
            return
        # What the command started may outlive it: a shell ends of the SIGTERM meant for its child.
        ranks = [each.process for each in self._followed() if each.process is not None]
        living = [process for process in ranks if is_alive(process)]
        if not self._owned_by_trainer:
            for process in living:
                self._tell_to_end(process)
        if not living:
            self._end(None)

    def _tell_to_end(self, process: psutil.Process) -> None:
        if process.pid not in self._told_to_end:
            self._told_to_end.add(process.pid)
            try:
                process.send_signal(signal.SIGTERM)
            except psutil.NoSuchProcess:
                return

    def _finish(self) -> bool:
        """The end: one last look, the summary, and the rings' memory back."""
        if not self._folder.is_dir():  # somebody removed the run: nobody can ever read its rings
            folders.remove_rings(self._manifest)
            return False
        self._find_rings()
        self._guarded(self._look_for_last_deaths)
        drained = [self._guarded(self._drain, followed, True) for followed in self._followed()]
        self._guarded(folders.release_room, self._folder)
        self._guarded(self._write_ending)
        self._guarded(self._finish_artifacts)
        self._guarded(self._keep_sample, lambda: self._sampling.last(self._pids()))
        self._guarded(self._sampling.check)
        self._guarded(self._sampling.close)
        self._guarded(lambda: self._keep_stacks(self._stack_sampler.finish()))
        self._finish_lineage()
        notes = [
            not_on_disk(each.trouble, each.ring, each.files, self._folder)
            for each in self._followed()
            if each.trouble is not None
        ]
        summarise(self._folder, notes)
        if not all(drained):
            self.lacks_room = bool(notes)
            return False  # what could not be brought to disk is still in its ring
        folders.remove_answer(self._folder)
        for path in ring_paths(self._folder, self._manifest):
            remove_ring(path)
        folders.remove_rings(self._manifest)
        return True


def _log_traceback() -> None:
    """Write the error at hand to the agent's log, unless the disk that it lies on is full."""
    try:
        traceback.print_exc()
    except OSError:
        # What is stuck in the stream's buffer would fail again, and be our exit status.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - lives as long as we do


def _is_silent(counters: dict[str, Any]) -> bool:
    """Whether a rank takes no more steps that we would see: it stands still for us alone."""
    return bool(counters["ended"] or counters["recording_ended"])
