"""Writes the training command's output to a file while it still reaches the user.

A stream that is a terminal stays one: the command gets a pseudo-terminal of the same size.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock, Thread

from traceml.launch.messages import say
from traceml.store.descriptors import wait_until_readable
from traceml.store.folder import EARLIER_OUTPUT, OUTPUT
from traceml.store.line_files import write_whole

LAST_OUTPUT_S = 0.5
"""How long in total a child process that keeps the stream open may delay the end."""
MAX_IN_FLIGHT_BYTES = 1 << 20
"""No pipe or terminal buffers more than this: later output was printed after the end."""

MAX_FILE_BYTES = 512 << 20
"""A live view stores the output by itself: it must not fill the disk that checkpoints need."""

PATIENCE_S = 0.1
"""How often to check, at the end, whether the user still waits for the output."""


class KeptOutput:
    """Copies standard output and error to where they went before, and into a file."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError where the file cannot be created, or a stream is closed already."""
        terminals = [stream for stream in (1, 2) if os.fstat(stream) and os.isatty(stream)]
        self._folder = folder
        self._file: int | None = self._open_file()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._ends: list[int] = []
        self._sources: list[tuple[int, int]] = []
        self._terminal: tuple[int, int] | None = None
        self._over, self._say_over = os.pipe()
        ends = {stream: self._open_pipe(stream) for stream in (1, 2) if stream not in terminals}
        if terminals:
            ends |= dict.fromkeys(terminals, self._open_terminal(terminals[0]))
        self.stdin: int | None = None
        """What the command reads; `None`: what we would."""
        self.keys: tuple[int, ...] = ()
        """Where its keys are pressed, if it has a keyboard of its own."""
        self.stdout, self.stderr = ends[1], ends[2]

    def _open_terminal(self, where: int) -> int:
        source, end = pty.openpty()
        modes = termios.tcgetattr(end)
        modes[1] &= ~termios.OPOST  # the user's own terminal turns line ends into what it needs
        termios.tcsetattr(end, termios.TCSANOW, modes)
        self._terminal = source, where
        self.resize()
        self._ends.append(end)
        self._sources.append((source, where))
        return end

    def _open_pipe(self, stream: int) -> int:
        source, end = os.pipe()
        self._ends.append(end)
        self._sources.append((source, stream))
        return end

    def resize(self) -> None:
        """Gives the command's terminal the size of the user's."""
        if self._terminal is None:
            return
        source, where = self._terminal
        try:
            size = fcntl.ioctl(where, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
            fcntl.ioctl(source, termios.TIOCSWINSZ, size)
        except OSError:
            return  # the user's terminal is gone, or the command has closed its own

    def start(self) -> None:
        """Begins to copy; called once the command has its ends of the streams."""
        for end in self._ends:
            os.close(end)
        for source, destination in self._sources:
            thread = Thread(target=self._copy, args=(source, destination), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _copy(self, source: int, destination: int) -> None:
        for content in self._pieces(source):
            self._keep(content)
            if not self._show(content, destination):
                break
        self._terminal = None
        os.close(source)

    def _show(self, content: bytes, destination: int) -> bool:
        """Passes output on to the user; returns whether more is wanted."""
        try:
            write_whole(destination, content)
        except OSError:  # whoever read our output has gone: the command must learn it as we do
            return False
        return True

    def _pieces(self, source: int) -> Iterator[bytes]:
        """Yields the output until the stream ends, or until the command has ended and its output is
        read."""
        patience_s, expected = LAST_OUTPUT_S, MAX_IN_FLIGHT_BYTES
        while expected > 0:
            ready = wait_until_readable([source, self._over], None)
            is_over = self._over in ready
            if source not in ready:
                began_s = time.monotonic()
                ready = wait_until_readable([source], max(patience_s, 0.0))
                patience_s -= time.monotonic() - began_s
            try:
                content = os.read(source, 1 << 16) if source in ready else b""
            except OSError:  # a pseudo-terminal whose other end is closed
                return
            if not content:
                return
            expected -= len(content) if is_over else 0
            yield content

    def _open_file(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.open(self._folder / OUTPUT, flags, 0o600)

    def _keep(self, content: bytes) -> None:
        with self._lock:
            if self._file is None:
                return
            try:
                self._make_room(self._file)
                write_whole(self._file, content)
            except OSError as error:
                say(f"the output is no longer kept: {error.strerror}")
                os.close(self._file)
                self._file = None

    def _make_room(self, file: int) -> None:
        """Renames a full file, replacing the one renamed before; raises OSError."""
        if os.fstat(file).st_size < MAX_FILE_BYTES:
            return
        earlier = self._folder / EARLIER_OUTPUT
        if not earlier.exists():
            say(f"the script prints a lot: the last {MAX_FILE_BYTES >> 20} MiB of it are kept")
        (self._folder / OUTPUT).replace(earlier)
        self._file = self._open_file()
        os.close(file)

    def finish(self, is_unwanted: Callable[[], bool]) -> None:
        """Reads the remaining output after the command has ended, however slow its reader is.

        A reader that does not read delays us as it would have delayed the command, until
        `is_unwanted` says that the user does not want to wait.
        """
        os.close(self._say_over)
        for thread in self._threads:
            while thread.is_alive() and not is_unwanted():
                thread.join(PATIENCE_S)
