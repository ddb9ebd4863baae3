"""How much memory of the host this process has, and how much it may have.

Read once, when an allocation on the host has failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from traceml.trace.interruptions import is_interruption

if sys.platform != "win32":  # at once: when memory has run out, nothing more may be loaded
    import resource

_STATUS = "/proc/self/status"
_LIMITED = {"RLIMIT_AS": "VmSize", "RLIMIT_DATA": "VmData"}
"""The limits on a process's memory, and what of `/proc/PID/status` each is about."""


def host_memory(tried_bytes: int | None) -> dict[str, Any]:
    """What this process has, the limit that it met and the machine's memory, by name as a report of
    a failure has them; what cannot be read is left out."""
    sizes = _sizes()
    machine_bytes = _machine_bytes()
    found: dict[str, Any] = {"machine_bytes": machine_bytes}
    if "VmRSS" in sizes:
        found["resident_bytes"] = sizes["VmRSS"]
    tightest = min(_limits(sizes), default=None)
    if tightest is not None:
        free_bytes, limit_bytes, name = tightest
        # By now some of what was held is free again: an exception lets go of what it passes.
        is_met = free_bytes < (tried_bytes or 0)
        if is_met or machine_bytes is None or limit_bytes < machine_bytes:
            found |= {"limited_by": name, "total_bytes": limit_bytes, "free_bytes": free_bytes}
    return found


def _limits(sizes: dict[str, int]) -> Iterator[tuple[int, int, str]]:
    """The limits that are set: how much is left, how much there is, and the limit's name."""
    for name, size in _LIMITED.items():
        if sys.platform == "win32":
            return
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit != resource.RLIM_INFINITY and size in sizes:
            yield max(0, limit - sizes[size]), limit, name


def _sizes() -> dict[str, int]:
    """The sizes of this process in bytes, by the names of Linux; empty elsewhere."""
    try:
        descriptor = os.open(_STATUS, os.O_RDONLY)
    except OSError as error:
        if is_interruption(error):
            raise
        return {}
    try:
        text = os.read(descriptor, 8192).decode(errors="replace")
    finally:
        os.close(descriptor)
    rows = (line.split() for line in text.splitlines())
    return {
        row[0][:-1]: int(row[1]) << 10
        for row in rows
        if len(row) == 3 and row[2] == "kB" and row[1].isdecimal()
    }


def _machine_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError) as error:  # another system
        if is_interruption(error):
            raise
        return None
