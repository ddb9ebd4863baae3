"""The help screen: what the keys do."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

_KEYS = (
    ("Tab, Shift-Tab", "next pane, previous pane"),
    ("↑ ↓ PgUp PgDn Home End", "scroll the pane; the mouse wheel does too"),
    ("o", "the output on the whole screen, and back"),
    ("d", "light or dark"),
    ("?", "these words"),
)
_ATTACHED = (
    ("Ctrl-C", "interrupt the training, as without TraceML"),
    ("Ctrl-\\", "make it quit (SIGQUIT)"),
    ("i", "type a line for the script: answers, pdb; Ctrl-D ends its input"),
    ("q", "leave this view; training goes on, its output follows in the terminal"),
)
_FROM_OUTSIDE = (("q, Ctrl-C", "leave this view; the run goes on"),)
_WORDS = """
Skew is how much longer the worst rank takes than the median one.
Rest is what a step takes besides the phases that have a name."""


class Help(ModalScreen[None]):
    """Closed by any of the keys that open and close things."""

    CSS = """
    Help { align: center middle; }
    #help {
        width: auto; max-width: 90%; height: auto; max-height: 90%;
        padding: 1 2; border: round $primary; background: $background;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", show=False),
    ]

    def __init__(self, is_attached: bool) -> None:
        super().__init__()
        self._is_attached = is_attached

    def compose(self) -> ComposeResult:
        """Yields one card."""
        keys = (*(_ATTACHED if self._is_attached else _FROM_OUTSIDE), *_KEYS)
        lines = "\n".join(f"{key:<23} {words}" for key, words in keys)
        card = Static(Text(f"{lines}\n{_WORDS}"), id="help", markup=False)
        card.border_title = "Keys"
        yield card
