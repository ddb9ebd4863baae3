"""Folding keeps count, sum, minimum and maximum exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from traceml.model import record_layout
from traceml.store import blocks as folding
from traceml.store.records import BLOCK_DTYPE, STEP_DTYPE

VALUES = st.one_of(st.just(record_layout.NOT_MEASURED), st.integers(0, 2**50))
FLAGS = st.sampled_from(
    [0, 0, 0, 2, 32, int(record_layout.StepFlag.ABORTED), int(record_layout.StepFlag.TAIL)]
)


@st.composite
def step_records(draw):
    rows = draw(st.lists(st.tuples(VALUES, VALUES, VALUES, FLAGS), max_size=300))
    steps = np.zeros(len(rows), STEP_DTYPE)
    for name, _ in record_layout.STEP[:-1]:
        steps[name] = 7
    for place, (wall, gpu, allocated, flags) in enumerate(rows):
        steps[place]["wall_ns"] = max(wall, 0)
        steps[place]["gpu_body_ns"] = gpu
        steps[place]["allocated_bytes"] = allocated
        steps[place]["flags"] = flags
    steps["start_ns"] = np.arange(len(rows)) * 10
    steps["sequence"] = np.arange(1, len(rows) + 1)
    return steps


def check(blocks: np.ndarray, steps: np.ndarray) -> None:
    complete = steps[(steps["flags"] & int(record_layout.NO_STEP)) == 0]
    others = steps[(steps["flags"] & int(record_layout.NO_STEP)) != 0]
    assert blocks["steps"].sum() == len(steps)
    assert blocks["complete_steps"].sum() == len(complete)
    assert blocks["incomplete_wall_ns"].sum() == others["wall_ns"].sum()
    for name in record_layout.FOLDED:
        values = [int(value) for value in complete[name] if value != record_layout.NOT_MEASURED]
        counted = blocks[blocks[f"{name}_count"] > 0]
        assert counted[f"{name}_count"].sum() == len(values)
        assert sum(int(each) for each in counted[f"{name}_sum"]) == sum(values)
        if values:
            assert counted[f"{name}_min"].min() == min(values)
            assert counted[f"{name}_max"].max() == max(values)


@given(step_records())
@settings(max_examples=60, deadline=None)
def test_totals_stay_exact_through_folding_and_merging(steps):
    blocks = folding.fold(steps)
    assert len(blocks) == -(-len(steps) // folding.BLOCK_STEPS)
    check(blocks, steps)
    while len(blocks) > 1:
        merged = folding.merge_pairs(blocks)
        assert len(merged) == -(-len(blocks) // 2)
        check(merged, steps)
        blocks = merged
    if len(blocks):
        assert blocks["first_step"][0] == 0 and blocks["start_ns"][0] == 0


def test_nothing_folds_to_nothing():
    assert len(folding.fold(np.zeros(0, STEP_DTYPE))) == 0
    assert len(folding.merge_pairs(np.zeros(0, BLOCK_DTYPE))) == 0


def test_a_field_never_measured_has_no_count():
    steps = np.zeros(10, STEP_DTYPE)
    steps["gpu_body_ns"] = record_layout.NOT_MEASURED
    (block,) = folding.fold(steps)
    assert block["gpu_body_ns_count"] == block["gpu_body_ns_sum"] == 0
