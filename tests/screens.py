"""What people see on a terminal: its bytes as a screen, with the second screen that views use."""

from __future__ import annotations

import copy
import termios
from dataclasses import dataclass, field
from typing import Any

import pyte

from processes import Finished, Terminal, wait_until

_SECOND_SCREEN = 1049
_MOUSE = {1000, 1002, 1003, 1006, 1015, 1016}
_LOCAL_MODES = 3


class _Screens(pyte.Screen):  # type: ignore[misc]
    """A screen and the second one; `pyte` knows the first alone."""

    def __init__(self, columns: int, lines: int) -> None:
        self.first: tuple[Any, Any] | None = None
        self.private: set[int] = set()
        super().__init__(columns, lines)

    def set_mode(self, *modes: int, **options: Any) -> None:
        if options.get("private"):
            self.private |= set(modes)
            if _SECOND_SCREEN in modes and self.first is None:
                self.first = copy.deepcopy(self.buffer), copy.copy(self.cursor)
                self.erase_in_display(2)
        super().set_mode(*modes, **options)

    def reset_mode(self, *modes: int, **options: Any) -> None:
        if options.get("private"):
            self.private -= set(modes)
            if _SECOND_SCREEN in modes and self.first is not None:
                self.buffer, self.cursor = self.first
                self.first = None
        super().reset_mode(*modes, **options)


@dataclass
class Watched:
    """A terminal that is looked at."""

    terminal: Terminal
    rows: int
    columns: int
    _fed: int = field(default=0, init=False)
    _is_over: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._screen = _Screens(self.columns, self.rows)
        self._stream = pyte.ByteStream(self._screen)

    def resize(self, rows: int, columns: int) -> None:
        """Give the terminal another size."""
        self.terminal.resize(rows, columns)
        self._screen.resize(rows, columns)

    @property
    def text(self) -> str:
        """What is on the screen now."""
        if not self._is_over:
            self.terminal.read()
        self._stream.feed(self.terminal.shown[self._fed :])
        self._fed = len(self.terminal.shown)
        return "\n".join(line.rstrip() for line in self._screen.display)

    def wait_for(self, *words: str) -> str:
        """Wait until all of these are on the screen; the whole of it."""
        found = ""

        def are_there() -> bool:
            nonlocal found
            found = self.text
            return all(word in found for word in words)

        try:
            wait_until(are_there, f"{words} are on the screen")
        except BaseException:
            print(found)
            raise
        return found

    def finish(self) -> Finished:
        """Wait for the command's end; the terminal must be as it was."""
        done = self.terminal.finish()
        self.assert_is_as_it_was()
        self._is_over = True
        return done

    def assert_is_as_it_was(self) -> None:
        """The first screen; the keyboard as shells leave it."""
        self.assert_shows_the_first_screen()
        modes = termios.tcgetattr(self.terminal.master)[_LOCAL_MODES]
        for mode in (termios.ECHO, termios.ICANON, termios.ISIG):
            assert modes & mode

    def assert_shows_the_first_screen(self) -> None:
        """With a cursor and without a mouse."""
        assert self.text
        assert self._screen.first is None
        assert not self._screen.cursor.hidden
        assert not self._screen.private & _MOUSE
