"""`traceml.init()`: a run and its agent for a script under plain python, or for a notebook."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traceml.model.environment import AGENT, DISABLED, MAX_STEPS, RING_FOLDER, RUN_FOLDER
from traceml.model.errors import UsageError
from traceml.trace import current
from traceml.trace.interruptions import is_interruption

STARTING_S = 30.0
"""How long a new agent may take to say where the run is."""
CLOSING_S = 30.0
"""How long the end of the process may wait for the agent to write the summary."""


def init(
    run_name: str | None = None,
    logs_dir: str | Path = "logs",
    overwrite: bool = False,
    trace_max_steps: int | None = None,
) -> None:
    """Start a run in this process; it is closed when the process ends.

    Under `traceml run`, and when called again, this does nothing.
    Raises UsageError where the run's name cannot be had; whatever else goes wrong is said on
    stderr, and the script runs untraced.
    """
    if os.environ.get(DISABLED):
        return
    if current.current() is None and not _start_run(run_name, logs_dir, overwrite, trace_max_steps):
        return
    _begin_with_torch()


def _start_run(
    run_name: str | None, logs_dir: str | Path, overwrite: bool, max_steps: int | None
) -> bool:
    options = {
        "run_name": run_name,
        "logs_dir": str(Path(logs_dir).absolute()),
        "overwrite": overwrite,
        "subject": _subject(),
        "command": [sys.executable, *sys.argv],
        "working_folder": str(Path.cwd()),
        "pid": os.getpid(),
    }
    try:
        agent = _StartedAgent(["--new", json.dumps(options)])
    except OSError as error:
        if is_interruption(error):
            raise
        _say(f"the run cannot be recorded: no agent ({error})")
        return False
    answer = agent.first_words()
    if "error" in answer:
        raise UsageError(_in_python(answer["error"]))
    if "folder" not in answer:
        _say(f"the run cannot be recorded: {answer.get('trouble', 'the agent did not start')}")
        return False
    os.environ[RUN_FOLDER] = answer["folder"]
    os.environ[RING_FOLDER] = answer["ring_folder"]
    if max_steps is not None:
        os.environ[MAX_STEPS] = str(max_steps)
    current.current()
    atexit.register(_close, agent, answer["folder"], os.getpid())
    return True


_IN_PYTHON = {"--run-name": "run_name", "--overwrite": "overwrite=True"}


def _in_python(error: str) -> str:
    """An error message for the command line, with its flags replaced by arguments of `init`."""
    for flag, argument in _IN_PYTHON.items():
        error = error.replace(flag, argument)
    return f"{error} (arguments of traceml.init)"


def _subject() -> str:
    """What the run is named after."""
    if "ipykernel" in sys.modules:
        return "notebook"
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    return script.name if script is not None and script.is_file() else "python"


class _StartedAgent:
    """An agent's process and the pipe that tells it that we are here."""

    def __init__(self, words: Sequence[str]) -> None:
        package = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(package), *words],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is not its business
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            cwd="/",  # a module of the user's must not stand in for one of ours
        )
        assert self._process.stdin is not None
        self._control = self._process.stdin
        self._control_is = _identity(self._control.fileno())

    def first_words(self) -> dict[str, Any]:
        """The agent's answer about the run it was asked to make; empty where it failed to start."""
        source = self._process.stdout
        assert source is not None
        received = b""
        poll = select.poll()  # unlike select(), it knows descriptors beyond 1023
        poll.register(source, select.POLLIN)
        while not received.endswith(b"\n"):
            piece = source.read(1 << 16) if poll.poll(STARTING_S * 1000) else b""
            if not piece:
                self._process.kill()
                self._process.wait()
                return {}
            received += piece
        source.close()
        answer: dict[str, Any] = json.loads(received)
        if "folder" not in answer:
            self._process.wait()
        return answer

    def tell_the_end(self) -> bool:
        """Tell the agent that the run is over; returns whether the pipe to it still works."""
        try:
            # A script that closes descriptors may have a file of its own at this number by now.
            if _identity(self._control.fileno()) != self._control_is:
                return False
            self._control.write(b'{"ended": {"exit_status": null}}\n')
        except (OSError, ValueError) as error:
            if is_interruption(error):
                raise
            return False
        return True

    def is_done(self) -> bool:
        """Wait until the agent has written the summary; returns whether it could."""
        return self._process.wait(CLOSING_S) == 0

    def is_alive(self) -> bool:
        return self._process.poll() is None


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _begin_with_torch() -> None:
    """Set the hooks now, or as soon as the script imports torch."""
    if "torch" in sys.modules:
        from traceml.trace.current import begin

        begin()
        return
    from traceml.trace.inject import sitecustomize

    waiting = sitecustomize.AfterTorch.__name__  # by name: the injected one is another module's
    if not any(type(finder).__name__ == waiting for finder in sys.meta_path):
        sys.meta_path.insert(0, sitecustomize.AfterTorch())


def _close(agent: _StartedAgent, folder: str, owner: int) -> None:
    """The process ends: finish the records, tell the agent, wait for the summary."""
    if os.getpid() != owner:
        return  # a forked child ends; the run goes on
    current.end()
    try:
        if agent.tell_the_end():
            written = agent.is_done()
        elif agent.is_alive():
            return  # it cannot hear us, but it sees us end
        else:
            written = False
        if not written:  # killed, say: another one brings to disk what the ring holds
            successor = _StartedAgent([folder])
            successor.tell_the_end()
            written = successor.is_done()
    except (OSError, subprocess.TimeoutExpired) as error:
        if is_interruption(error):
            raise
        written = False
    if not written:
        _say(f"the summary is not on disk yet; `traceml recover {folder}` writes it, or says why")


def _say(text: str) -> None:
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"traceml: {text}\n")
        except (OSError, ValueError) as error:
            if is_interruption(error):
                raise
            # stderr is closed: nobody is listening
