"""Live views of a run: processes of their own, which may die without anybody noticing but the user.

The terminal view has the user's terminal until the training ends, or until it is left; the
dashboard serves pages until the summary is written.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from traceml.launch import signals
from traceml.launch.hidden_terminal import OutputBehindView
from traceml.launch.mode import in_foreground
from traceml.launch.output import KeptOutput
from traceml.launch.say import hold_back, say, speak_again
from traceml.store.line_files import write_whole
from traceml.store.output_follower import OutputFollower

LEAVING_S = 3.0
"""How long a view may take to leave when it is told to."""
LAST_LINES = 40
"""How much of the output is shown again when the view has gone."""
PORT = 8765

_PROGRAM = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
sys.path.insert(0, sys.argv[1])
from traceml.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""A view's process: Ctrl-C is a key to it, or not its business; what we hold back it need not."""
_PACKAGE = Path(__file__).parents[2]
_KEYBOARD, _OUTPUT, _SCREEN = 0, 1, 2

_RESET = "".join(
    (
        "\x1b[?2026l",  # a frame that was never finished
        *(f"\x1b[?{mode}l" for mode in (1000, 1002, 1003, 1015, 1006, 1016)),  # the mouse
        *(f"\x1b[?{mode}l" for mode in (1004, 2004, 2048)),  # focus, paste, size
        "\x1b[<u",  # the keyboard
        "\x1b[?7h",  # long lines wrap
        "\x1b[?1049l",  # the screen as it was
        "\x1b[?25h\x1b[0m",  # cursor, colours
    )
).encode()
"""Undoes what a view does to a terminal."""


class View(Protocol):
    """What the launcher does with a view."""

    @property
    def output(self) -> KeptOutput | None:
        """The command's streams, where the view decides about them."""

    def start(self) -> None:
        """The training runs."""

    def look_after(self) -> None:
        """Some child has ended: this one, perhaps."""

    def training_ended(self) -> None:
        """Nothing more will happen in the run."""

    def end(self) -> None:
        """The summary is written, and nobody holds the run."""


class NoView:
    """Nothing is shown before the summary."""

    output = None

    def start(self) -> None:
        """Nothing to start."""

    def look_after(self) -> None:
        """Nothing to look after."""

    def training_ended(self) -> None:
        """Nobody to tell."""

    def end(self) -> None:
        """Nobody to tell."""


def words_for(*words: str) -> list[str]:
    """The command that runs one of our own from this package, whatever the environment says."""
    return [sys.executable, "-c", _PROGRAM, str(_PACKAGE), *words]


class TerminalView:
    """The live view in the user's terminal."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the command cannot have a terminal behind it."""
        self._folder = folder
        self._modes = termios.tcgetattr(_KEYBOARD)
        self._process: subprocess.Popen[bytes] | None = None
        self._link, self._other_end = socket.socketpair()
        self._has_screen = self._has_begun = False
        self._told_s: float | None = None
        self.output = OutputBehindView(folder, self._tell_to_leave)

    def start(self) -> None:
        """Hand the terminal over."""
        hold_back()
        self._has_screen = True
        link, (keys,) = self._other_end.fileno(), self.output.keys
        options = ("--attached", str(link), "--keys", str(keys))
        try:
            self._process = subprocess.Popen(
                words_for("watch", str(self._folder), *options), pass_fds=(link, keys), cwd="/"
            )
        except OSError as error:
            self._take_screen_back(f"the live view could not be started ({error})")
        self._other_end.close()

    def look_after(self) -> None:
        """Take the terminal back from a view that has ended, or does not although it was told."""
        if self._is_overdue() and self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._has_screen and self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            how = "was left" if status == 0 else f"ended by itself (status {status})"
            self._take_screen_back(f"the live view {how}")

    def _is_overdue(self) -> bool:
        return self._told_s is not None and time.monotonic() > self._told_s + LEAVING_S

    def _take_screen_back(self, why: str) -> None:
        self._restore()
        say(
            f"{why}; training goes on and its output follows here "
            f"(`traceml watch {self._folder}` shows it live again)"
        )
        self.output.show()

    def _restore(self) -> None:
        """Make the terminal what it was, and speak there again."""
        was_killed = self._was_killed()
        if was_killed and self._has_drawn():
            with suppress(OSError):
                write_whole(_SCREEN, _RESET)
        with suppress(termios.error):  # hung up
            when = termios.TCSAFLUSH if was_killed else termios.TCSADRAIN  # mouse moves, or words
            if in_foreground():  # another's terminal by now is as that one wants it
                termios.tcsetattr(_KEYBOARD, when, self._modes)
        self._has_screen = False
        speak_again()

    def _was_killed(self) -> bool:
        """Whether it had no chance to tidy up; after an error of its own it has."""
        return self._process is not None and (self._process.poll() or 0) < 0

    def _has_drawn(self) -> bool:
        """Whether the view has said that it begins to draw."""
        with suppress(OSError):  # it has said nothing, or is gone
            self._has_begun |= bool(self._link.recv(1, socket.MSG_DONTWAIT))
        return self._has_begun

    def _tell_to_leave(self) -> None:
        self._told_s = self._told_s or time.monotonic()
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def training_ended(self) -> None:
        """Have the terminal left, and show the end of the output there."""
        self.output.give_keyboard_back()
        if not self._has_screen or self._process is None:
            return
        self._tell_to_leave()
        _wait(self._process, LEAVING_S if self._has_drawn() else 0.0)
        self._restore()
        with suppress(OSError):
            printed = OutputFollower(self._folder)
            printed.refresh()
            lines = (printed.lines or ())[-LAST_LINES:]
            write_whole(_OUTPUT, "".join(f"{line}\n" for line in lines).encode())
        self.output.let_out()

    def end(self) -> None:
        """The terminal has been given back long ago."""


class DashboardView:
    """The live view in the browser."""

    output = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, in a session of its own: Ctrl-C is not its business."""
        options = ("--port", str(PORT), "--until-run-ends")
        place = ("--logs-dir", str(self._folder.parent), "--run", self._folder.name)
        try:
            self._process = subprocess.Popen(
                words_for("ui", *place, *options),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # or it would keep our reader's pipe open
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            say(f"the dashboard could not be started ({error}); training goes on")

    def look_after(self) -> None:
        """Say once that the dashboard is gone."""
        if self._process is not None and self._process.poll() is not None:
            say(
                f"the dashboard ended by itself (status {self._process.returncode}); training goes "
                f"on, and `traceml ui --logs-dir {self._folder.parent}` starts it again"
            )
            self._process = None

    def training_ended(self) -> None:
        """It shows how the run ended as well."""

    def end(self) -> None:
        """Let it show the end, and go."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        _wait(self._process, LEAVING_S)


def _wait(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for a view that was told to leave; one that does not is ended."""
    deadline = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < deadline:
        signals.next_signal(0.1)
    if process.poll() is None:
        process.kill()
        process.wait()


def make_report(folder: Path) -> str | None:
    """Write the run's page as one file; why that failed, in words, or `None`."""
    done = subprocess.run(
        words_for("report", str(folder)), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"status {done.returncode}"


def open_view(mode: str, folder: Path) -> View:
    """The view that a mode stands for; without a terminal behind it, none."""
    if mode == "dashboard":
        return DashboardView(folder)
    if mode == "cli":
        try:
            return TerminalView(folder)
        except (OSError, termios.error) as error:
            say(f"the live view cannot be had ({error}); the run goes on without it")
    return NoView()
