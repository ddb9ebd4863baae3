"""Waits for pipes, terminals and processes, whatever the numbers of their descriptors.

`select.select` refuses descriptors beyond 1023, and an agent of many ranks or a head of many
machines has more files open than that.
"""

from __future__ import annotations

import selectors
import sys
from collections.abc import Iterable

# poll() takes regular files and /dev/null as well, which epoll() refuses; that of macOS refuses
# terminals.
_Selector = selectors.PollSelector if sys.platform == "linux" else selectors.DefaultSelector


def wait_until_readable(descriptors: Iterable[int], timeout_s: float | None) -> set[int]:
    """Returns those that can be read without waiting, as soon as one can; none after the timeout.

    Without a timeout it waits for ever.
    """
    return _wait(descriptors, selectors.EVENT_READ, timeout_s)


def wait_until_writable(descriptor: int, timeout_s: float | None) -> bool:
    """Returns whether something can be written without waiting, as soon as it can be."""
    return bool(_wait([descriptor], selectors.EVENT_WRITE, timeout_s))


def _wait(descriptors: Iterable[int], event: int, timeout_s: float | None) -> set[int]:
    with _Selector() as selector:
        for descriptor in set(descriptors):
            selector.register(descriptor, event)
        return {key.fd for key, _ in selector.select(timeout_s)}
