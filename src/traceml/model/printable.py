"""Foreign text made fit to be shown: a name must not move the cursor or break a line."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with a question mark for whatever cannot be printed."""
    return "".join(character if character.isprintable() else "?" for character in text)
