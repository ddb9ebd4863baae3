"""Runs `traceml` as people do, in real processes, and finds whatever it left behind.

Every process started here carries a mark in its environment, so that a test can say of all of them,
launcher, agent, training and what that started, that they are gone.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pty
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

PATIENCE_S = 180.0
"""How long anything here may take; nothing comes near it, not even on a machine that is busy."""
COMMAND_PATIENCE_S = 600.0
"""The same for a whole command, which does many such things."""
POLL_S = 0.01
AT_ONCE = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
"""How many small jobs a fixture runs beside each other: where the tests do so themselves, one."""
TERMINAL_ROWS, TERMINAL_COLUMNS = 33, 111
BIN = Path(sys.executable).parent
PYTHON, TRACEML = str(BIN / "python"), str(BIN / "traceml")

REQUIRED = "TRACEML_TESTS_REQUIRE"
"""An environment variable: what it names, `slurm`, `ray` or `mpi`, has to be on this machine; its
tests then fail where they would be skipped."""

T = TypeVar("T")


def skip_without(name: str, why_not: str | None) -> pytest.MarkDecorator:
    """Marks tests that need something which not every machine has; `why_not` says why not."""
    is_required = name in os.environ.get(REQUIRED, "").split(",")
    return pytest.mark.skipif(
        why_not is not None and not is_required, reason=f"no {name} here: {why_not}"
    )


# A shell's background job ignores these, and every process below inherits that: not our tests'.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

STEPS = Path(__file__).with_name("ring_steps.py").read_text()
"""Put before a script that is to record steps without torch: `take_steps(count)`."""

TORCH_STEPS = """\
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def take_steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

"""
"""Put before a script that is to train."""

PATIENT = "from traceml.trace import ask_agent; ask_agent.PATIENCE_S = 120.0\n"
"""Put before a script that asks the agent something and is to be told, however busy the machine."""

PATIENT_VIEWS = """\
import sys
from traceml.launch import views
views.LEAVING_S = 120.0
from traceml.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""`traceml`, for `python -c`; it waits for the end of its views, however busy the machine."""

QUIET_PORTS = range(20_000, 32_768)
"""None of these is given to a connection: Linux takes its own from 32768 on."""


def wait_until(condition: Callable[[], T | None], what: str, patience_s: float = PATIENCE_S) -> T:
    """Wait for an event; its value. Fails, and says what did not happen, when patience is over."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {patience_s:.0f} s in vain until {what}")
        time.sleep(POLL_S)
    return value


def free_port() -> int:
    """A port of loopback that is still free when a program that starts slowly listens at it."""
    while True:
        port = secrets.choice(QUIET_PORTS)
        with socket.socket() as probe, suppress(OSError):  # somebody listens there
            probe.bind(("127.0.0.1", port))
            return port


def kernel_tells_of_collected_processes() -> bool:
    """Whether a process that its parent has waited for still says how it ended."""
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2]) >= (6, 15)


@dataclass
class Traces:
    """What processes started in one folder leave there, and which of them still run."""

    cwd: Path
    mark: str

    def left(self) -> list[psutil.Process]:
        """The marked processes that still run."""
        needle = f"TRACEML_TEST_MARK={self.mark}".encode()
        return [process for process in psutil.process_iter() if needle in _environment(process)]

    def wait_until_none_is_left(self) -> None:
        """Wait until every marked process has ended."""
        wait_until(lambda: not self.left(), f"nothing is left of {self.mark}")

    @property
    def folders(self) -> list[Path]:
        """The run folders, oldest first."""
        found = self.cwd.glob("logs/*/run.json")
        return [path.parent for path in sorted(found, key=lambda path: path.stat().st_mtime)]

    @property
    def folder(self) -> Path:
        """The one run folder."""
        (only,) = self.folders
        return only

    @property
    def summary(self) -> dict[str, Any]:
        """The one run's final summary."""
        return read_summary(self.folder)

    @property
    def steps(self) -> int:
        """How many steps the one run's summary knows of."""
        steps: int = self.summary["step_time"]["metadata"]["training_total_steps"]
        return steps

    @property
    def why(self) -> str:
        """What the one run's primary diagnosis says."""
        why: str = self.summary["primary_diagnosis"]["summary"]
        return why

    def rings(self) -> list[Path]:
        """The shared memory of every run here that has not been given back."""
        manifests = (json.loads((folder / "run.json").read_bytes()) for folder in self.folders)
        places = [Path(manifest["ring_folder"]) for manifest in manifests]
        return [place for place in places if place.name and place.exists()] + [
            *self.cwd.glob("logs/*/*.ring")
        ]

    def assert_nothing_is_left(self) -> None:
        """No process runs, no shared memory is taken."""
        assert self.left() == []
        assert self.rings() == []


