"""Tells whether a process is still at work: a pid alone may be somebody else's by now."""

from __future__ import annotations

import psutil


def process_of(pid: int) -> psutil.Process | None:
    """The process that has this pid now; `None` where none has."""
    try:
        return psutil.Process(pid)
    except (psutil.NoSuchProcess, ValueError):  # ended already, or never a pid
        return None


def is_alive(process: psutil.Process) -> bool:
    """Whether that very process is there still; one that nobody has buried yet is not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
