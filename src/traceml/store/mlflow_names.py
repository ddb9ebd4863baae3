"""How names and values are written so that MLflow takes them, and read back.

MLflow allows letters of any script, digits, blanks and `_ - . : /` in names, and nothing that a
path would shorten (`a//b`, `../a`). Every other character is written as `_xHHHH_`, its number in
hexadecimal digits, so that the name can be read back.
"""

from __future__ import annotations

import hashlib
import posixpath
import re

MAX_NAME_CHARS = 250
PARAM_VALUE_CHARS = (6000, 500, 250)
"""The lengths that servers take: of today, before 2.8, and before 1.28."""
MAX_TAG_CHARS = 5000
"""What servers of every version take."""

_FORBIDDEN = re.compile(r"[^\w\-. :/]")
_ESCAPED = re.compile(r"_x([0-9A-F]{4,6})_")
_LOOKS_ESCAPED = re.compile(r"_(?=x[0-9A-F]{4,6}_)")
_HASH_CHARS = 8


def sent_name(name: str) -> str:
    """Returns the name under which MLflow keeps a parameter or a metric.

    A name that is still too long ends in a hash; `read_name` does not bring that one back.
    """
    # First what looks like an escape in the name itself, so that reading does not take it for one.
    found = _LOOKS_ESCAPED.sub(_escape("_"), name)
    found = _FORBIDDEN.sub(lambda match: _escape(match[0]), found)
    found = _with_safe_path(found)
    if len(found) > MAX_NAME_CHARS:
        digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:_HASH_CHARS]
        found = f"{found[: MAX_NAME_CHARS - _HASH_CHARS - 1].rstrip('/. ')}-{digest}"
    return found


def read_name(sent: str) -> str:
    """Returns the name that was sent."""
    return _ESCAPED.sub(_unescape, sent)


def is_shortened(name: str) -> bool:
    """Returns whether a name is too long to be read back."""
    return read_name(sent_name(name)) != name


def _escape(character: str) -> str:
    return f"_x{ord(character):04X}_"


def _unescape(match: re.Match[str]) -> str:
    number = int(match[1], 16)
    is_character = number <= 0x10FFFF and not 0xD800 <= number <= 0xDFFF
    return chr(number) if is_character else match[0]


def _with_safe_path(name: str) -> str:
    """Returns a name that is its own normal path: what MLflow would refuse is escaped."""
    if not name.strip():
        return "".join(map(_escape, name)) or _escape("\0")
    if _is_safe_path(name):
        return name
    parts = [
        "".join(map(_escape, part)) if part in (".", "..") else part for part in name.split("/")
    ]
    found = parts[0]
    for part in parts[1:]:
        # An empty part stands before or behind a slash that a path would drop.
        is_kept = bool(part) and bool(found) and not found.endswith("/")
        found += ("/" if is_kept else _escape("/")) + part
    return found if _is_safe_path(found) else found.replace("/", _escape("/"))


def _is_safe_path(name: str) -> bool:
    normal = posixpath.normpath(name)
    return normal == name and normal != "." and not normal.startswith(("..", "/"))


def shortened(text: str, limit: int) -> str:
    """Returns a text of at most so many characters; one that was cut ends in an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
