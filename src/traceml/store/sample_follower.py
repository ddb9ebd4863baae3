"""Follows the agent's samples as a table, thinned to a limited number of moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from traceml.model.sample import COUNTED, GpuInterval, GpuSample, HostSample, ProcessSample, Sample
from traceml.store.json_lines import decode_lines
from traceml.store.line_files import LineFollower
from traceml.store.samples import FILE_NAME

Floats = npt.NDArray[np.float64]

MAX_MOMENTS = 600
HOST = tuple(field.name for field in fields(HostSample))
PROCESS = tuple(f.name for f in fields(ProcessSample) if f.name not in ("rank", "pid"))
_NO_NUMBERS = ("index", "uuid", "name", "throttle_reasons", "intervals")
_GPU_SENSORS = tuple(field.name for field in fields(GpuSample) if field.name not in _NO_NUMBERS)
GPU = (*_GPU_SENSORS, *COUNTED)
"""Counter values are means over the intervals of a sample."""

_NOT_COUNTED = (None,) * len(COUNTED)

_host, _process = attrgetter(*HOST), attrgetter(*PROCESS)
_gpu_sensors = attrgetter(*_GPU_SENSORS)
_decoder = msgspec.json.Decoder(Sample)


@dataclass(frozen=True, slots=True)
class SampleTable:
    """Moments in order, each the mean of two samples where there are many; NaN means "not
    measured"."""

    unix_s: Floats
    host: Floats
    """A row per moment, a column per field of `HOST`."""
    processes: Mapping[int, tuple[int, Floats]]
    """By pid: the rank it was sampled as, and a table with a column per field of `PROCESS`."""
    gpus: Mapping[int, tuple[str, Floats]]
    """By index: the name, and a table with a column per field of `GPU`."""


class NodeSamples(NamedTuple):
    """What one node's agent sampled, on the clock of the run's head."""

    node: str
    table: SampleTable


class SampleFollower:
    """The samples of a run as far as they are on disk; of many only every second, fourth and so on.

    Which ones are kept depends on their number alone, not on when they were read.
    """

    def __init__(self, folder: Path, max_moments: int = MAX_MOMENTS) -> None:
        self._lines = LineFollower(folder / FILE_NAME)
        self._max_rows = 2 * max_moments
        """Samples that are kept: two of them make a moment."""
        self._forget()

    def _forget(self) -> None:
        self._seen, self._stride = 0, 1
        self._unix_s = np.full(self._max_rows, np.nan)
        self._values = np.full((self._max_rows, len(HOST)), np.nan)
        self._places: dict[tuple[str, int], int] = {}
        self._labels: dict[tuple[str, int], int | str] = {}

    def refresh(self) -> None:
        """Reads what is new."""
        lines, is_anew = self._lines.read_new()
        if is_anew:
            self._forget()
        while self._seen + len(lines) > self._max_rows * self._stride:
            self._halve()
        for place in range(-self._seen % self._stride, len(lines), self._stride):
            for sample in decode_lines(lines[place : place + 1], _decoder):
                self._add((self._seen + place) // self._stride, sample)
        self._seen += len(lines)

    def table(self) -> SampleTable | None:
        """Returns what was sampled; `None` before the first sample."""
        rows = np.flatnonzero(np.isfinite(self._unix_s))
        if not len(rows):
            return None
        values, unix_s = self._values[rows], self._unix_s[rows]
        if len(rows) > self._max_rows // 2:
            values, unix_s = _in_pairs(values), unix_s[::2]
        found: dict[str, dict[int, tuple[int | str, Floats]]] = {"process": {}, "gpu": {}}
        for (kind, number), place in self._places.items():
            width = len(PROCESS if kind == "process" else GPU)
            label = self._labels[kind, number]
            found[kind][number] = label, values[:, place : place + width]
        return SampleTable(
            unix_s=unix_s,
            host=values[:, : len(HOST)],
            processes=found["process"],  # type: ignore[arg-type] # their labels are ranks
            gpus=found["gpu"],  # type: ignore[arg-type] # theirs are names
        )

    def _add(self, row: int, sample: Sample) -> None:
        self._unix_s[row] = sample.unix_s
        self._values[row, : len(HOST)] = _host(sample.host)
        for process in sample.processes:
            self._put(row, ("process", process.pid), process.rank, _process(process))
        for gpu in sample.gpus:
            self._put(row, ("gpu", gpu.index), gpu.name, _gpu(gpu))

    def _put(
        self, row: int, who: tuple[str, int], label: int | str, values: Sequence[float | None]
    ) -> None:
        """Stores the numbers of a process or a GPU; its columns are created on first use."""
        self._labels[who] = label
        place = self._places.get(who)
        if place is None:
            place = self._places[who] = self._values.shape[1]
            more = np.full((self._max_rows, len(values)), np.nan)
            self._values = np.hstack([self._values, more])
        self._values[row, place : place + len(values)] = values

    def _halve(self) -> None:
        half = self._max_rows // 2
        for table in (self._values, self._unix_s):
            table[:half] = table[::2]
            table[half:] = np.nan
        self._stride *= 2


def _gpu(gpu: GpuSample) -> tuple[float | None, ...]:
    if not gpu.intervals:  # as on GPUs without counters
        return (*_gpu_sensors(gpu), *_NOT_COUNTED)
    return (*_gpu_sensors(gpu), *(_mean(gpu.intervals, name) for name in COUNTED))


def _mean(intervals: Sequence[GpuInterval], name: str) -> float | None:
    """Returns the mean over the intervals in which it was counted, weighted by their length."""
    counted = [
        (each.length_s, share)
        for each in intervals
        if (share := getattr(each, name)) is not None and each.length_s > 0
    ]
    length_s = sum(length for length, _ in counted)
    return sum(length * share for length, share in counted) / length_s if counted else None


def _in_pairs(values: Floats) -> Floats:
    """Returns the means of each two neighbours; an odd last one stays."""
    first = values[::2]
    second = np.full_like(first, np.nan)
    second[: len(values) // 2] = values[1::2]
    both = np.where(np.isnan(second), first, second)
    return (np.where(np.isnan(first), both, first) + both) / 2
