"""The line for text that the command reads."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from traceml.tui.keyboard import Keyboard


class TypingLine(Input):
    """Sends its text to the command's terminal, line by line; hidden until it is opened."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+d", "end_of_file", show=False, priority=True),
    ]

    class Typed(Message):
        """Something was sent."""

    def __init__(self, keyboard: Keyboard) -> None:
        hint = "Enter sends the line · Ctrl-D ends the input · Esc closes this"
        super().__init__(placeholder=hint, id="typing", compact=True)
        self._keyboard = keyboard
        self.display = False

    def open(self) -> None:
        """Shows the line and focuses it."""
        self.display = True
        self.hide_if_secret()
        self.focus()

    def close(self) -> None:
        """Hides the line and drops its text."""
        self.value = ""
        self.display = False

    def hide_if_secret(self) -> None:
        """Hides the text while the command asks for a password."""
        self.password = self._keyboard.asks_for_a_secret()

    def on_input_submitted(self) -> None:
        """Sends the line; it stays if the command does not accept it."""
        if self._keyboard.write_line(self.value):
            self.value = ""
            self.post_message(self.Typed())

    def action_end_of_file(self) -> None:
        """Sends the end of the input."""
        self._keyboard.end_of_file()
        self.post_message(self.Typed())
