"""Times of many layers in few bytes: two bytes each, as text for a line of JSON.

A number is written by its logarithm, so that a microsecond and an hour are both known to a four
thousandth, which is far less than what a time varies from step to step. Small counts stay exact.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable
from math import log
from zlib import compress, decompressobj, error

STEPS_PER_E = 2189.0
"""Codes per factor of e: the largest one is 10¹³ nanoseconds, three hours."""
MAX_CODE = 65535
MAX_UNPACKED_BYTES = 1 << 20
"""More is no list of ours: a damaged or foreign file must not fill the memory."""

REPEATED = 4
"""Numbers of which each occurs more often than this, in the mean, are compressed …"""
COMPRESSED = "~"
"""… and the text says so with this letter."""


def pack(values: Iterable[float]) -> str:
    """Returns numbers from 0 on as text; what is below one is zero."""
    numbers = [int(STEPS_PER_E * log(value) + 1.5) if value >= 1 else 0 for value in values]
    try:
        codes = array("H", numbers)
    except OverflowError:
        codes = array("H", [min(number, MAX_CODE) for number in numbers])
    if sys.byteorder == "big":
        codes.byteswap()
    content = codes.tobytes()
    # Compressing takes longer than all the rest, and makes only numbers that repeat shorter.
    if len(set(numbers)) * REPEATED < len(numbers):
        return COMPRESSED + b64encode(compress(content)).decode()
    return b64encode(content).decode()


def unpack_codes(text: str) -> bytes:
    """Returns the codes of packed numbers, as little-endian unsigned 16-bit integers.

    A code c above zero stands for e to the power of (c - 1) / `STEPS_PER_E`. Raises ValueError.
    """
    codes = b64decode(text.removeprefix(COMPRESSED), validate=True)
    if text.startswith(COMPRESSED):
        codes = _decompressed(codes)
    if len(codes) % 2:
        raise ValueError(f"{len(codes)} bytes of packed numbers, which is no whole list of them")
    return codes


def _decompressed(content: bytes) -> bytes:
    unpacking = decompressobj()
    try:
        found = unpacking.decompress(content, MAX_UNPACKED_BYTES)
    except error as cause:
        raise ValueError(f"packed numbers that cannot be unpacked: {cause}") from cause
    if not unpacking.eof:
        raise ValueError(f"packed numbers that do not end within {MAX_UNPACKED_BYTES:,} bytes")
    return found
