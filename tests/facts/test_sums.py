"""What was measured is added up rank by rank and block by block, whatever the number of steps."""

from __future__ import annotations

import numpy as np
import pytest

from factories import make_run
from traceml.facts.aligned import COLUMNS, Aligned, align
from traceml.facts.sums import CHUNK_STEPS, MOST_BLOCKS, Sums, add_up, block_length


def aligned(ranks: int, steps: int) -> Aligned:
    found = align(make_run(ranks=ranks, steps=steps).ranks)
    assert found is not None
    return found


def column(sums: Sums, name: str) -> np.ndarray:
    return sums.sums[:, COLUMNS.index(name)]


@pytest.mark.parametrize("steps", [1, 63, 64, 65, 200, 2 * CHUNK_STEPS + 300])
@pytest.mark.parametrize("warmup", [0, 1])
def test_sums_are_those_of_every_step(steps: int, warmup: int) -> None:
    if warmup == steps:
        return
    shared = aligned(3, steps)
    by_rank, by_block = add_up(shared, warmup)
    forward = np.stack([rank.rows[warmup:, COLUMNS.index("forward_ns")] for rank in shared.ranks])
    length = block_length(steps - warmup)
    blocks = (steps - warmup) // length
    assert 1 <= blocks <= MOST_BLOCKS
    assert column(by_rank, "forward_ns").tolist() == forward.sum(axis=1).tolist()
    whole = forward[:, : blocks * length].reshape(3, blocks, length)
    assert column(by_block, "forward_ns").tolist() == whole.sum(axis=(0, 2)).tolist()
    assert set(by_block.counts[:, COLUMNS.index("samples")]) == {3.0 * length}


def test_what_was_not_measured_is_neither_added_nor_counted() -> None:
    by_rank, by_block = add_up(aligned(2, 100), 0)
    for sums in (by_rank, by_block):
        assert not column(sums, "h2d_ns").any()
        assert not sums.counts[:, COLUMNS.index("h2d_ns")].any()


def test_neighbours_are_taken_together_and_the_odd_one_left_out() -> None:
    sums = Sums.nothing(5)
    sums.sums[:, 1] = [1, 2, 4, 8, 16]
    sums.counts[:, 1] = 1
    pairs = sums.in_pairs()
    assert pairs.sums[:, 1].tolist() == [3, 12]
    assert pairs.counts[:, 1].tolist() == [2, 2]
