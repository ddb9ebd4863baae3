"""Keeps what the training command prints (`--save-output`) while it still reaches the user.

A stream that is a terminal stays one: the command gets a pseudo-terminal of the same size.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path
from threading import Lock, Thread
from typing import BinaryIO

FILE_NAME = "output.log"
LAST_OUTPUT_S = 0.5
"""How long a grandchild that keeps the stream open may hold up the end."""


class KeptOutput:
    """Copies standard output and error to where they went before, and into a file."""

    def __init__(self, folder: Path) -> None:
        self._file: BinaryIO = (folder / FILE_NAME).open("ab", buffering=0)
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._ends: list[int] = []
        self._sources: list[tuple[int, int]] = []
        terminal = self._open_terminal() if sys.stdout.isatty() or sys.stderr.isatty() else None
        self.stdout = self._end_for(1, terminal)
        self.stderr = self._end_for(2, terminal)

    def _open_terminal(self) -> int:
        source, end = pty.openpty()
        where = 1 if os.isatty(1) else 2
        size = fcntl.ioctl(where, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(end, termios.TIOCSWINSZ, size)
        modes = termios.tcgetattr(end)
        modes[1] &= ~termios.OPOST  # the user's own terminal turns line ends into what it needs
        termios.tcsetattr(end, termios.TCSANOW, modes)
        self._ends.append(end)
        self._sources.append((source, where))
        return end

    def _end_for(self, stream: int, terminal: int | None) -> int:
        if terminal is not None and os.isatty(stream):
            return terminal
        source, end = os.pipe()
        self._ends.append(end)
        self._sources.append((source, stream))
        return end

    def start(self) -> None:
        """The command has its ends now: begin to copy."""
        for end in self._ends:
            os.close(end)
        for source, destination in self._sources:
            thread = Thread(target=self._copy, args=(source, destination), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _copy(self, source: int, destination: int) -> None:
        while True:
            try:
                content = os.read(source, 1 << 16)
            except OSError:  # a pseudo-terminal whose other end is closed
                break
            if not content:
                break
            with self._lock:
                try:
                    self._file.write(content)
                except OSError as error:
                    print(f"traceml: output is no longer kept: {error}", file=sys.stderr)
                    self._file = open(os.devnull, "wb", buffering=0)  # noqa: SIM115, PTH123
            try:
                _write_whole(destination, content)
            except OSError:  # whoever read our output has gone: the command must learn it as we do
                break
        os.close(source)

    def finish(self) -> None:
        """The command has ended: take what is still on its way."""
        for thread in self._threads:
            thread.join(LAST_OUTPUT_S)
        self._file.close()


def _write_whole(destination: int, content: bytes) -> None:
    while content:
        content = content[os.write(destination, content) :]
