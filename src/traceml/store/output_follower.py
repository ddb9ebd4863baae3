"""Follows the end of the training's output, as a terminal would show it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from traceml.model.printable import printable
from traceml.store.folder import OUTPUT
from traceml.store.regular_files import open_regular, stat_regular

MAX_LINES = 200
MAX_COLUMNS = 1000
TAIL_BYTES = 1 << 16

_TOKEN = re.compile(
    r"\x1b\[(?P<arguments>[0-?]*)[ -/]*(?P<command>[@-~])"  # a cursor that moves, a colour …
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # a title, a link, a picture: what ends with a mark
    r"|\x1b[ -/]*[0-~]"
    r"|(?P<control>[\r\n\b\t])"
    r"|(?P<text>[^\x1b\r\n\b\t]+)",
    re.DOTALL,
)


class OutputFollower:
    """The last lines of `output.log`; read again when it changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / OUTPUT
        self._known: tuple[int, int, int] | None = None
        self.lines: tuple[str, ...] | None = None
        """`None`: nothing is kept of it."""

    def refresh(self) -> None:
        """Reads what is new; a link or a pipe of that name is ignored."""
        found = stat_regular(self._path)
        if found is None:
            return
        known = found.st_ino, found.st_size, found.st_mtime_ns
        try:
            if known != self._known:
                self.lines, self._known = last_lines(self._path, MAX_LINES), known
        except OSError:  # gone, or replaced by what is no file
            return


def last_lines(path: Path, most: int) -> tuple[str, ...]:
    """Returns the last lines printed into a file; raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES)
        file.seek(start)
        lines = shown(file.read(TAIL_BYTES).decode(errors="replace"))
    if start and len(lines) > 1:
        lines = lines[1:]  # its beginning is missing
    return lines[-most:]


def shown(text: str) -> tuple[str, ...]:
    """Returns the lines that a very tall terminal would show: a progress bar overwrites itself.

    Colours and titles are removed, and other unprintable characters are question marks.
    """
    screen = _Screen()
    for token in _TOKEN.finditer(text):
        if token["text"] is not None:
            screen.write(printable(token["text"]))
        elif token["control"] is not None:
            screen.control(token["control"])
        elif token["command"] is not None:
            screen.command(token["command"], token["arguments"])
    lines = ["".join(line).rstrip() for line in screen.lines]
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines)


class _Screen:
    """Lines of characters, and a cursor."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self._row = 0
        self._column = 0

    def write(self, text: str) -> None:
        line = self.lines[self._row]
        text = text[: max(0, MAX_COLUMNS - self._column)]
        line.extend(" " * (self._column - len(line)))
        line[self._column : self._column + len(text)] = text
        self._column += len(text)

    def control(self, character: str) -> None:
        if character == "\n":
            self._move_to(self._row + 1, 0)
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        else:
            self._column = min(MAX_COLUMNS, (self._column // 8 + 1) * 8)

    def command(self, name: str, arguments: str) -> None:
        first = arguments.split(";")[0]
        count = int(first[:5]) if first.isdigit() else None
        if name in "AF":
            self._move_to(self._row - (count or 1), 0 if name == "F" else self._column)
        elif name in "BE":
            lowest = len(self.lines) - 1  # only a line feed makes a new line
            row = max(self._row, min(lowest, self._row + (count or 1)))
            self._move_to(row, 0 if name == "E" else self._column)
        elif name == "C":
            self._column = min(MAX_COLUMNS, self._column + (count or 1))
        elif name == "D":
            self._column = max(0, self._column - (count or 1))
        elif name == "G":
            self._column = min(MAX_COLUMNS, max(0, (count or 1) - 1))
        elif name == "K":
            self._erase(count or 0)

    def _erase(self, how: int) -> None:
        line = self.lines[self._row]
        if how == 0:
            del line[self._column :]
        else:
            until = len(line) if how == 2 else min(len(line), self._column + 1)
            line[:until] = " " * until

    def _move_to(self, row: int, column: int) -> None:
        self._row, self._column = max(0, row), column
        while len(self.lines) <= self._row:
            self.lines.append([])
