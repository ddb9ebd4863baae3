"""Runs a training command beside its agent, from the first process to the summary on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traceml.launch import signals
from traceml.launch.output import KeptOutput
from traceml.model.run import Ending
from traceml.store import folder as folders

AGENT_STARTS = 3
"""An agent that dies is started again, but not for ever."""
CLOSING_S = 60.0
"""How long the agent may take to write the summary before the launcher does it itself."""


def say(text: str) -> None:
    """What TraceML itself has to say goes to stderr; a closed stderr is nobody's error."""
    try:
        sys.stderr.write(f"traceml: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        return


class AgentProcess:
    """The agent as the launcher knows it: a process and the pipe that says we are here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._training_pid: int | None = None

    def start(self) -> None:
        """Start the agent, in a session of its own: Ctrl-C is not its business."""
        self._starts += 1
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        package = Path(__file__).parents[2]
        try:
            log: Any = (self._folder / folders.AGENT_LOG).open("ab")
        except OSError:
            log = subprocess.DEVNULL
        command = [sys.executable, "-c", _AGENT, str(package), str(self._folder)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            say(f"the agent could not be started ({error}); training goes on without it")
        if self._training_pid is not None:
            self.tell({"training_pid": self._training_pid})

    def tell_training(self, pid: int) -> None:
        """Say which process trains, so that it is not orphaned if we are killed."""
        self._training_pid = pid
        self.tell({"training_pid": pid})

    def tell(self, message: dict[str, Any]) -> None:
        """Say something to the agent; one that is gone hears nothing."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return

    def restart_if_dead(self) -> None:
        """Start an agent that died again: rings hold the last thousands of steps meanwhile."""
        if self._process is None or self._process.poll() is None:
            return
        if self._starts < AGENT_STARTS:
            self.start()
        else:
            say(f"the agent died {self._starts} times; see {self._folder / folders.AGENT_LOG}")
            self._process = None

    def has_ended(self) -> bool:
        """Whether the agent is gone."""
        return self._process is None or self._process.poll() is not None

    @property
    def has_succeeded(self) -> bool:
        """Whether the agent ended well: the summary is on disk."""
        return self._process is not None and self._process.poll() == 0

    def kill(self) -> None:
        """End an agent that does not end by itself."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


_AGENT = """\
import signal, sys
signal.pthread_sigmask(signal.SIG_SETMASK, [])
sys.path.insert(0, sys.argv[1])
from traceml.cli import main
sys.exit(main(["agent", sys.argv[2]]))
"""
"""The agent runs from the package that runs us, whatever the environment says of paths."""


def run(
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    save_output: bool,
    rebuild: Callable[[Path], object],
) -> int:
    """Run the command to its end and return its status, as a shell would report it."""
    with signals.held() as release:
        output = KeptOutput(folder) if save_output else None
        try:
            training = subprocess.Popen(
                command,
                env=environment,
                preexec_fn=release,  # noqa: PLW1509 - no thread runs yet
                stdout=output.stdout if output else None,
                stderr=output.stderr if output else None,
            )
        except OSError as error:
            say(f"{command[0]} could not be started: {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        agent = AgentProcess(folder)
        agent.start()
        agent.tell_training(training.pid)
        if output:
            output.start()
        status = signals.wait(training, agent.restart_if_dead)
        if output:
            output.finish()
        _end(folder, agent, status, rebuild)
    return status


def _end(folder: Path, agent: AgentProcess, status: int, rebuild: Callable[[Path], object]) -> None:
    """Have the summary written: by the agent, or here if it cannot."""
    ended = Ending(time.time(), status)
    try:
        folders.write_ending(folder, ended)
    except OSError as error:
        say(f"the end of the run could not be written down: {error}")
    agent.tell({"ended": {"exit_status": status}})
    deadline = time.monotonic() + CLOSING_S
    while not agent.has_ended() and time.monotonic() < deadline:
        found = signals.next_signal(0.2)
        if found is not None and found[0] == signal.SIGINT:
            say(f"not waiting; the agent writes the summary to {folder / folders.SUMMARY}")
            return
    if not agent.has_ended():
        agent.kill()
    if not agent.has_succeeded:
        say(
            f"the agent did not write the summary (see {folder / folders.AGENT_LOG}): doing it here"
        )
        try:
            rebuild(folder)
        except OSError as error:
            say(
                f"the summary could not be written: {error}; the records are kept, "
                f"`traceml recover {folder}` writes it when there is room"
            )
