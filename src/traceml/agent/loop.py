"""The agent's loop: follows rings, samples once a second, answers, and closes the run.

`followed_rings.py` knows the rings, `run_end.py` when the run is over."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from traceml.agent.artifacts import CLOSING_S as ARTIFACTS_S
from traceml.agent.artifacts import Artifacts, yield_to_training
from traceml.agent.close import summarise, write_answer
from traceml.agent.failures import FailureWatch
from traceml.agent.followed_rings import FollowedRing, FollowedRings
from traceml.agent.gpus import gpu_share
from traceml.agent.lineage import CLOSING_S, PIECE_S, LineageCapture
from traceml.agent.live import Live
from traceml.agent.node_duties import NodeDuties
from traceml.agent.notifications import Notifier
from traceml.agent.otlp_export import OtlpExport
from traceml.agent.otlp_settings import why_not_exported
from traceml.agent.processes import ProcessSampler, is_alive
from traceml.agent.run_end import RunEnd
from traceml.agent.sampler import Sampler, Sampling
from traceml.agent.stack_sampler import StackSampler, Target
from traceml.agent.stalls import Training
from traceml.agent.tracker_processes import TrackerProcesses
from traceml.model.environment import (
    AGENT,
    AGENT_MARK,
    CLOSING_MARK,
    DEEP,
    MARKS,
    MESSAGES_MARK,
    SUMMARY_MARK,
)
from traceml.model.rank import Rank
from traceml.model.sample import Sample, StackBurst
from traceml.model.secrets import masked_message
from traceml.store import folder as folders
from traceml.store.descriptors import wait_until_readable
from traceml.store.failures import remove_ring, script_pids
from traceml.store.load import not_on_disk, ring_paths
from traceml.store.node_folders import closing_words
from traceml.store.samples import SampleFile
from traceml.store.shared_names import settle, take_wanted_name
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
DELIVERY_S = 45.0
"""How long after the end of the training its end may be delivered to webhooks, commands, collector
and trackers, all at once: whoever waits for us waits for a minute (`launch/supervise.py`)."""
MIN_DELIVERY_S = 5.0
"""What they have in any case, though writing the summary took long."""
MARKS_SETTLE_NS = 1_000_000_000
"""How long after a change of the folder of marks it is listed again: a file system's clock may not
tell two changes apart."""
MAX_TRACEBACKS = 20
"""After so many the log has said it."""


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

    `control` and `owner` are those of `RunEnd`: who started us. `is_detached`: they do not wait for
    us.
    """

    def __init__(
        self, folder: Path, control: int, owner: int | None = None, is_detached: bool = False
    ) -> None:
        self._folder = folder
        self._is_detached = is_detached
        self._manifest = folders.read_manifest(folder)
        self._rings = FollowedRings(folder, self._manifest)
        self._end = RunEnd(folder, control, owner, self._rings.followed, self._guarded)
        self._samples = SampleFile(folder)
        self._sampling = Sampling(Sampler(processes=ProcessSampler(self._rings.native_thread)))
        self._is_deep = self._manifest.profile == DEEP
        self._stack_sampler = StackSampler(is_deep=self._is_deep)
        self._stack_file = StackSampleFile(folder)
        self._artifacts = Artifacts(folder)
        self._artifact_thread = Thread(target=self._store_artifacts, daemon=True)
        self._lineage = LineageCapture(folder, self._manifest)
        self._lineage_thread = Thread(target=self._capture_lineage, daemon=True)
        self._live = Live(folder, self._manifest)
        self._watch = FailureWatch(folder)
        if owner is not None:
            self._watch.follow(owner)
        self._nodes = NodeDuties(folder, _log)
        self._notifier = Notifier(folder, self._manifest, self._tell)
        self._otlp = OtlpExport(self._folder, self._manifest, self._tell)
        self._trackers = TrackerProcesses(folder)
        self._has_moved = False
        """Whether the records go to another folder than the one that the run began with."""
        self.lacks_room = False
        """Whether the summary is written, and steps are missing for which the disk had no room."""
        self._failures = 0
        self._seconds = 0
        self._last_sample: Sample | None = None
        self._scripts: set[int] = set()
        self._marks_ns = 0
        """When the folder of marks had last changed."""

    def run(self) -> bool:
        """Follow the run to its end, then write its summary; whether everything is on disk."""
        self._guarded(folders.reserve_room, self._folder, self._manifest.expected_world_size or 1)
        self._guarded(self._say_who_looks)
        if (trouble := why_not_exported(os.environ)) is not None:
            # `traceml run` has said so at the start; `traceml.init` cannot know.
            (self._tell if self._end.is_owned_by_trainer else _log)(trouble)
        self._lineage_thread.start()
        self._artifact_thread.start()
        steps_due, all_due = _Due(LOOK_S), _Due(SECOND_S)
        while not self._end.is_over:
            self._end.listen(TICK_S, self._watch.wakers())
            now_s = time.monotonic()
            self._poll(steps_due.is_now(now_s), all_due.is_now(now_s))
        return self._finish()

    def stay_for_restarts(self, launcher_pid: int) -> None:
        """The launcher of the ranks may start them again: see `RunEnd.stay_for_restarts`."""
        self._end.stay_for_restarts(launcher_pid)

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
        self._guarded(self._follow_scripts)
        if steps:
            self._guarded(self._find_rings)
            self._guarded(self._nodes.look)
            self._guarded(self._count_on_gpus)
            self._guarded(self._end.read_leaving_mark)
        for followed in self._rings.followed():
            if steps or followed.ring.is_filling(FULL):
                self._guarded(self._drain, followed)
        self._guarded(self._answer)
        self._guarded(self._look_for_deaths)
        if self._end.ends_with_ranks:
            self._guarded(self._find_rings)  # a rank may have taken its first step only now
            self._guarded(self._end.end_with_other_ranks)
        self._guarded(self._keep_sample, self._sampling.take)
        self._guarded(self._sampling.check)
        self._guarded(self._look_at_stacks)
        if second:
            self._guarded(self._look_for_stalls)
            self._guarded(self._log_to_trackers)
            self._guarded(self._let_go_of_the_dead)
            self._guarded(self._begin_sample)
            self._guarded(self._end.end_without_training)
            self._guarded(self._look_after_folder)
            self._guarded(self._follow_nodes)
        if steps:
            self._guarded(self._show_live)
        if second and not self._nodes.is_joined:  # the head tells of all ranks
            self._guarded(self._notifier.notify_of_new, self._live.state, time.monotonic())
            self._guarded(self._otlp.export_state, self._live.state)

    def _look_after_folder(self) -> None:
        """Where the folder that we share with the head can no longer be written, begin anew with a
        copy on this machine's own disk: as an agent that was restarted, so that nothing is lost."""
        if self._end.is_over or self._has_moved or not self._nodes.folder_is_lost():
            return
        self._has_moved = True
        local = self._nodes.leave_shared_folder()
        _log(f"{self._folder} can no longer be written: records go to {local}")
        log = os.open(local / folders.AGENT_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        package, said = str(Path(__file__).parents[2]), json.dumps(self._end.for_successor())
        words = [sys.executable, "-c", AGENT, package, str(local), said]
        os.execv(sys.executable, words)

    def go_on_after_move(self, said: dict[str, Any]) -> None:
        """Takes over what the agent knew that began anew."""
        self._end.take_over(said)
        self._has_moved = True

    # Rings

    def _find_rings(self) -> None:
        for followed in self._rings.find_new():
            self._watch.follow(followed.pid)

    def _drain(self, followed: FollowedRing, everything: bool = False) -> None:
        self._guarded(self._live.recent.follow, followed.ring, everything)
        try:
            messages = followed.files.drain(followed.ring, everything)
        except OSError as error:
            followed.trouble = error
            raise
        finally:
            followed.update_head()
        followed.trouble = None
        self._guarded(self._live.recent.add_messages, messages)
        self._artifacts.note(messages)
        self._lineage.note(messages)

    def _let_go_of_the_dead(self) -> None:
        """Bring the rings of processes that have ended to disk and give their memory back."""
        for followed in self._rings.followed():
            if followed.process is None:
                continue
            # The system says who ended; only of those is it asked whether the number was reused.
            if not self._watch.has_ended(followed.pid) or is_alive(followed.process):
                continue
            self._drain(followed, everything=True)
            self._guarded(self._log_to_trackers)  # of a short run, this has its first steps
            self._rings.let_go(followed)

    def _log_to_trackers(self) -> None:
        """Logs the run to trackers, on the machine that rank 0 trains on and no other.

        It begins with the first step. A training may log parameters and then prepare its data, or
        compile, for minutes; until its first step nobody has looked which tracker runs it has open.
        """
        followed = self._rings.followed()
        if any(each.rank == 0 and each.ring.written() for each in followed):
            self._trackers.start_wanted()

    # What goes wrong

    def _follow_scripts(self) -> None:
        """A script that dies before its first step has no ring yet; how it died is known only of
        one that was followed before."""
        try:
            changed_ns = os.stat(self._folder / MARKS).st_mtime_ns  # noqa: PTH116 - ten times a second
        except FileNotFoundError:
            return
        if changed_ns == self._marks_ns and time.time_ns() - changed_ns > MARKS_SETTLE_NS:
            return
        self._marks_ns = changed_ns
        for pid in script_pids(self._folder, socket.gethostname()):
            if pid not in self._scripts:
                self._scripts.add(pid)
                self._watch.follow(pid)

    def _look_for_deaths(self) -> None:
        ranks = {followed.pid: followed.rank for followed in self._rings.followed()}
        self._watch.look_for_deaths(ranks, time.time())

    def _look_for_last_deaths(self) -> None:
        """The command has ended: what it started is usually dead, or about to die of a signal."""
        deadline_s = time.monotonic() + LAST_DEATHS_S
        self._look_for_deaths()
        while (wakers := self._watch.wakers()) and (left_s := deadline_s - time.monotonic()) > 0:
            wait_until_readable(wakers, left_s)
            self._look_for_deaths()

    def _look_for_stalls(self) -> None:
        ranks = [
            Training(
                rank=followed.rank,
                pid=followed.pid,
                steps=followed.ring.written(),
                stacks=followed.stacks,
                walls_s=followed.ring.last_walls_s,
                on_gpu=followed.head.rank.is_on_gpu,
                gpu_share=self._gpu_share(followed.head.rank),
                progress=followed.ring.progress(),
            )
            for followed in self._rings.followed()
            if not followed.is_silent
        ]
        self._watch.look_for_stalls(ranks, time.monotonic(), time.time())

    def _gpu_share(self, rank: Rank) -> float | None:
        sample = self._last_sample
        if sample is None or time.time() - sample.unix_s > FRESH_S:
            return None
        return gpu_share(rank, sample.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))

    def _follow_nodes(self) -> None:
        """The head diagnoses the ranks of all nodes."""
        if self._nodes.is_head:
            self._live.follow_nodes([followed.pid for followed in self._rings.followed()])
        elif self._nodes.is_joined:
            self._live.leave_to_head()

    def _show_live(self) -> None:
        self._live.add_failures(self._watch.seen)
        self._live.evaluate()

    # Sampling

    def _begin_sample(self) -> None:
        self._rings.note_training_threads()
        self._sampling.begin(self._rings.pids())

    def _count_on_gpus(self) -> None:
        """Have the counters of the GPUs read that ranks train on; of all, where one cannot say."""
        ranks = [followed.head.rank for followed in self._rings.followed()]
        uuids = [rank.device_uuid for rank in ranks if rank.is_on_gpu]
        self._sampling.count_on(frozenset(uuids) if all(uuids) else None)

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
        """See at which lines training threads spend their time, while that is worth knowing; with
        the deep profile it always is."""
        targets = [
            Target(followed.rank, followed.pid, followed.stacks)
            for followed in self._rings.followed()
            if self._is_deep or followed.pid in self._live.wants_stacks
        ]
        self._keep_stacks(self._stack_sampler.poll(targets, self._stack_file.stride))

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
        requests = folders.summary_requests(self._folder)
        if not requests:
            return
        self._find_rings()
        for followed in self._rings.followed():
            self._drain(followed)
        write_answer(self._folder, summarise(self._folder, is_final=False))
        for request in requests:
            request.unlink(missing_ok=True)

    # The end

    def _finish(self) -> bool:
        """The end: one last look, the summary, and the rings' memory back."""
        if not self._folder.is_dir():  # somebody removed the run: nobody can ever read its rings
            folders.remove_rings(self._manifest)
            return False
        self._find_rings()
        self._guarded(self._look_for_last_deaths)
        drained = [
            self._guarded(self._drain, followed, True) for followed in self._rings.followed()
        ]
        self._guarded(self._log_to_trackers)
        self._guarded(folders.release_room, self._folder)
        self._guarded(self._end.write_ending)
        self._guarded(self._finish_artifacts)
        self._guarded(self._keep_sample, lambda: self._sampling.last(self._rings.pids()))
        self._guarded(self._sampling.check)
        self._guarded(self._sampling.close)
        self._guarded(lambda: self._keep_stacks(self._stack_sampler.finish()))
        self._finish_lineage()
        notes = [
            not_on_disk(each.trouble, each.ring, each.files, self._folder)
            for each in self._rings.followed()
            if each.trouble is not None
        ]
        self._close_nodes(notes, all(drained))
        if not all(drained):
            self.lacks_room = bool(notes)
            return False  # what could not be brought to disk is still in its ring
        folders.remove_answer(self._folder)
        for path in ring_paths(self._folder, self._manifest):
            remove_ring(path)
        folders.remove_rings(self._manifest)
        return True

    def _close_nodes(self, notes: list[str], is_whole: bool) -> None:
        """Have one summary written for all nodes: here if we are the head, or the only one, or
        the head could not be given our records."""
        self._guarded(self._nodes.look)
        if (
            self._nodes.is_joined
            and self._guarded(self._nodes.deliver, notes, is_whole)
            and self._nodes.is_delivered
        ):
            folders.remove_summary(self._folder)
        else:
            self._guarded(self._nodes.wait_for_nodes)
            if self._nodes.is_head:
                self._guarded(take_wanted_name, self._folder)
            summary, status = summarise(self._folder, notes), self._end.exit_status
            self._guarded(self._notifier.send_end, summary, status)
            self._guarded(self._otlp.send_end, summary, status)
        if is_whole:
            self._guarded(folders.write_mark, self._folder, SUMMARY_MARK, "")
        self._guarded(self._trackers.send_end)
        self._guarded(self._nodes.close)
        self._wait_for_deliveries()
        words = closing_words(self._folder)
        if words is not None and self._end.is_owned_by_trainer:
            folders.write_mark(self._folder, CLOSING_MARK, words)
        if self._end.is_left_alone or self._is_detached:
            settle(
                self._folder
            )  # otherwise the process that started us does: it still needs the path

    def _wait_for_deliveries(self) -> None:
        """All have begun: the slowest of them is what the end of the run waits for."""
        until_s = max(self._end.ended_s + DELIVERY_S, time.monotonic() + MIN_DELIVERY_S)
        for receivers in (self._notifier, self._otlp, self._trackers):
            self._guarded(receivers.wait, until_s)

    def _tell(self, words: str) -> None:
        """Have people told something at the end of the run."""
        _log(words)
        said = folders.read_mark(self._folder, MESSAGES_MARK) or ""
        if words in said.splitlines():  # by an agent before us
            return
        with suppress(OSError):  # a full disk: the log has it, perhaps
            folders.write_mark(self._folder, MESSAGES_MARK, f"{said}{words}\n")


def _log(words: str) -> None:
    """Write a line to the agent's log."""
    print(words, file=sys.stderr, flush=True)


def _log_traceback() -> None:
    """Write the error at hand to the agent's log, without secrets, unless its disk is full."""
    try:
        _log(masked_message(traceback.format_exc()))
    except OSError:
        # What is stuck in the stream's buffer would fail again, and be our exit status.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - lives as long as we do
