"""Logged numbers on their way through the ring: packed by the training process, text elsewhere.

Writing five numbers as text takes the training process six microseconds amid a step, packing them
one. Whoever reads the ring turns them into the JSON message that goes to disk.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from math import isfinite

MARK = b"\1"
"""The first byte; no JSON begins so."""
AT_EVENT, AT_STEP = 0, 1
"""What the moment is: how many events had been noted, or a step that the script named."""

_HEAD = "<cBHqq"
"""The mark, what the moment is, how many numbers there are, the moment, and nanoseconds since 1970.
The numbers follow, then their names as a list in JSON."""
_head = struct.Struct(_HEAD)


def packer(names: bytes, count: int, max_bytes: int) -> Callable[..., bytes] | None:
    """Packs a message with these names (a list in JSON); `None` where it would be too long.

    It is called with `MARK`, what the moment is, the count, the moment, the time, the numbers and
    the names.
    """
    form = struct.Struct(f"{_HEAD}{count}d{len(names)}s")
    return form.pack if form.size <= max_bytes else None


def as_json(payload: bytes) -> bytes:
    """The message as the records hold it; any other payload as it is."""
    if payload[:1] != MARK or len(payload) < _head.size:
        return payload
    _, kind, count, moment, unix_ns = _head.unpack_from(payload)
    end = _head.size + 8 * count
    if len(payload) < end:
        return payload
    numbers: Sequence[float] = struct.unpack_from(f"<{count}d", payload, _head.size)
    try:
        names = json.loads(payload[end:])
    except (ValueError, RecursionError):  # it was damaged
        return payload
    if not isinstance(names, list) or len(names) != count:
        return payload
    return metrics_message(
        f'"step":{moment}' if kind == AT_STEP else f'"at":{moment}',
        unix_ns,
        (
            f"{json.dumps(str(name), ensure_ascii=False)}:{number_text(number)}"
            for name, number in zip(names, numbers, strict=True)
        ),
    )


def number_text(number: float) -> str:
    """A number as strict JSON; what is not finite travels as text."""
    return repr(number) if isfinite(number) else f'"{number}"'


def metrics_message(at: str, unix_ns: int, values: Iterable[str]) -> bytes:
    """The message of values that were logged at one moment, each as `"name":value`."""
    # Put together by hand: an encoder takes three times as long for five numbers.
    text = f'{{"kind":"metrics",{at},"unix_ns":{unix_ns},"values":{{{",".join(values)}}}}}'
    return text.encode(errors="replace")
