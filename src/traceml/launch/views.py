"""Live views of a run: separate processes whose failure does not affect the run.

The terminal view uses the user's terminal until the training ends or the user leaves it; the
dashboard serves pages until the summary is written and, where somebody has looked at them, for a
while after that: who comes back to the page, or loads it again, still finds it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from traceml.launch import signals
from traceml.launch.display_mode import STAYS, in_foreground
from traceml.launch.hidden_terminal import HiddenTerminal
from traceml.launch.kept_output import KeptOutput
from traceml.launch.messages import pause_messages, resume_messages, say
from traceml.model.printable import shell_word
from traceml.store.descriptors import wait_until_readable
from traceml.store.line_files import write_whole
from traceml.store.output_follower import OutputFollower

LEAVING_S = 3.0
"""How long a view may take to end when it is asked to."""
LAST_LINES = 40
"""Lines of output that are printed again after the view has ended."""
PORT = 8765
STAY_S = 3600.0
"""How long a dashboard that somebody has looked at stays after the run, from the last look on."""

_PROGRAM = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
sys.path.insert(0, sys.argv[1])
from traceml.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""Starts a view's process, in which Ctrl-C is a key or ignored."""
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
"""Terminal escapes that undo what a view may have set."""


class View(Protocol):
    """The interface between the launcher and a view."""

    @property
    def output(self) -> KeptOutput | None:
        """The command's streams, where the view handles them; else `None`."""

    def start(self) -> None:
        """Called when the training runs."""

    def check(self) -> None:
        """Called when some child process has ended, which may be the view."""

    def training_ended(self) -> None:
        """Called when the training has ended."""

    def end(self) -> None:
        """Called when the summary is written and the run is unlocked."""


class NoView:
    """Shows nothing before the summary."""

    output = None

    def start(self) -> None:
        """Does nothing."""

    def check(self) -> None:
        """Does nothing."""

    def training_ended(self) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Does nothing."""


def words_for(*words: str) -> list[str]:
    """Returns the command line that runs one of our commands from this package, whatever the
    environment."""
    return [sys.executable, "-c", _PROGRAM, str(_PACKAGE), *words]


class TerminalView:
    """The live view in the user's terminal."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the command cannot have a pseudo-terminal."""
        self._folder = folder
        self._modes = termios.tcgetattr(_KEYBOARD)
        self._process: subprocess.Popen[bytes] | None = None
        self._link, self._other_end = socket.socketpair()
        self._has_screen = self._has_begun = False
        self._told_s: float | None = None
        self.output = HiddenTerminal(folder, self._tell_to_leave)

    def start(self) -> None:
        """Starts the view in the terminal."""
        pause_messages()
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

    def check(self) -> None:
        """Takes the terminal back from a view that has ended, or does not end although asked to."""
        if self._is_overdue() and self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._has_screen and self._process is not None and self._process.poll() is not None:
            status = self._process.returncode
            how = "was left" if status == 0 else f"exited (status {status})"
            self._take_screen_back(f"the live view {how}")

    def _is_overdue(self) -> bool:
        return self._told_s is not None and time.monotonic() > self._told_s + LEAVING_S

    def _take_screen_back(self, why: str) -> None:
        self._restore()
        say(
            f"{why}; training goes on and its output follows here "
            f"(`traceml watch {shell_word(self._folder)}` shows it live again)"
        )
        self.output.show()

    def _restore(self) -> None:
        """Restores the terminal and prints the messages that were kept back."""
        was_killed = self._was_killed()
        if was_killed and self._has_drawn():
            with suppress(OSError):
                write_whole(_SCREEN, _RESET)
        with suppress(termios.error):  # hung up
            when = termios.TCSAFLUSH if was_killed else termios.TCSADRAIN  # mouse moves, or words
            if in_foreground():  # another's terminal by now is as that one wants it
                termios.tcsetattr(_KEYBOARD, when, self._modes)
        self._has_screen = False
        resume_messages()

    def _was_killed(self) -> bool:
        """Returns whether the view could not clean up; after an error of its own it can."""
        return self._process is not None and (self._process.poll() or 0) < 0

    def _has_drawn(self) -> bool:
        """Returns whether the view has reported that it begins to draw."""
        with suppress(OSError):  # it has said nothing, or is gone
            self._has_begun |= bool(self._link.recv(1, socket.MSG_DONTWAIT))
        return self._has_begun

    def _tell_to_leave(self) -> None:
        self._told_s = self._told_s or time.monotonic()
        with suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def training_ended(self) -> None:
        """Ends the view, and prints the end of the output."""
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
        """Does nothing: the view has ended already."""


class DashboardView:
    """The live view in the browser."""

    output = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server in its own session, so that Ctrl-C does not reach it."""
        options = ("--port", str(PORT), "--until-run-ends", "--stay", str(STAY_S))
        place = ("--logs-dir", str(self._folder.parent), "--run", self._folder.name)
        try:
            self._process = subprocess.Popen(
                words_for("ui", *place, *options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,  # ours would keep our reader's pipe open
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            say(f"the dashboard could not be started ({error}); training goes on")

    def check(self) -> None:
        """Prints once that the dashboard is gone."""
        if self._process is not None and self._process.poll() is not None:
            say(
                f"the dashboard exited (status {self._process.returncode}); training goes "
                f"on, and `traceml ui --logs-dir {shell_word(self._folder.parent)}` starts it again"
            )
            self._process = None

    def training_ended(self) -> None:
        """Does nothing: the page shows how the run ended as well."""

    def end(self) -> None:
        """Lets the page show the end, and stops the server unless somebody looks at it."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        if _says_that_it_stays(self._process, LEAVING_S):
            say(
                "the dashboard stays for who has it open, until nobody has looked at it for "
                f"{STAY_S / 60:.0f} minutes (`kill {self._process.pid}` ends it now)"
            )
        else:
            _wait(self._process, LEAVING_S)


def _says_that_it_stays(process: subprocess.Popen[bytes], patience_s: float) -> bool:
    """Returns whether a view that was asked to end says that it is still looked at."""
    assert process.stdout is not None
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if wait_until_readable([process.stdout.fileno()], 0):
            return os.read(process.stdout.fileno(), 64).decode() == f"{STAYS}\n"
        signals.next_signal(0.1)
    return False


def _wait(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """Waits for a view that was asked to end, and kills it if it does not."""
    deadline = time.monotonic() + patience_s
    while process.poll() is None and time.monotonic() < deadline:
        signals.next_signal(0.1)
    if process.poll() is None:
        process.kill()
        process.wait()


def make_report(folder: Path) -> str | None:
    """Writes the run's page as one file; returns why that failed, or `None`."""
    done = subprocess.run(
        words_for("report", str(folder)), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return said[-1] if said else f"status {done.returncode}"


def open_view(mode: str, folder: Path) -> View:
    """Returns the view of a mode; none where the command cannot have a pseudo-terminal."""
    if mode == "dashboard":
        return DashboardView(folder)
    if mode == "cli":
        try:
            return TerminalView(folder)
        except (OSError, termios.error) as error:
            say(f"the live view could not be started ({error}); the run goes on without it")
    return NoView()
