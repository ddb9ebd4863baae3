"""Starts a process for each tracker that a run is logged to, and ends it with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from traceml.model.environment import NOTIFY, TOKEN, TRACKER
from traceml.model.run import end_words
from traceml.model.tracker import LOG_TO_MARK, OVER_MESSAGE, SAID_MARK, parse_trackers
from traceml.store import folder as folders

_OUR_SECRETS = (NOTIFY, TOKEN)
"""Variables that no package of somebody else's gets."""
_WANDB_SERVICES = ("WANDB_SERVICE", "_WANDB_SERVICE")
"""Where the script's own `wandb-core` listens, which the agent inherits if W&B came before us. It
ends with the script, and our run would end with it."""


class TrackerProcesses:
    """The processes that log a run to trackers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start_wanted(self) -> None:
        """Starts those that the run has asked for and that are not there yet; one that dies is not
        started again."""
        wanted = folders.read_mark(self._folder, LOG_TO_MARK)
        if wanted is None:
            return
        for name in parse_trackers(wanted):
            if name not in self._started:
                self._started[name] = self._start(name)

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        package = str(Path(__file__).parents[2])
        left_out = (*_OUR_SECRETS, *_WANDB_SERVICES)
        return subprocess.Popen(
            [sys.executable, "-c", TRACKER, package, name, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=sys.stderr,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name not in left_out},
            cwd="/",  # a module of the user's must not stand in for one of ours
        )

    def send_end(self) -> None:
        """Tells all that the summary is on disk."""
        for process in self._started.values():
            assert process.stdin is not None
            try:
                process.stdin.write(OVER_MESSAGE)
                process.stdin.close()
            except OSError:
                continue  # it is gone: said at the end of the wait

    def wait(self, until_s: float) -> None:
        """Waits until all have logged the summary; those that have not by then (monotonic) are
        ended."""
        for name, process in self._started.items():
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
                status = process.returncode
                why = f"its process {end_words(status if status >= 0 else 128 - status)}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with what the tracker's package started
                process.wait()
                why = "it did not end in time"
            self._say_if_silent(name, why)

    def _say_if_silent(self, name: str, why: str) -> None:
        """Records that not everything was logged to a tracker, unless the tracker's own process has
        already recorded how it went."""
        if folders.read_mark(self._folder, f"{SAID_MARK}{name}") is not None:
            return
        words = f"not all was logged to {name} ({why}); the summary is in {self._folder}"
        folders.write_mark(self._folder, f"{SAID_MARK}{name}", words)
