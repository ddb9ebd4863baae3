"""Events that behave in a forked child as CUDA's do, for machines without a CUDA device.

Whoever records, asks or destroys an inherited one there leaves a note and is aborted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from traceml.trace import gpu

TAKES_S = 0.02
"""How long the device takes to get to an event: some steps are always outstanding."""

_notes = Path(os.devnull)


class FakeEvent:
    """Stands in for `torch.cuda.Event`."""

    made = 0

    def __init__(self, enable_timing: bool = False) -> None:
        FakeEvent.made += 1
        self._pid = os.getpid()
        self._recorded_at = 0.0

    def record(self, stream: Any = None) -> None:
        self._abort_in_child("recorded")
        self._recorded_at = time.monotonic()

    def query(self) -> bool:
        self._abort_in_child("asked")
        return time.monotonic() - self._recorded_at > TAKES_S

    def elapsed_time(self, later: FakeEvent) -> float:
        self._abort_in_child("read")
        return (later._recorded_at - self._recorded_at) * 1e3

    def __del__(self) -> None:
        self._abort_in_child("destroyed")

    def _abort_in_child(self, what: str) -> None:
        if os.getpid() != self._pid:
            with _notes.open("a") as notes:
                notes.write(f"{what}\n")
            os.abort()


def follow(session: Any, notes: Path) -> None:
    """Have every step of a session timed by such events."""
    global _notes
    _notes = notes
    torch._C._CudaEventBase = torch.cuda.Event = FakeEvent
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    torch._C._cuda_isCurrentStreamCapturing = lambda: False
    torch._C._cuda_memoryStats = lambda device: {
        name: {"all": {"peak": 1, "current": 1}} for name in ("allocated_bytes", "reserved_bytes")
    }
    torch.cuda.current_stream = lambda device=None: None
    gpu.GPU_TIMING_SHARE = 1e9
    session.recorder.gpu = gpu.CudaTimeline(session.recorder, 0)
