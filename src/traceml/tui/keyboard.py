"""The keyboard of the command behind the view: what is pressed here reaches its terminal."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import termios
from contextlib import suppress

_LOCAL_MODES, _CHARACTERS = 3, 6
MAX_LINE_BYTES = 4000
"""A terminal takes lines of 4,095 bytes; more would wait there for ever."""

AT_ONCE = 1 << 10
"""What a terminal that says it is ready takes without making us wait."""


class Keyboard:
    """Presses keys on a terminal that we hold the other side of; never waits for its reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_line(self, text: str) -> bool:
        """Type a line; whether it was taken."""
        return self._press(text.encode()[:MAX_LINE_BYTES] + b"\n")

    def interrupt(self) -> None:
        """Ctrl-C, whatever the terminal's settings make of it."""
        self._press_or_signal(termios.VINTR, signal.SIGINT)

    def quit(self) -> None:
        """Ctrl-\\."""
        self._press_or_signal(termios.VQUIT, signal.SIGQUIT)

    def end_of_file(self) -> None:
        """Ctrl-D."""
        self._press(self._character(termios.VEOF))

    def asks_for_a_secret(self) -> bool:
        """Whether whoever reads a line now does not want it to be seen."""
        try:
            modes = termios.tcgetattr(self._descriptor)[_LOCAL_MODES]
        except termios.error:
            return False
        # Without lines the reader shows by itself what is typed (readline).
        return bool(modes & termios.ICANON) and not modes & termios.ECHO

    def resize(self, rows: int, columns: int) -> None:
        """Say how large the pane is in which the command's output is seen."""
        with suppress(OSError):
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, size)

    def _press_or_signal(self, character: int, number: int) -> None:
        if self._press(self._character(character)):
            return
        with suppress(OSError):  # nobody reads, and its input is full: the group is told directly
            group = os.tcgetpgrp(self._descriptor)
            if group > 0:  # 0 would be our own
                os.killpg(group, number)

    def _character(self, place: int) -> bytes:
        try:
            character = termios.tcgetattr(self._descriptor)[_CHARACTERS][place]
        except termios.error:
            return b""
        return character if isinstance(character, bytes) else bytes([character])

    def _press(self, keys: bytes) -> bool:
        try:
            for begin in range(0, len(keys), AT_ONCE):
                _, is_ready, _ = select.select([], [self._descriptor], [], 0)
                if not is_ready:
                    return False
                os.write(self._descriptor, keys[begin : begin + AT_ONCE])
        except OSError:  # the command has closed its terminal
            return False
        return True
