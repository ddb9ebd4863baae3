"""The page's colours on the terminal's background."""

from __future__ import annotations

from dataclasses import dataclass

from textual.theme import Theme

from traceml.figures.colours import GROUND, HEAT, PALETTE
from traceml.figures.page import Tone
from traceml.model.phase import Colour

DARK, LIGHT = "traceml-dark", "traceml-light"

MARKS: dict[Tone, str] = {"good": "✔", "info": "●", "warn": "▲", "crit": "✖", "muted": "○"}
"""The mark of a severity where there are no colours."""
SEVERITY_WORDS: dict[Tone, str] = {"warn": "warning", "crit": "critical"}

_WORDS = Colour("#1f2328", "#e6edf3")
_EDGE = Colour("#c9d1d9", "#30363d")


@dataclass(frozen=True)
class Ink:
    """The palette for one background, light or dark."""

    is_dark: bool

    def __getitem__(self, name: str) -> str:
        """Returns the colour that a page names; for an unknown name, that of text."""
        found = PALETTE.get(name, _WORDS)
        return found.dark if self.is_dark else found.light

    def tone(self, tone: Tone | None) -> str:
        """Returns the text colour of a tone; no style where there is none."""
        return "" if tone is None else self[tone]

    @property
    def heat(self) -> tuple[str, ...]:
        """Returns the colours of a heat map, from low to high."""
        return HEAT if self.is_dark else HEAT[::-1]


def theme(is_dark: bool) -> Theme:
    """Returns the palette as a theme for the whole screen."""

    def pick(colour: Colour) -> str:
        return colour.dark if is_dark else colour.light

    return Theme(
        name=DARK if is_dark else LIGHT,
        dark=is_dark,
        primary=pick(PALETTE["info"]),
        warning=pick(PALETTE["warn"]),
        error=pick(PALETTE["crit"]),
        success=pick(PALETTE["good"]),
        foreground=pick(_WORDS),
        background=pick(GROUND),
        surface=pick(GROUND),
        panel=pick(_EDGE),
    )
