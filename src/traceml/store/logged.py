"""What a script logs: messages on disk, thinned when they grow, and reduced for the summary."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from traceml.store.records import Artifact, Metric

_TAIL_BYTES = 1 << 20


def line(number: int, payload: bytes) -> bytes:
    """One message as it stands on disk: its number first, then what the script said."""
    return b'{"number":%d,' % number + payload[1:] + b"\n"


def last_number(path: Path) -> int:
    """The number of the last message on disk."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        tail = file.read()
    for text in reversed(tail.splitlines()):
        try:
            return int(json.loads(text)["number"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0


class _Totals:
    """A metric's running totals."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.finite = 0
        self.last = math.nan
        self.minimum = math.inf
        self.maximum = -math.inf
        self.first_step: int | None = None
        self.last_step: int | None = None

    def add(self, value: float, step: int | None) -> None:
        """One more value; what is not finite is counted and kept out of the mean."""
        self.count += 1
        self.last = value
        if math.isfinite(value):
            self.finite += 1
            self.total += value
            self.minimum = min(self.minimum, value)
            self.maximum = max(self.maximum, value)
        if self.first_step is None:
            self.first_step = step
        self.last_step = step

    def absorb(self, folded: dict[str, Any]) -> None:
        """Take in the totals of values that were thinned out."""
        self.count += folded["count"]
        self.finite += folded["finite"]
        self.total += folded["total"]
        self.minimum = min(self.minimum, float(folded["minimum"]))
        self.maximum = max(self.maximum, float(folded["maximum"]))
        if self.first_step is None:
            self.first_step = folded["first_step"]

    def folded(self) -> dict[str, Any]:
        """These totals as a line on disk keeps them; infinities as text, for strict JSON."""
        return {
            "count": self.count,
            "finite": self.finite,
            "total": self.total,
            "minimum": str(self.minimum),
            "maximum": str(self.maximum),
            "first_step": self.first_step,
        }


def reduce_metrics(messages: Iterable[dict[str, Any]]) -> tuple[Metric, ...]:
    """Every metric's history in a few numbers, by name."""
    totals = _sum_up(messages)
    return tuple(
        Metric(
            name=name,
            count=each.count,
            last=each.last,
            minimum=each.minimum,
            maximum=each.maximum,
            mean=each.total / each.finite if each.finite else math.nan,
            first_step=each.first_step,
            last_step=each.last_step,
        )
        for name, each in sorted(totals.items())
    )


def _sum_up(messages: Iterable[dict[str, Any]]) -> dict[str, _Totals]:
    totals: dict[str, _Totals] = {}
    for message in messages:
        for name, value in message.get("values", {}).items():
            if message.get("kind") == "folded":
                totals.setdefault(name, _Totals()).absorb(value)
            elif message.get("kind") == "metrics":
                totals.setdefault(name, _Totals()).add(float(value), message.get("step"))
    return totals


def thin(content: bytes) -> bytes:
    """Half of the metric lines of a file that has grown too long, with the totals of the rest."""
    kept: list[bytes] = []
    dropped: list[dict[str, Any]] = []
    metric_lines = 0
    lines = content.splitlines()
    for text in lines:
        message = json.loads(text)
        if message.get("kind") == "folded":
            dropped.append(message)
        elif message.get("kind") == "metrics":
            metric_lines += 1
            if metric_lines % 2 and text is not lines[-1]:
                dropped.append(message)
            else:
                kept.append(text)
        else:
            kept.append(text)
    totals = {name: each.folded() for name, each in _sum_up(dropped).items()}
    folded = json.dumps({"number": 0, "kind": "folded", "values": totals}).encode()
    return b"\n".join([folded, *kept]) + b"\n"


def merge_params(messages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The run's parameters: the last value of each name."""
    params: dict[str, Any] = {}
    for message in messages:
        if message.get("kind") == "params":
            params.update(message.get("values", {}))
    return params


def artifacts(messages: Iterable[dict[str, Any]], hashes: dict[str, Any]) -> tuple[Artifact, ...]:
    """The files the script named, with what the agent found out about them."""
    named = {
        str(message["name"]): str(message["path"])
        for message in messages
        if message.get("kind") == "artifact"
    }
    return tuple(
        Artifact(
            name=name,
            path=path,
            size_bytes=hashes.get(path, {}).get("size_bytes"),
            sha256=hashes.get(path, {}).get("sha256"),
        )
        for name, path in sorted(named.items())
    )
