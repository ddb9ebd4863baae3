"""Runs a training command together with its agent, until the summary is on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traceml.launch import signals
from traceml.launch.kept_output import KeptOutput
from traceml.launch.messages import say
from traceml.launch.session_leader import begin_below_leader
from traceml.launch.tasks_on_machine import TasksOnMachine
from traceml.launch.views import NoView, View
from traceml.model.environment import AGENT, AGENT_LACKED_ROOM
from traceml.model.printable import shell_word
from traceml.model.run import Ending, Manifest
from traceml.store import folder as folders

AGENT_STARTS = 3
"""How often an agent that dies soon after its start is restarted."""
YOUNG_S = 60.0
"""The death of an agent that lived longer than this does not count."""
CLOSING_S = 60.0
"""How long the agent may take to write the summary before the launcher does it."""

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # as a shell reports them


class AgentProcess:
    """The agent as the launcher sees it: a process, and a pipe whose end tells it that we are
    gone."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], keeps_open: Sequence[int] = ()
    ) -> None:
        """`keeps_open` is the training's terminal, which the agent reads if we are killed."""
        self._folder = folder
        self._environment = {**environment, "OPENBLAS_NUM_THREADS": "1"}
        self._terminals = list(keeps_open)
        self._lock = folders.hold(folder)
        self._inherits = [*keeps_open, *(() if self._lock is None else (self._lock,))]
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths = 0
        self._started_s = 0.0
        self._training_pid: int | None = None
        self.was_given_up = False
        """Whether the user knows already that there is none."""

    def start(self) -> None:
        """Starts the agent in its own session, so that Ctrl-C does not reach it."""
        self._started_s = time.monotonic()
        package = Path(__file__).parents[2]
        log = self._open_log()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", AGENT, str(package), str(self._folder)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                pass_fds=self._inherits,
                cwd="/",
            )
        except OSError as error:
            self._disable(f"the agent could not be started ({error})")
        os.close(log)
        if self._training_pid is not None:
            self.send_training_pid(self._training_pid)

    def _open_log(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            return os.open(self._folder / folders.AGENT_LOG, flags, 0o600)
        except OSError:
            return os.open(os.devnull, os.O_WRONLY)

    def _disable(self, why: str) -> None:
        say(f"{why}; training goes on, the summary is written at its end without system figures")
        self._process = None
        self.was_given_up = True

    def send_training_pid(self, pid: int) -> None:
        """Sends the training's pid, so that the agent can watch it if we are killed."""
        self._training_pid = pid
        self.send({"training_pid": pid, "terminals": self._terminals})

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message to the agent; ignored where the agent is gone."""
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def restart_if_dead(self) -> None:
        """Restarts an agent that died; the rings hold the last thousands of steps meanwhile."""
        if self._process is None or self._process.poll() is None:
            return
        lived_s = time.monotonic() - self._started_s
        self._deaths = self._deaths + 1 if lived_s < YOUNG_S else 1
        if self._deaths < AGENT_STARTS:
            self.start()
        else:
            log = self._folder / folders.AGENT_LOG
            self._disable(f"the agent died {self._deaths} times (see {log})")

    def has_ended(self) -> bool:
        """Returns whether the agent has ended."""
        return self._process is None or self._process.poll() is not None

    @property
    def has_succeeded(self) -> bool:
        """Returns whether the agent has written the summary."""
        return self._process is not None and self._process.poll() == 0

    @property
    def lacked_room(self) -> bool:
        """Returns whether the summary is written but the disk had no room for all steps."""
        return self._process is not None and self._process.poll() == AGENT_LACKED_ROOM

    def kill(self) -> None:
        """Kills an agent that does not end by itself."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def let_go(self) -> None:
        """Releases the run; an agent that is still working keeps it locked."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._lock is not None:
            os.close(self._lock)


@dataclass(frozen=True, slots=True)
class TracedRun:
    """Where a run is recorded, and how its summary is built where no agent does it."""

    folder: Path
    manifest: Manifest
    rebuild: Callable[[Path], object]
    agent_environment: Mapping[str, str]
    tasks: TasksOnMachine | None = None
    """The other tasks on this machine that are part of the run, where there may be any."""


@dataclass(frozen=True, slots=True)
class RunDisplay:
    """What the user sees of a run before its summary."""

    view: View = field(default_factory=NoView)
    keeps_output: bool = False
    """Whether the command's output is also written to the run folder."""


def run(command: list[str], environment: dict[str, str], to: TracedRun, shown: RunDisplay) -> int:
    """Runs the command and returns its status as a shell reports it."""
    view = shown.view
    with signals.held() as release:
        output = view.output or (_keep_output(to.folder) if shown.keeps_output else None)
        try:
            training, pid = _start(command, environment, release, output)
        except OSError as error:
            _end(to, None, Ending(time.time(), status := _not_started(command, error)))
            return status
        agent = AgentProcess(to.folder, to.agent_environment, output.keys if output else ())
        agent.start()
        agent.send_training_pid(pid)
        view.start()

        def look_after_children() -> None:
            agent.restart_if_dead()
            view.check()

        actions: dict[int, Callable[[], None]] = {signal.SIGCHLD: look_after_children}
        if output:
            output.start()
            actions[signal.SIGWINCH] = output.resize
        status = signals.wait(training, pid, actions)
        signals.discard_pending()  # a Ctrl-C that ended the training does not hurry us
        if output:
            output.finish(is_unwanted=_has_had_enough)
        view.training_ended()
        if to.tasks is not None:
            to.tasks.wait_for_others(status, signals.next_signal)
        _end(to, agent, Ending(time.time(), status, pid))
        agent.let_go()
        view.end()
    return status


def run_untraced(command: list[str], environment: dict[str, str]) -> int:
    """Runs the command without tracing."""
    with signals.held() as release:
        try:
            training, pid = _start(command, environment, release)
        except OSError as error:
            return _not_started(command, error)
        return signals.wait(training, pid)


def _start(
    command: list[str],
    environment: dict[str, str],
    release: Callable[[], None],
    output: KeptOutput | None = None,
) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the command; returns the process to wait for, and the command's own pid."""
    has_own_terminal = output is not None and output.stdin is not None
    reported, report = os.pipe()

    def begin() -> None:
        if has_own_terminal:
            begin_below_leader(report)
        release()

    try:
        training = _popen(command, environment, begin, output, has_own_terminal)
    finally:
        os.close(report)
        pid = os.read(reported, 32) if has_own_terminal else b""
        os.close(reported)
    return training, int(pid or training.pid)


def _popen(
    command: list[str],
    environment: dict[str, str],
    begin: Callable[[], None],
    output: KeptOutput | None,
    has_own_terminal: bool,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        preexec_fn=begin,  # no thread runs yet
        close_fds=False,  # whatever we inherited is the command's; what we opened closes itself
        start_new_session=has_own_terminal,
        stdin=output.stdin if output else None,
        stdout=output.stdout if output else None,
        stderr=output.stderr if output else None,
    )


def _not_started(command: list[str], error: OSError) -> int:
    say(f"{command[0]} could not be started: {error.strerror}")
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE


def _keep_output(folder: Path) -> KeptOutput | None:
    try:
        return KeptOutput(folder)
    except OSError as error:
        say(f"the output cannot be kept: {error.strerror}")
        return None


def _has_had_enough() -> bool:
    found = signals.next_signal(0)
    return found is not None and found[0] in signals.PASSED_ON


def _end(to: TracedRun, agent: AgentProcess | None, ending: Ending) -> None:
    """Has the summary written: by the agent, or here if it cannot."""
    with suppress(OSError):  # a full disk: what cannot be written is said once, below
        folders.write_ending(to.folder, ending)
    if agent is not None:
        agent.send({"ended": {"exit_status": ending.exit_status}})
        deadline = time.monotonic() + CLOSING_S
        while not agent.has_ended() and time.monotonic() < deadline:
            found = signals.next_signal(0.2)
            if found is not None and found[0] == signal.SIGINT:
                say(f"not waiting; the agent writes the summary to {to.folder / folders.SUMMARY}")
                return
        if agent.has_succeeded:
            return
        if agent.lacked_room:
            say(
                f"the disk of {to.folder} is full: the summary lacks the last steps; make room, "
                f"then `traceml recover {shell_word(to.folder)}` adds them"
            )
            return
        agent.kill()
    _write_here(to, says_so=agent is not None and not agent.was_given_up)


def _write_here(to: TracedRun, says_so: bool) -> None:
    if not to.folder.is_dir():
        folders.remove_rings(to.manifest)
        say(f"the run folder {to.folder} was removed while it ran: there is no summary")
        return
    try:
        to.rebuild(to.folder)
    except Exception as error:  # noqa: BLE001 - said; the status must stay the training's own
        say(
            f"the summary could not be written ({type(error).__name__}: {error}); the records are "
            f"kept, and `traceml recover {shell_word(to.folder)}` writes it once that is fixed"
        )
        return
    if says_so:
        log = to.folder / folders.AGENT_LOG
        say(f"the agent did not write the summary (see {log}); it was written without it")
