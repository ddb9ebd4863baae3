"""Decides when a run is over: by what the launcher says or, without one, by who still trains."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from traceml.agent.close import keep_output, write_ending
from traceml.agent.followed_rings import FollowedRing
from traceml.agent.processes import is_alive, process_of
from traceml.model.environment import LEAVING_MARK
from traceml.store import folder as folders
from traceml.store.descriptors import wait_until_readable


class RunEnd:
    """Whether one run is over, and how it ended.

    `control` is the reading end of a pipe from whoever started us: the launcher, or (`owner`) the
    training process itself. Its end tells us that they are gone. `followed` returns the rings that
    are followed; `guarded` calls something whose failure is written down.
    """

    def __init__(
        self,
        folder: Path,
        control: int,
        owner: int | None,
        followed: Callable[[], Sequence[FollowedRing]],
        guarded: Callable[..., object],
    ) -> None:
        self._folder = folder
        self._control: int | None = control
        self._owner = owner
        self._followed, self._guarded = followed, guarded
        self._training = None if owner is None else process_of(owner)
        self._launcher: psutil.Process | None = None
        """Torch's, which may start the ranks of a run again that `traceml.init` made."""
        self._terminals: list[int] = []
        self._received = b""
        self.ends_with_ranks = False
        """Whether the run ends as soon as no rank trains any more: the one that made it has
        ended."""
        self._told_to_end: set[int] = set()
        self._exit_status: int | None = None
        self.is_over = False
        self.ended_s = 0.0
        """When it was over; monotonic."""

    @property
    def is_owned_by_trainer(self) -> bool:
        """Whether `traceml.init` made the run, and not `traceml run`."""
        return self._owner is not None

    @property
    def is_left_alone(self) -> bool:
        """Whether whoever started us is gone."""
        return self._control is None

    @property
    def exit_status(self) -> int | None:
        """The training's exit status; `None` where nobody saw it."""
        ending = folders.read_ending(self._folder)
        return self._exit_status if ending is None else ending.exit_status

    def stay_for_restarts(self, launcher_pid: int) -> None:
        """The launcher of the ranks may start them again: the run goes on until it has ended, or a
        rank says that it was the last attempt."""
        self._launcher = process_of(launcher_pid)

    # An agent that begins anew in another folder

    def for_successor(self) -> dict[str, Any]:
        """Returns what an agent has to know that takes over from us."""
        return {
            "owner": self._owner,
            "training_pid": None if self._training is None else self._training.pid,
            "terminals": self._terminals,
            "launcher": None if self._launcher is None else self._launcher.pid,
        }

    def take_over(self, said: dict[str, Any]) -> None:
        """Takes over what the agent before us knew."""
        if said.get("training_pid") is not None:
            self._training = process_of(said["training_pid"])
        self._terminals = said.get("terminals", [])
        if said.get("launcher") is not None:
            self.stay_for_restarts(said["launcher"])

    # The launcher, or whoever holds the other end of the control pipe

    def listen(self, timeout_s: float, wakers: Sequence[int]) -> None:
        """Waits for a message until the timeout, or until one of the wakers is ready."""
        heard = [] if self._control is None else [self._control]
        ready = wait_until_readable([*heard, *wakers], timeout_s)
        if self._control is None or self._control not in ready:
            return
        content = os.read(self._control, 1 << 16)
        if not content:
            self._control = None
            self._guarded(self._go_on_alone)
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
        if "leaving" in message:
            self.ends_with_ranks = True
        if "ended" in message:
            self._end(message["ended"].get("exit_status"))

    def _go_on_alone(self) -> None:
        """The launcher died without a word, or the trainer closed our pipe."""
        for terminal in self._terminals:
            Thread(target=keep_output, args=(terminal, self._folder), daemon=True).start()
        if not self.is_owned_by_trainer and self._training is not None:
            self._tell_to_end(self._training)
        self.end_without_training()

    # Who trains

    def end_without_training(self) -> None:
        """Without a launcher, the run is over when nobody trains any more."""
        if self.is_over or (self._control is not None and not self.is_owned_by_trainer):
            return
        if self._training is not None and is_alive(self._training):
            return
        # What the command started may outlive it: a shell ends of the SIGTERM meant for its child.
        ranks = [each.process for each in self._followed() if each.process is not None]
        living = [process for process in ranks if is_alive(process)]
        if not self.is_owned_by_trainer:
            for process in living:
                self._tell_to_end(process)
        awaits_restart = self._launcher is not None and is_alive(self._launcher)
        if not living and not awaits_restart:
            self._end(None)

    def read_leaving_mark(self) -> None:
        """A rank that did not start us cannot tell us through the pipe that the run is over as soon
        as all ranks have ended."""
        if self.is_owned_by_trainer and not self.ends_with_ranks:
            self.ends_with_ranks = folders.read_mark(self._folder, LEAVING_MARK) is not None

    def end_with_other_ranks(self) -> None:
        """The rank that made the run has ended: the run is over when the others have, too."""
        if self.is_over or not self.ends_with_ranks:
            return
        if not any(map(_trains, self._followed())):
            self._end(None)

    def _tell_to_end(self, process: psutil.Process) -> None:
        if process.pid not in self._told_to_end:
            self._told_to_end.add(process.pid)
            try:
                process.send_signal(signal.SIGTERM)
            except psutil.NoSuchProcess:
                return

    def _end(self, exit_status: int | None) -> None:
        self.is_over, self._exit_status = True, exit_status
        self.ended_s = time.monotonic()
        self.write_ending()

    def write_ending(self) -> None:
        """Writes down how the run ended, unless somebody else has."""
        if folders.read_ending(self._folder) is None:
            write_ending(self._folder, self._exit_status)


def _trains(followed: FollowedRing) -> bool:
    """Returns whether a rank's process lives and has not said that it has ended."""
    if followed.process is None or not is_alive(followed.process):
        return False
    return not followed.ring.head().counters["ended"]
