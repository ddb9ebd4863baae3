"""Sums the step table by rank, and by block of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import numpy as np
import numpy.typing as npt

from traceml.facts.step_table import COLUMNS, Ints, RankSteps, StepTable
from traceml.model.record_layout import FOLDED, NOT_MEASURED

Floats = npt.NDArray[np.float64]

MAX_BLOCKS = 64
CHUNK_STEPS = 1024
"""Steps of one rank that are summed at a time: the table of them fits into a core's cache."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of each field over the steps in which it was measured, and the number of those steps.

    The last axis has an entry per field of `columns`; the axes before it are ranks, blocks of
    steps, or both.
    """

    sums: Floats
    counts: Floats
    columns: tuple[str, ...] = COLUMNS

    @staticmethod
    def nothing(rows: int) -> Sums:
        """Returns empty sums for so many ranks or blocks."""
        return Sums(np.zeros((rows, len(COLUMNS))), np.zeros((rows, len(COLUMNS))))

    def sum_of(self, name: str) -> Floats:
        """Returns the sums of one field."""
        return self.sums[..., self.columns.index(name)]

    def count_of(self, name: str) -> Floats:
        """Returns in how many steps one field was measured."""
        return self.counts[..., self.columns.index(name)]

    def in_all(self) -> Sums:
        """Returns the sums over the axis before the fields."""
        sums, counts = (table.sum(axis=-2, keepdims=True) for table in (self.sums, self.counts))
        return Sums(sums, counts, self.columns)

    def in_pairs(self) -> Sums:
        """Returns half as many rows, each the sum of two neighbours; an odd last row is left
        out."""
        pairs = len(self.sums) // 2
        sums, counts = (
            table[: 2 * pairs].reshape(pairs, 2, len(self.columns)).sum(axis=1)
            for table in (self.sums, self.counts)
        )
        return Sums(sums, counts, self.columns)


def block_length(steps: int) -> int:
    """Returns how many steps a block has so that there are at most `MAX_BLOCKS` blocks."""
    return max(1, math.ceil(steps / MAX_BLOCKS))


def add_up(table: StepTable) -> tuple[Sums, Sums]:
    """Returns the sums of the steps after warm-up, by rank and by block.

    A block's sums are over all ranks and only over single steps; a rank's sums include its old
    steps that are merged into blocks.
    """
    warmup = table.warmup
    steps = len(table.index) - warmup
    length = block_length(steps)
    by_rank, by_block = Sums.nothing(len(table.ranks)), Sums.nothing(steps // length)
    stride = length * max(1, CHUNK_STEPS // length)
    for start in range(0, steps, stride):
        chosen = slice(warmup + start, warmup + min(start + stride, steps))
        whole = (chosen.stop - chosen.start) // length
        first = start // length
        weights = None if table.weights is None else table.weights[:, start : start + stride]
        sums, counts = _add_chunk(by_rank, table.rank_steps, chosen, weights)
        for into, added in ((by_block.sums, sums), (by_block.counts, counts)):
            blocks = added[:, : whole * length].reshape(len(COLUMNS), whole, length)
            into[first : first + whole] = blocks.sum(axis=2).T
    _add_older(by_rank, table)
    return by_rank, by_block


def _add_chunk(
    by_rank: Sums, ranks: Sequence[RankSteps], chosen: slice, weights: Floats | None = None
) -> tuple[Floats, Floats]:
    """Adds some steps to their ranks' sums. `weights`, by rank and step, are for what the GPU
    timed.

    Returns the sums over all ranks and the number of ranks that measured it, with a row per field
    and a column per step.
    """
    size = chosen.stop - chosen.start
    sums, counts = np.zeros((len(COLUMNS), size)), np.zeros((len(COLUMNS), size))
    same_sums, same_counts = np.zeros(len(COLUMNS)), np.zeros(len(COLUMNS))
    ordered = enumerate(steps.columns for steps in ranks)
    for varying, alike in groupby(ordered, lambda each: each[1].varying):
        places = _places(varying)
        rows = np.empty((len(places), size))
        their_sums, their_counts = np.zeros_like(rows), np.zeros_like(rows)
        for position, columns in alike:
            rows[:-1], rows[-1] = columns.table[:, chosen], columns["samples"][chosen]
            measured = (rows >= 0).astype(np.float64)
            np.maximum(rows, 0.0, out=rows)
            if weights is not None:
                of_gpu = _is_of_gpu(varying)
                rows[of_gpu] *= weights[position]
                measured[of_gpu] *= weights[position]
            their_sums += rows
            their_counts += measured
            # The other fields have the same value in each of the rank's steps.
            same = np.array([columns.constants.get(name, NOT_MEASURED) for name in COLUMNS])
            is_same_measured = same >= 0
            same = np.maximum(same, 0)
            same_sums += same
            same_counts += is_same_measured
            by_rank.sums[position] += size * same
            by_rank.counts[position] += size * is_same_measured
            by_rank.sums[position, places] += rows.sum(axis=1)
            by_rank.counts[position, places] += measured.sum(axis=1)
        sums[places] += their_sums
        counts[places] += their_counts
    return sums + same_sums[:, np.newaxis], counts + same_counts[:, np.newaxis]


@cache
def _is_of_gpu(varying: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    """Returns which of these fields, and then of the samples, are on the GPU's clock."""
    return np.array([name.startswith("gpu_") for name in (*varying, "samples")])


@cache
def _places(varying: tuple[str, ...]) -> Ints:
    """Returns the places of these fields among `COLUMNS`, and then that of the samples."""
    return np.array([COLUMNS.index(name) for name in (*varying, "samples")])


def _add_older(by_rank: Sums, table: StepTable) -> None:
    if not table.folded:
        return
    for position, (steps, blocks) in enumerate(zip(table.older, table.blocks, strict=True)):
        own = Sums(by_rank.sums[position : position + 1], by_rank.counts[position : position + 1])
        for start in range(0, len(steps.index), CHUNK_STEPS):
            stop = min(start + CHUNK_STEPS, len(steps.index))
            _add_chunk(own, (steps,), slice(start, stop))
        for column, name in enumerate(COLUMNS):
            if name in FOLDED:
                own.sums[0, column] += blocks[f"{name}_sum"].sum()
                own.counts[0, column] += blocks[f"{name}_count"].sum()
