"""The keyboard of the command behind the view: keys pressed here reach its terminal."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from contextlib import suppress

from traceml.store.descriptors import wait_until_writable

_LOCAL_MODES, _CHARACTERS = 3, 6
MAX_LINE_BYTES = 4000
"""A terminal accepts lines of 4,095 bytes; a longer one would block."""

AT_ONCE = 1 << 10
"""Bytes that a ready terminal accepts without blocking."""


class Keyboard:
    """Sends keys to a pseudo-terminal; never waits for its reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write_line(self, text: str) -> bool:
        """Sends a line; returns whether it was accepted."""
        return self._press(text.encode()[:MAX_LINE_BYTES] + b"\n")

    def interrupt(self) -> None:
        """Sends Ctrl-C, whatever the terminal's settings are."""
        self._press_or_signal(termios.VINTR, signal.SIGINT)

    def quit(self) -> None:
        r"""Sends Ctrl-\."""
        self._press_or_signal(termios.VQUIT, signal.SIGQUIT)

    def end_of_file(self) -> None:
        """Sends Ctrl-D."""
        self._press(self._character(termios.VEOF))

    def asks_for_a_secret(self) -> bool:
        """Returns whether the program that reads a line has turned echo off."""
        try:
            modes = termios.tcgetattr(self._descriptor)[_LOCAL_MODES]
        except termios.error:
            return False
        # Without lines the reader shows by itself what is typed (readline).
        return bool(modes & termios.ICANON) and not modes & termios.ECHO

    def resize(self, rows: int, columns: int) -> None:
        """Sets the terminal's size to that of the output pane."""
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
                if not wait_until_writable(self._descriptor, 0):
                    return False
                os.write(self._descriptor, keys[begin : begin + AT_ONCE])
        except OSError:  # the command has closed its terminal
            return False
        return True
