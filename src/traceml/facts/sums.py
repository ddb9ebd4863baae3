"""Adds up the step table: rank by rank, and block by block of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traceml.facts.step_table import COLUMNS, RankSteps, StepTable
from traceml.model.layout import FOLDED

Floats = npt.NDArray[np.float64]

MAX_BLOCKS = 64
CHUNK_STEPS = 1024
"""Of one rank at a time: a table of them stays in a core's cache."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over the steps in which each field was measured, and how many those are.

    The last axis has an entry per field of `columns`, as the records have it; the axes before it
    are ranks, blocks of steps, or both.
    """

    sums: Floats
    counts: Floats
    columns: tuple[str, ...] = COLUMNS

    @staticmethod
    def nothing(rows: int) -> Sums:
        """Of so many ranks or blocks, before anything is added."""
        return Sums(np.zeros((rows, len(COLUMNS))), np.zeros((rows, len(COLUMNS))))

    def sum_of(self, name: str) -> Floats:
        """The sums of one field."""
        return self.sums[..., self.columns.index(name)]

    def count_of(self, name: str) -> Floats:
        """In how many steps one field was measured."""
        return self.counts[..., self.columns.index(name)]

    def in_all(self) -> Sums:
        """Everything along the axis before the fields as one."""
        sums, counts = (table.sum(axis=-2, keepdims=True) for table in (self.sums, self.counts))
        return Sums(sums, counts, self.columns)

    def in_pairs(self) -> Sums:
        """Half as many rows, each of two neighbours; a last one without a neighbour is left out."""
        pairs = len(self.sums) // 2
        sums, counts = (
            table[: 2 * pairs].reshape(pairs, 2, len(self.columns)).sum(axis=1)
            for table in (self.sums, self.counts)
        )
        return Sums(sums, counts, self.columns)


def block_length(steps: int) -> int:
    """How many steps a block has, so that there are `MAX_BLOCKS` at most."""
    return max(1, math.ceil(steps / MAX_BLOCKS))


def add_up(table: StepTable) -> tuple[Sums, Sums]:
    """The steps after warm-up, by rank and by block.

    Blocks hold all ranks together, and the steps at full resolution alone; a rank's sums also
    hold its old steps, where those are folded.
    """
    warmup = table.warmup
    steps = len(table.index) - warmup
    length = block_length(steps)
    by_rank, by_block = Sums.nothing(len(table.ranks)), Sums.nothing(steps // length)
    stride = length * max(1, CHUNK_STEPS // length)
    for start in range(0, steps, stride):
        chosen = slice(warmup + start, warmup + min(start + stride, steps))
        chunk = _add_chunk(by_rank, table.rank_steps, chosen)
        whole = len(chunk.sums) // length
        first = start // length
        for into, added in ((by_block.sums, chunk.sums), (by_block.counts, chunk.counts)):
            blocks = added[: whole * length].reshape(whole, length, len(COLUMNS))
            into[first : first + whole] = blocks.sum(axis=1)
    _add_older(by_rank, table)
    return by_rank, by_block


def _add_chunk(by_rank: Sums, ranks: Sequence[RankSteps], chosen: slice) -> Sums:
    """Add some steps to their ranks' sums; what they come to step by step, over all ranks."""
    chunk = Sums.nothing(chosen.stop - chosen.start)
    rows = np.empty_like(chunk.sums)
    each = np.ones(len(rows))
    for position, steps in enumerate(ranks):
        rows[:, :-1] = steps.rows[chosen]
        rows[:, -1] = steps.samples[chosen]
        measured = (rows >= 0).astype(np.float64)
        rows *= measured
        by_rank.sums[position] += each @ rows  # much faster than a sum over the first axis
        by_rank.counts[position] += each @ measured
        chunk.sums[:] += rows
        chunk.counts[:] += measured
    return chunk


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
