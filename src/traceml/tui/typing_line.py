"""The line in which people type what the command reads."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from traceml.tui.keyboard import Keyboard


class TypingLine(Input):
    """Its text goes to the command's terminal, a line at a time; closed until it is wanted."""

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
        """Be there, and have the keys."""
        self.display = True
        self.hide_if_secret()
        self.focus()

    def close(self) -> None:
        """Be gone, with whatever was not sent."""
        self.value = ""
        self.display = False

    def hide_if_secret(self) -> None:
        """Show no password."""
        self.password = self._keyboard.asks_for_a_secret()

    def on_input_submitted(self) -> None:
        """Send the line; one that the command does not take stays."""
        if self._keyboard.write_line(self.value):
            self.value = ""
            self.post_message(self.Typed())

    def action_end_of_file(self) -> None:
        """Nothing more will be typed, for now."""
        self._keyboard.end_of_file()
        self.post_message(self.Typed())
