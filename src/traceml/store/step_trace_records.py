"""Which steps a run's processes recorded with torch's profiler: read from the files they wrote."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from traceml.model.environment import STEP_TRACES
from traceml.store.json_lines import decode_lines
from traceml.store.regular_files import open_regular, stat_regular

MAX_BYTES = 16 << 20
"""Of one file; a process writes a thousand lines at most."""
MAX_STEP = 1 << 40
"""A larger number is damage."""


class KeptTrace(msgspec.Struct, frozen=True):
    """A recorded step whose trace was kept."""

    step: int
    """Counted from 1."""
    took_ns: int
    file: str
    """Its name in the run folder."""
    is_: str = msgspec.field(name="is", default="typical")
    """`typical` or `worst`."""
    size_bytes: int | None = None
    """`None` where the file is gone."""


@dataclass(frozen=True, slots=True)
class StepTraceRecords:
    """What one process recorded."""

    pid: int
    rank: int = 0
    asked: int = 0
    """Of how many steps a trace was asked for."""
    recorded: tuple[tuple[int, int], ...] = ()
    """The number of each recorded step, and its time in nanoseconds while it was recorded."""
    cost_ns: int = 0
    """What all recordings took from training."""
    kept: tuple[KeptTrace, ...] = ()
    """By step."""
    notes: tuple[str, ...] = ()
    """Why steps were not recorded."""


class _TraceLine(msgspec.Struct):
    """A line of the file: a recorded step and what is kept by then, or a note."""

    rank: int = 0
    asked: int = 0
    step: int | None = None
    took_ns: int = 0
    cost_ns: int = 0
    kept: list[KeptTrace] = []
    why: str | None = None


_decoder = msgspec.json.Decoder(_TraceLine)


def read_step_traces(folder: Path) -> tuple[StepTraceRecords, ...]:
    """Returns what each process recorded; empty where no traces were asked for."""
    return tuple(
        found
        for path in sorted(folder.glob(STEP_TRACES.format(pid="*")))
        if (found := _read_file(path)) is not None
    )


def _read_file(path: Path) -> StepTraceRecords | None:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            content = file.read(MAX_BYTES)
    except OSError:
        return None  # gone, or no file
    lines = list(decode_lines(content.splitlines(), _decoder))
    steps = [line for line in lines if line.step is not None and 0 < line.step < MAX_STEP]
    if not lines:
        return None
    pid = path.stem.rpartition("-")[2]
    kept = steps[-1].kept if steps else []
    return StepTraceRecords(
        pid=int(pid) if pid.isascii() and pid.isdigit() else 0,
        rank=lines[-1].rank,
        asked=lines[-1].asked,
        recorded=tuple((line.step or 0, line.took_ns) for line in steps),
        cost_ns=sum(line.cost_ns for line in steps),
        kept=tuple(
            msgspec.structs.replace(each, size_bytes=_size(path.parent / each.file))
            for each in sorted(kept, key=lambda each: each.step)
            if Path(each.file).name == each.file
        ),
        notes=tuple(line.why for line in lines if line.why is not None),
    )


def _size(path: Path) -> int | None:
    found = stat_regular(path)
    return None if found is None else found.st_size
