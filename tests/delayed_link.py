"""A cable that is slow: passes Ethernet frames between two network interfaces, each frame a while
after it came. For where the kernel has no `netem`; a script of its own, run inside a namespace."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

_ALL_PROTOCOLS = 3
_SOL_PACKET, _IGNORE_OUTGOING, _VNET_HEADER = 263, 23, 15
"""The last one has each frame come with what the kernel left for a network card to do, checksums
say, so that the other interface does it."""
_MAX_FRAME_BYTES = 1 << 17


class DelayedDirection:
    """The frames on their way from one interface to the other."""

    def __init__(self, source: socket.socket, target: socket.socket, delay_s: float) -> None:
        self.source = source
        self._target = target
        self._delay_s = delay_s
        self._frames: deque[tuple[float, bytes]] = deque()

    @property
    def due_s(self) -> float | None:
        """When the next frame is due."""
        return self._frames[0][0] if self._frames else None

    def take(self) -> None:
        """Take in what has come."""
        while select.select([self.source], [], [], 0)[0]:
            frame = self.source.recv(_MAX_FRAME_BYTES)
            self._frames.append((time.monotonic() + self._delay_s, frame))

    def pass_on(self) -> None:
        """Pass on what is due."""
        while self._frames and self._frames[0][0] <= time.monotonic():
            self._target.send(self._frames.popleft()[1])


def _interface(name: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    opened.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    opened.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    opened.bind((name, _ALL_PROTOCOLS))
    return opened


def main(one: str, other: str, delay_ms: str) -> None:
    here, there = _interface(one), _interface(other)
    delay_s = float(delay_ms) / 1e3
    directions = [
        DelayedDirection(here, there, delay_s),
        DelayedDirection(there, here, delay_s),
    ]
    print("passing", flush=True)
    while True:
        due_s = [each.due_s for each in directions if each.due_s is not None]
        wait_s = max(0.0, min(due_s) - time.monotonic()) if due_s else None
        select.select([here, there], [], [], wait_s)
        for each in directions:
            each.take()
            each.pass_on()


if __name__ == "__main__":
    main(*sys.argv[1:])
