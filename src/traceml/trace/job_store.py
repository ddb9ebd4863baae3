"""The store that the job's own `init_process_group` opened, by a connection of our own that never
keeps training waiting for long."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from traceml.trace.interruptions import is_interruption

MAX_ANSWER_S = 2.0
"""Timeout for an answer of the store. An answer takes 40 µs; one that takes longer than this never
comes, because its machine was lost. torch itself would wait for ever."""
_PROC = Path("/proc/self")
_TRIES = 3


def job_store() -> Any:
    """The store of the default process group, through a connection of our own where torch can make
    one: on a shared connection, a thread of the job that waits for a key would make us wait too.

    `None` where there is no store, or no connection whose answers can be given a time limit.
    """
    home: Any = sys.modules["torch.distributed.distributed_c10d"]
    try:
        store = home._get_default_store()
        return _own_connection(store) if hasattr(store, "clone") else store
    except (RuntimeError, ValueError, AttributeError, NotImplementedError, OSError) as error:
        if is_interruption(error):
            raise
        return None  # this backend has none


def store_host(store: Any) -> str:
    """The host by which the ranks reach a store; empty where it is no server."""
    return str(getattr(_innermost(store), "host", ""))


def _innermost(store: Any) -> Any:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def _own_connection(store: Any) -> Any:
    port = getattr(_innermost(store), "port", None)
    if port is None:
        return store.clone()  # a file, or memory: it answers at once
    for _ in range(_TRIES):
        before = _sockets()
        ours = store.clone()
        made = {name: number for name, number in _sockets().items() if name not in before}
        new = made.keys() & _connections_to(port)
        if len(new) == 1:  # else another thread connected, too, and its wait is not ours to change
            _limit_waits(made[new.pop()])
            return ours
    return None


def _sockets() -> dict[str, int]:
    """This process's sockets: their descriptors by the inodes that the kernel gives each one."""
    found = {}
    for path in (_PROC / "fd").iterdir():
        try:
            name = str(path.readlink())
        except OSError as error:  # it was closed meanwhile
            if is_interruption(error):
                raise
            continue
        if name.startswith("socket:["):
            found[name[len("socket:[") : -1]] = int(path.name)
    return found


def _connections_to(port: int) -> set[str]:
    """The inodes of the connections to a port. The sockets themselves are not touched: most are the
    script's own."""
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError as error:  # a system without IPv6
            if is_interruption(error):
                raise
            continue
        for columns in map(str.split, lines):
            if int(columns[2].rpartition(":")[2], 16) == port:
                found.add(columns[9])
    return found


def _limit_waits(descriptor: int) -> None:
    """Makes torch's own reads and writes of a connection fail after `MAX_ANSWER_S`."""
    limit = struct.pack("ll", int(MAX_ANSWER_S), int(MAX_ANSWER_S % 1 * 1e6))
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.setblocking(True)  # `socket.setdefaulttimeout` has just changed that
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, limit)
