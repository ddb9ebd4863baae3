"""The terminal that the command has while the user's own shows the live view.

It is one as any other: the command's input, output and error, its controlling terminal, with the
user's own settings. What is printed there is kept in a file, which the view reads; when the view is
gone it goes to the user's terminal again.
"""

from __future__ import annotations

import fcntl
import os
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from traceml.launch.output import LAST_OUTPUT_S, KeptOutput, write_whole

_OUTPUT_MODES, _LOCAL_MODES, _CHARACTERS = 1, 3, 6
_KEYBOARD = 0


class OutputBehindView(KeptOutput):
    """Copies the command's terminal into a file alone, until `show` is said."""

    def __init__(self, folder: Path, when_lost: Callable[[], None]) -> None:
        """`when_lost` is called where nothing can be kept any more: the view is blind then."""
        self._when_lost = when_lost
        self._is_shown = Event()
        self._has_reader = True
        super().__init__(folder)
        super().resize()
        self.stdin = self.stdout
        (source, _), *_ = self._sources
        self._key = os.dup(source)  # open until we end, whoever closes the other side
        self.keys = (self._key,)
        modes = termios.tcgetattr(_KEYBOARD)
        modes[_OUTPUT_MODES] &= ~termios.OPOST
        termios.tcsetattr(self.stdout, termios.TCSANOW, modes)

    def resize(self) -> None:
        """As large as the user's, once that shows it; until then the view says how large."""
        if self._is_shown.is_set():
            super().resize()

    def _show(self, content: bytes, destination: int) -> bool:
        if self._waits_for_screen():
            self._when_lost()
            self._is_shown.wait()
        if self._is_shown.is_set() and self._has_reader:
            try:
                write_whole(destination, content)
            except OSError:  # hung up: the command has had its SIGHUP, and what it says is kept
                self._has_reader = False
        return True

    def _waits_for_screen(self) -> bool:
        return self._file is None and not self._is_shown.is_set()

    def finish(self, is_unwanted: Callable[[], bool]) -> None:
        """Take what is still on its way; what cannot be kept waits until the view has left."""
        super().finish(lambda: self._waits_for_screen() or is_unwanted())

    def let_out(self) -> None:
        """The view has left for good: show what could not be kept."""
        self._is_shown.set()
        for thread in self._threads:
            thread.join(2 * LAST_OUTPUT_S)

    def show(self) -> None:
        """The user's terminal is free again: copy to it, and what is typed there to the command."""
        self._is_shown.set()
        self.resize()
        with suppress(termios.error):  # the user's terminal shows already what is typed
            modes = termios.tcgetattr(self._key)
            modes[_LOCAL_MODES] &= ~termios.ECHO
            termios.tcsetattr(self._key, termios.TCSANOW, modes)
        Thread(target=self._type, daemon=True).start()

    def _type(self) -> None:
        with suppress(OSError, termios.error):  # either terminal is gone
            while (typed := os.read(_KEYBOARD, 1 << 10)) or os.isatty(_KEYBOARD):
                end_of_file = termios.tcgetattr(self._key)[_CHARACTERS][termios.VEOF]
                write_whole(self._key, typed or end_of_file)


def take_terminal() -> None:
    """Make standard input the terminal of a process that has just begun a session."""
    with suppress(OSError):
        fcntl.ioctl(_KEYBOARD, termios.TIOCSCTTY, 0)