@dataclass
class Finished(Traces):
    """A command that has ended."""

    status: int
    stdout: str
    stderr: str

    def lines_of_ours(self) -> list[str]:
        """The single lines in which TraceML said something, without the summary."""
        return [line for line in self.stderr.splitlines() if line.startswith("traceml")]


@dataclass
class Running(Traces):
    """A command that is under way."""

    process: subprocess.Popen[bytes]
    stdout_path: Path
    stderr_path: Path

    @property
    def pid(self) -> int:
        """The launcher's."""
        return self.process.pid

    def agent(self) -> psutil.Process:
        """The agent: the child in a session of its own."""
        return wait_until(lambda: self._child(is_agent=True), "there is an agent")

    def training(self) -> psutil.Process:
        """The training command: the other child."""
        return wait_until(lambda: self._child(is_agent=False), "there is a training process")

    def _child(self, is_agent: bool) -> psutil.Process | None:
        for child in psutil.Process(self.pid).children():
            try:
                if (os.getsid(child.pid) == child.pid) == is_agent:
                    return child
            except ProcessLookupError:
                continue
        return None

    def wait_for(self, name: str) -> Path:
        """Wait until the script has made a file of this name; it is complete by then."""
        path = self.cwd / name
        wait_until(lambda: path.exists() or self.process.poll() is not None, f"{name} is there")
        assert path.exists(), f"ended without making {name}: {self.stderr_path.read_text()}"
        return path

    def send(self, number: int) -> None:
        """Send a signal to the launcher alone."""
        os.kill(self.pid, number)

    def finish(self) -> Finished:
        """Wait for the command's end."""
        status = self.process.wait(COMMAND_PATIENCE_S)
        return Finished(
            cwd=self.cwd,
            mark=self.mark,
            status=status,
            stdout=self.stdout_path.read_bytes().decode(),
            stderr=self.stderr_path.read_bytes().decode(),
        )


