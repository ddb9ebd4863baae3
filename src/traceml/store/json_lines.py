"""Decodes the JSON of run folders, which may be cut short, damaged or foreign."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises: not JSON, not UTF-8, of another type than expected, nested too deeply."""

MAX_INTEGER = (1 << 63) - 1
_ALL_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19

T = TypeVar("T")


def decode_lines(lines: Iterable[bytes], decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
    """Yields the decoded lines; a line that cannot be decoded is skipped."""
    for line in lines:
        try:
            if not holds_huge_number(line):
                yield decoder.decode(line)
        except UNDECODABLE:
            continue  # cut short by a killed agent, or damaged


def load_json(content: bytes) -> Any:
    """Returns a decoded document; raises one of `UNDECODABLE`.

    Half of a surrogate pair, which JSON can express and no file can hold, becomes a question mark.
    """
    found = json.loads(content)
    return _encodable(found) if b"\\ud" in content or b"\\uD" in content else found


def _encodable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_encodable(name): _encodable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_encodable(part) for part in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def holds_huge_number(content: bytes) -> bool:
    """Returns whether an integer in it exceeds 64 bits; TraceML never writes one."""
    if _LONG_NUMBER not in content.translate(_ALL_DIGITS_ALIKE):
        return False
    try:
        return _is_huge(json.loads(content))
    except UNDECODABLE:  # Python itself refuses integers of thousands of digits
        return True


def _is_huge(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_huge, value.values()))
    if isinstance(value, list):
        return any(map(_is_huge, value))
    return isinstance(value, int) and abs(value) > MAX_INTEGER
