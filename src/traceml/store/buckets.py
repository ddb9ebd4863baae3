"""Sums of steps in buckets of equal length: a run of any length in few numbers.

All processes of a run share one grid: bucket n holds the complete steps from n · length on, counted
from 0. When a run outgrows its grid, neighbouring buckets are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traceml.model import record_layout
from traceml.model.rank import Rank
from traceml.store.step_records import WIDE, wide_fields

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SUMMED = WIDE[WIDE.index("wall_ns") : WIDE.index("gpu_graph_ns") + 1]
PEAKS = WIDE[WIDE.index("allocated_bytes") : WIDE.index("rss_bytes") + 1]
CLOCKS = ("cpu", "gpu")
"""The clocks on which the longest step is kept: the host's and the GPU's."""
_PREFIXES = ("", "gpu_")
"""The prefixes of each clock's field names."""

_SUMMED = slice(WIDE.index(SUMMED[0]), WIDE.index(SUMMED[-1]) + 1)
_TIMES = slice(0, _SUMMED.stop)
_PEAKS = slice(WIDE.index(PEAKS[0]), WIDE.index(PEAKS[-1]) + 1)
_START = WIDE.index("start_ns")
_LATER_NS = np.iinfo(np.int64).max
_NOTHING = float(record_layout.NOT_MEASURED)


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the buckets lie: their first step, how many steps each holds, and their number."""

    first: int
    length: int
    buckets: int

    @property
    def end(self) -> int:
        """The step after the last one that fits."""
        return self.first + self.length * self.buckets

    @staticmethod
    def over(first: int, end: int, most: int) -> Grid:
        """Returns the finest grid with at most so many buckets; lengths are powers of two."""
        length = 1
        while length * most < end - first:
            length *= 2
        return Grid(first, length, max(1, -(-(end - first) // length)))


class Buckets:
    """The complete steps of one process, summed; in the units of the records."""

    def __init__(self, grid: Grid) -> None:
        size = grid.buckets
        self.grid = grid
        self.steps: Floats = np.zeros(size)
        self.sums: Floats = np.zeros((size, len(SUMMED)))
        self.counts: Floats = np.zeros((size, len(SUMMED)))
        self.peaks: Floats = np.full((size, len(PEAKS)), _NOTHING)
        self.longest_ns: Floats = np.full((size, len(CLOCKS)), _NOTHING)
        self.start_ns: Ints = np.full(size, _LATER_NS)
        self.loss: Floats = np.full(size, np.nan)
        self.loss_backwards: Floats = np.zeros(size)
        self.bad_losses: Floats = np.zeros(size)

    def add_steps(self, steps: npt.NDArray[Any], index: Ints) -> None:
        """Adds complete steps, in order; `index` is each one's number in the run, from 0."""
        begin, end = np.searchsorted(index, (self.grid.first, self.grid.end))
        if begin == end:
            return
        steps, index = steps[begin:end], index[begin:end] - self.grid.first
        at, starts, sizes = self._stretches(index)
        # Every field in one piece: many times faster.
        fields = wide_fields(steps)
        table, peaks = (np.ascontiguousarray(fields[:, part].T) for part in (_TIMES, _PEAKS))
        sums, counts = _added(table[_SUMMED], starts, sizes)
        self.steps[at] += sizes
        self.sums[at] += sums.T
        self.counts[at] += counts.T
        for kept, found in ((self.peaks, peaks), (self.longest_ns, _whole_steps(table))):
            kept[at] = np.maximum(kept[at], np.maximum.reduceat(found, starts, axis=1).T)
        self.start_ns[at] = np.minimum(self.start_ns[at], table[_START, starts])
        seen = np.flatnonzero(steps["flags"] & int(record_layout.StepFlag.LOSS_SEEN))
        self._add_losses(steps, index, seen)

    def _add_losses(self, steps: npt.NDArray[Any], index: Ints, seen: Ints) -> None:
        """Stores losses in the buckets of their backward passes; the last one of a bucket stays."""
        lags = np.maximum(steps["loss_lag"][seen].astype(np.int64), 0)
        here = index[seen] >= lags
        seen, lags = seen[here], lags[here]
        places = (index[seen] - lags) // self.grid.length
        losses = steps["loss"][seen]
        self.loss[places] = losses
        np.add.at(self.bad_losses, places, ~np.isfinite(losses))
        backwards = steps["micro_batches"][np.maximum(seen - lags, 0)]
        self.loss_backwards[places] = np.where(seen >= lags, backwards, 0)

    def _stretches(self, index: Ints) -> tuple[Ints, Ints, Ints]:
        """Returns the buckets of these steps, where each one's steps begin, and their number."""
        length = self.grid.length
        at = np.arange(index[0] // length, index[-1] // length + 1)
        bounds = np.searchsorted(index, np.append(at, at[-1] + 1) * length)
        sizes = bounds[1:] - bounds[:-1]
        some = sizes > 0  # where steps are lost, buckets may be empty
        return at[some], bounds[:-1][some], sizes[some]

    def add_blocks(self, blocks: npt.NDArray[Any], index: Ints) -> None:
        """Adds merged steps; a block that spans several buckets is distributed evenly."""
        complete = blocks["complete_steps"]
        some = (complete > 0) & (index < self.grid.end) & (index + complete > self.grid.first)
        blocks, index, complete = blocks[some], index[some] - self.grid.first, complete[some]
        length = self.grid.length
        first = np.maximum(index, 0) // length
        last = np.minimum((index + complete - 1) // length, self.grid.buckets - 1)
        spans = last - first + 1
        which = np.repeat(np.arange(len(blocks)), spans)
        place = np.arange(len(which)) + (first + spans - np.cumsum(spans))[which]
        begin = np.maximum(index[which], place * length)
        inside = np.minimum((index + complete)[which], (place + 1) * length) - begin
        share = inside / complete[which]
        np.add.at(self.steps, place, inside)
        for column, name in enumerate(SUMMED):
            np.add.at(self.sums[:, column], place, share * blocks[f"{name}_sum"][which])
            np.add.at(self.counts[:, column], place, share * blocks[f"{name}_count"][which])
        for column, name in enumerate(PEAKS):
            np.maximum.at(self.peaks[:, column], place, _largest(blocks, name)[which])
        for column, prefix in enumerate(_PREFIXES):
            np.maximum.at(self.longest_ns[:, column], place, _longest(blocks, prefix)[which])
        passed_ns = blocks["wall_ns_sum"][which] * ((begin - index[which]) / complete[which])
        np.minimum.at(self.start_ns, place, blocks["start_ns"][which] + passed_ns.astype(np.int64))

    def coarsen(self) -> None:
        """Merges each two neighbouring buckets: half as many, the same totals."""
        self.grid = Grid(self.grid.first, 2 * self.grid.length, self.grid.buckets)
        for table in (self.steps, self.sums, self.counts, self.bad_losses):
            _halve(table, table[::2] + table[1::2], 0)
        for table in (self.peaks, self.longest_ns):
            _halve(table, np.maximum(table[::2], table[1::2]), _NOTHING)
        _halve(self.start_ns, np.minimum(self.start_ns[::2], self.start_ns[1::2]), _LATER_NS)
        is_last = np.isnan(self.loss[1::2])
        for table, nothing in ((self.loss, np.nan), (self.loss_backwards, 0)):
            _halve(table, np.where(is_last, table[::2], table[1::2]), nothing)


@dataclass(frozen=True, slots=True)
class RankBuckets:
    """One rank's steps in buckets, with those of all its restarts."""

    rank: Rank
    """With its final number in the run."""
    grid: Grid
    steps: Floats
    """The number of complete steps in each bucket."""
    sums: Floats
    """A column per field of `SUMMED`, over the steps in which it was measured …"""
    counts: Floats
    """… and the number of those steps."""
    peaks: Floats
    """A column per field of `PEAKS`; -1 means "not measured"."""
    longest_ns: Floats
    """A column per clock of `CLOCKS`; for merged steps an upper limit."""
    began_unix_s: Floats
    """When the first of its steps began; infinite where there is none."""
    loss: Floats
    loss_backwards: Floats
    """Backward passes of the step that the loss belongs to; 0 where not known."""
    bad_losses: Floats
    """The number of losses that were NaN or infinite."""


def together(rank: Rank, lives: Sequence[tuple[Rank, Buckets]]) -> RankBuckets:
    """Returns a rank's buckets from its processes, in order."""
    every = [buckets for _, buckets in lives]
    loss, backwards = every[0].loss, every[0].loss_backwards
    for later in every[1:]:
        is_last = np.isnan(later.loss)
        loss = np.where(is_last, loss, later.loss)
        backwards = np.where(is_last, backwards, later.loss_backwards)
    return RankBuckets(
        rank=rank,
        grid=every[0].grid,
        steps=_sum([each.steps for each in every]),
        sums=_sum([each.sums for each in every]),
        counts=_sum([each.counts for each in every]),
        peaks=_max([each.peaks for each in every]),
        longest_ns=_max([each.longest_ns for each in every]),
        began_unix_s=np.minimum.reduce([_unix_s(life, each.start_ns) for life, each in lives]),
        loss=loss,
        loss_backwards=backwards,
        bad_losses=_sum([each.bad_losses for each in every]),
    )


def _sum(tables: Sequence[Floats]) -> Floats:
    return tables[0] if len(tables) == 1 else np.asarray(np.add.reduce(tables))


def _max(tables: Sequence[Floats]) -> Floats:
    return tables[0] if len(tables) == 1 else np.asarray(np.maximum.reduce(tables))


def _unix_s(rank: Rank, start_ns: Ints) -> Floats:
    shift_s = (rank.unix_ns - rank.monotonic_ns) * 1e-9
    return np.where(start_ns == _LATER_NS, np.inf, start_ns * 1e-9 + shift_s)


def _added(table: Ints, starts: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Returns sums and counts of measured values: a row per field, a column per start."""
    sums = np.add.reduceat(table, starts, axis=1)
    counts = np.repeat(sizes[np.newaxis], len(table), axis=0)
    for row in np.flatnonzero(table.min(axis=1) < 0):  # most fields are measured always or never
        measured = table[row] >= 0
        counts[row] = np.add.reduceat(measured.astype(np.int64), starts)
        sums[row] = np.add.reduceat(np.where(measured, table[row], 0), starts)
    return sums, counts


def _whole_steps(table: Ints) -> Ints:
    """Returns input wait plus body of every step, a row per clock; -1 where not measured."""
    found = np.empty((len(CLOCKS), table.shape[1]), np.int64)
    for row, prefix in enumerate(_PREFIXES):
        body, waited = (table[WIDE.index(f"{prefix}{name}_ns")] for name in ("body", "input"))
        np.maximum(waited, 0, out=found[row])
        found[row] += body
        found[row, body < 0] = record_layout.NOT_MEASURED
    return found


def _largest(blocks: npt.NDArray[Any], name: str) -> Floats:
    return np.where(blocks[f"{name}_count"] > 0, blocks[f"{name}_max"], _NOTHING)


def _longest(blocks: npt.NDArray[Any], prefix: str) -> Floats:
    """Returns an upper limit for the longest step of each block: only the longest of each part is
    known."""
    body, waited = _largest(blocks, f"{prefix}body_ns"), _largest(blocks, f"{prefix}input_ns")
    whole = np.where(body < 0, _NOTHING, body + np.maximum(waited, 0))
    wall = _largest(blocks, "wall_ns")
    return whole if prefix else np.where(wall < 0, whole, np.minimum(whole, wall))


def _halve(table: npt.NDArray[Any], merged: npt.NDArray[Any], empty: float) -> None:
    table[: len(merged)] = merged
    table[len(merged) :] = empty
