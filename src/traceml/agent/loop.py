"""The agent's loop: follows rings, samples once a second, answers, and closes the run."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from traceml.agent.artifacts import Artifacts
from traceml.agent.close import summarise, write_ending
from traceml.agent.sampler import Sampler
from traceml.model.errors import UnreadableRecords
from traceml.store import folder as folders
from traceml.store.load import ring_paths
from traceml.store.recordfile import RankFiles
from traceml.store.rings import RingReader
from traceml.store.samples import SampleFile

TICK_S = 0.1
"""How often the agent looks up: fast loops fill a ring in seconds, and questions want answers."""
SECOND_S = 1.0
FULL = 0.125
"""A ring that holds this share of its capacity undrained is drained before the second is over."""


@dataclass
class _Followed:
    """A ring that the agent follows, and where its records go."""

    ring: RingReader
    files: RankFiles
    rank: int
    pid: int
    drained: int = 0


class Agent:
    """One node's agent for one run."""

    def __init__(self, folder: Path, control: int, owner: int | None = None) -> None:
        self._folder = folder
        self._control = control
        self._manifest = folders.read_manifest(folder)
        self._training: psutil.Process | None = None
        self._owner_is_trainer = owner is not None
        if owner is not None:
            self._note_training(owner)
        self._rings: dict[Path, _Followed | None] = {}
        self._samples = SampleFile(folder)
        self._sampler = Sampler()
        self._artifacts = Artifacts(folder)
        self._received = b""
        self._over = False
        self._failures = 0
        self._seconds = 0

    def run(self) -> None:
        """Follow the run to its end, then write its summary."""
        due = time.monotonic()
        while not self._over:
            self._listen(TICK_S)
            second = time.monotonic() >= due
            if second:
                due += SECOND_S * max(1, int(time.monotonic() - due))
            self._guarded_tick(second)
        self._finish()

    def _guarded_tick(self, second: bool) -> None:
        """One look at everything; whatever goes wrong is written down and the agent goes on."""
        try:
            self._tick(second)
        except Exception:  # noqa: BLE001 - counted, and its traceback kept in the agent's log
            self._failures += 1
            if self._failures <= 20:
                traceback.print_exc()

    def _tick(self, second: bool) -> None:
        if second:
            self._find_rings()
        for followed in self._rings.values():
            if followed is not None and (second or self._is_filling(followed)):
                self._drain(followed)
        self._answer()
        if second:
            self._sample()

    # Rings

    def _find_rings(self) -> None:
        for path in ring_paths(self._folder, self._manifest):
            if path in self._rings:
                continue
            try:
                ring = RingReader(path)
            except UnreadableRecords as error:
                if time.time() - path.stat().st_mtime > 5 * SECOND_S:  # not just being made
                    self._rings[path] = None
                    print(error, file=sys.stderr)
                continue
            rank = ring.head().rank
            self._rings[path] = _Followed(
                ring, RankFiles.of(self._folder, path.stem), rank.rank, rank.pid
            )

    @staticmethod
    def _is_filling(followed: _Followed) -> bool:
        return followed.ring.written() - followed.drained > FULL * followed.ring.capacity

    def _drain(self, followed: _Followed, everything: bool = False) -> None:
        messages = followed.files.drain(followed.ring, everything)
        followed.drained = followed.ring.written()
        followed.rank = followed.ring.head().rank.rank
        self._artifacts.note(messages)

    # Sampling

    def _sample(self) -> None:
        ranks = {f.rank: f.pid for f in self._rings.values() if f is not None}
        sample = self._sampler.sample(ranks, time.monotonic(), time.time())
        self._seconds += 1
        if self._seconds % self._samples.stride == 0:
            self._samples.append(sample)

    # Questions from the training process

    def _answer(self) -> None:
        """Write a summary of the run so far for whoever asks; the request vanishes with it."""
        requests = list(self._folder.glob(folders.REQUESTS))
        if not requests:
            return
        self._find_rings()
        for followed in self._rings.values():
            if followed is not None:
                self._drain(followed)
        summarise(self._folder)
        for request in requests:
            request.unlink(missing_ok=True)

    # The launcher, or whoever holds the other end of the control pipe

    def _listen(self, timeout_s: float) -> None:
        try:
            ready, _, _ = select.select([self._control], [], [], timeout_s)
        except InterruptedError:
            return
        if not ready:
            return
        content = os.read(self._control, 1 << 16)
        self._received += content
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        if not content and not self._over:
            self._left_alone()

    def _hear(self, message: dict[str, Any]) -> None:
        if "training_pid" in message:
            self._note_training(message["training_pid"])
        if "ended" in message:
            if folders.read_ending(self._folder) is None:
                write_ending(self._folder, message["ended"].get("exit_status"))
            self._over = True

    def _note_training(self, pid: int) -> None:
        try:
            self._training = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._training = None

    def _left_alone(self) -> None:
        """The launcher died without a word: the training process gets SIGTERM, then we close."""
        training = self._training
        if training is not None and not self._owner_is_trainer:
            try:
                training.send_signal(signal.SIGTERM)
            except psutil.NoSuchProcess:
                training = None
        while training is not None and _is_alive(training):
            time.sleep(TICK_S)
            self._guarded_tick(second=False)
        if folders.read_ending(self._folder) is None:
            write_ending(self._folder, None)
        self._over = True

    def _finish(self) -> None:
        """The end: one last look, the summary, and the rings' memory back."""
        self._find_rings()
        for followed in self._rings.values():
            if followed is not None:
                self._drain(followed, everything=True)
        self._artifacts.save()
        self._sampler.close()
        summarise(self._folder)
        for path in ring_paths(self._folder, self._manifest):
            path.unlink(missing_ok=True)
        folders.remove_rings(self._manifest)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