def _environment(process: psutil.Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:  # ended meanwhile, or a zombie
        return b""


def marked_environment(
    mark: str, changes: Mapping[str, str | None] | None = None
) -> dict[str, str]:
    """The environment of a user: nothing of ours in it but the mark; `None` takes a name out."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("TRACEML_")}
    environment: dict[str, str | None] = {
        **inherited,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": None,
        "PYTHONUNBUFFERED": None,
        "COLUMNS": None,  # pytest-xdist sets these two, and they would outdo a terminal's size
        "LINES": None,
        "TRACEML_TEST_MARK": mark,
        **(changes or {}),
    }
    return {name: text for name, text in environment.items() if text is not None}


def read_summary(folder: Path) -> dict[str, Any]:
    """A run folder's final summary."""
    summary: dict[str, Any] = json.loads((folder / "final_summary.json").read_bytes())
    return summary


def run(
    command: Sequence[str | Path],
    cwd: Path,
    stdin: bytes = b"",
    env: Mapping[str, str | None] | None = None,
) -> Finished:
    """Run any command to its end."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env=marked_environment(mark, env),
        timeout=COMMAND_PATIENCE_S,
        check=False,
    )
    return Finished(cwd, mark, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_traceml(
    arguments: Sequence[str | Path],
    cwd: Path,
    script: str | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str | None] | None = None,
) -> Finished:
    """Run `traceml` to its end, in a folder of its own; `script` is written to train.py first."""
    if script is not None:
        (cwd / "train.py").write_text(script)
    return run([TRACEML, *arguments], cwd, stdin, env)


@contextmanager
def started(
    command: Sequence[str | Path],
    cwd: Path,
    script: str | None = None,
    env: Mapping[str, str | None] | None = None,
    **options: Any,
) -> Iterator[Running]:
    """Start a command and look after it; whatever is left of it at the end is ended by its pid."""
    if script is not None:
        (cwd / "train.py").write_text(script)
    mark = uuid.uuid4().hex
    out, err = cwd / f"stdout-{mark}", cwd / f"stderr-{mark}"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=marked_environment(mark, env),
            **options,
        )
    running = Running(cwd, mark, process, out, err)
    try:
        yield running
    finally:
        _end_all(running)
        process.wait(PATIENCE_S)


def _end_all(traces: Traces) -> None:
    """After a test that failed: its processes and their shared memory are not left to others."""
    for process in traces.left():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    for place in traces.rings():
        shutil.rmtree(place, ignore_errors=True)


@dataclass
class Terminal(Traces):
    """A command under a terminal of its own, as its session's leader and foreground."""

    pid: int
    master: int
    shown: bytes = b""
    _status: int | None = field(default=None)

    def press(self, keys: bytes) -> None:
        """Type something."""
        os.write(self.master, keys)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size, as dragging its window does."""
        _set_size(self.master, rows, columns)

    def hang_up(self) -> None:
        """Close the terminal's window."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self.master)
        os.close(nothing)

    def wait_for(self, name: str) -> Path:
        """Wait until the script has made a file of this name; the screen is read meanwhile."""
        path = self.cwd / name
        wait_until(lambda: self.read() or path.exists(), f"{name} is there")
        return path

    def read(self) -> bool:
        """Take what is shown by now; never waits."""
        os.set_blocking(self.master, False)
        try:
            self.shown += os.read(self.master, 1 << 16)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # nobody has the terminal open any more
                raise
        return False

    def finish(self) -> Finished:
        """Wait for the command's end; everything it showed counts as its output."""
        what = "the command under the terminal has ended"
        wait_until(self._has_ended, what, COMMAND_PATIENCE_S)
        self.read()
        assert self._status is not None
        shown = self.shown.decode(errors="replace")
        return Finished(self.cwd, self.mark, self._status, stdout=shown, stderr=shown)

    def _has_ended(self) -> bool:
        self.read()
        if self._status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if found else None
        return self._status is not None


def _set_size(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def in_terminal(
    command: Sequence[str | Path],
    cwd: Path,
    script: str | None = None,
    env: Mapping[str, str | None] | None = None,
    rows: int = TERMINAL_ROWS,
    columns: int = TERMINAL_COLUMNS,
) -> Iterator[Terminal]:
    """Start a command in a real terminal, where Ctrl-C is a key."""
    if script is not None:
        (cwd / "train.py").write_text(script)
    mark = uuid.uuid4().hex
    environment = marked_environment(mark, {"TERM": "xterm-256color", "CI": None, **(env or {})})
    words = [str(word) for word in command]
    pid, master = pty.fork()
    if pid == 0:
        try:
            _set_size(0, rows, columns)
            os.chdir(cwd)
            os.execvpe(words[0], words, environment)
        finally:
            os._exit(127)  # what could not be started must not go on as a second pytest
    terminal = Terminal(cwd, mark, pid, master)
    try:
        yield terminal
    finally:
        _end_all(terminal)
        if terminal._status is None:
            os.waitpid(pid, 0)
        os.close(master)


@contextmanager
def small_disk(place: Path, kibibytes: int, options: str = "") -> Iterator[Path]:
    """A file system of its own that is soon full; only root can have one."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k{options}", "tmpfs", str(place)]
    mounted = subprocess.run(words, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Write until there is no room left; the file to delete for room again."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def kill(process: psutil.Process) -> None:
    """End a process without a word, and wait until it is gone (its zombie may remain)."""
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(process), f"process {process.pid} is gone")


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
