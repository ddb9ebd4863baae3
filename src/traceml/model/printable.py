"""The one cleaner of untrusted text: a name must not move a terminal's cursor or break a line.

Names, messages and paths come from scripts, files and other machines. Whatever is printed or put
on a page passes through here.
"""

from __future__ import annotations

import re
import unicodedata

_STYLES = re.compile("\x1b\\[[0-9;:]*m")
"""What makes a terminal's text bold or coloured, as in the messages of torch.load."""


def printable(text: str) -> str:
    """The text without colours, and with a question mark for each character that cannot be
    printed."""
    if text.isprintable():
        return text
    text = _STYLES.sub("", text)
    return "".join(character if character.isprintable() else "?" for character in text)


def shell_word(path: object) -> str:
    """A path as one word of a command that people are to copy: in quotes where it needs them."""
    import shlex  # only where something is said: the training process imports this module

    return shlex.quote(str(path))


def terminal_width(text: str) -> int:
    """How many columns of a terminal the text takes: letters of Chinese, Japanese and Korean take
    two, accents that are joined to a letter none."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad_right(text: str, width: int) -> str:
    """The text with blanks after it, as wide as so many columns of a terminal."""
    return text + " " * (width - terminal_width(text))


def pad_left(text: str, width: int) -> str:
    """The text with blanks before it, as wide as so many columns of a terminal."""
    return " " * (width - terminal_width(text)) + text


def printable_lines(text: str) -> str:
    """The same for text of several lines: their ends stay."""
    return "\n".join(map(printable, text.split("\n")))


def file_lines(text: str) -> list[str]:
    """The lines of a file as compilers and git count them. `str.splitlines` ends one at a form feed
    and at other characters that stand within a line, too."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def one_line(text: object, max_length: int | None = None) -> str:
    """Anything as one printable line, single blanks between its words, cut to a length."""
    shown = printable(" ".join(str(text).split()))
    return shown if max_length is None else shorten(shown, max_length)


def shorten_middle(text: str, max_length: int) -> str:
    """The text, with an ellipsis for its middle where it is too long: of two long names that begin
    alike, the ends tell them apart."""
    if len(text) <= max_length:
        return text
    head = (max_length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (max_length - 1 - head) :]}"


def shorten_at_word(text: str, max_length: int) -> str:
    """The text, cut after a whole word where it is too long; a first word that is too long itself
    is cut."""
    if len(text) <= max_length:
        return text
    kept = text[:max_length].rpartition(" ")[0].rstrip(" +,;:-–")
    return (
        f"{kept} …" if kept.strip() and len(kept) + 2 <= max_length else shorten(text, max_length)
    )


def shorten(text: str, max_length: int) -> str:
    """The text, with an ellipsis for its end where it is too long."""
    return text if len(text) <= max_length else f"{text[: max(0, max_length - 1)]}…"
