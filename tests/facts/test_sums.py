"""What was measured is added up rank by rank and block by block, whatever the number of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factories import make_run
from traceml.facts.step_table import StepTable, step_table
from traceml.facts.sums import CHUNK_STEPS, MAX_BLOCKS, Sums, add_up, block_length


def table_of(ranks: int, steps: int, warmup: int = 0) -> StepTable:
    found = step_table(make_run(ranks=ranks, steps=steps).ranks)
    assert found is not None
    return replace(found, warmup=warmup)


@pytest.mark.parametrize("steps", [1, 63, 64, 65, 200, 2 * CHUNK_STEPS + 300])
@pytest.mark.parametrize("warmup", [0, 1])
def test_sums_are_those_of_every_step(steps: int, warmup: int) -> None:
    if warmup == steps:
        return
    shared = table_of(3, steps, warmup)
    by_rank, by_block = add_up(shared)
    forward = np.stack([rank.columns["forward_ns"][warmup:] for rank in shared.rank_steps])
    length = block_length(steps - warmup)
    blocks = (steps - warmup) // length
    assert 1 <= blocks <= MAX_BLOCKS
    assert by_rank.sum_of("forward_ns").tolist() == forward.sum(axis=1).tolist()
    whole = forward[:, : blocks * length].reshape(3, blocks, length)
    assert by_block.sum_of("forward_ns").tolist() == whole.sum(axis=(0, 2)).tolist()
    assert set(by_block.count_of("samples")) == {3.0 * length}


def test_what_was_not_measured_is_neither_added_nor_counted() -> None:
    by_rank, by_block = add_up(table_of(2, 100))
    for sums in (by_rank, by_block):
        assert not sums.sum_of("h2d_ns").any()
        assert not sums.count_of("h2d_ns").any()


def test_neighbours_are_taken_together_and_the_odd_one_left_out() -> None:
    sums = Sums.nothing(5)
    sums.sums[:, 1] = [1, 2, 4, 8, 16]
    sums.counts[:, 1] = 1
    pairs = sums.in_pairs()
    assert pairs.sums[:, 1].tolist() == [3, 12]
    assert pairs.counts[:, 1].tolist() == [2, 2]
