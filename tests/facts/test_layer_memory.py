"""What layers hold, which batch fits, and what checkpointing blocks would save."""

import math
from dataclasses import replace

import numpy as np
import pytest

from layer_runs import layer_records
from traceml.facts.layer_memory import layer_memory

NAMES = ("", "embed", "blocks.0", "blocks.0.mlp", "blocks.1", "blocks.1.mlp", "head")


def memory_of(saved=(0, 10, 5, 20, 5, 20, 40), pid=0, parameters=(0, 100, 0, 10, 0, 10, 80)):
    held = {"parameters": parameters, "saved": saved, "peak": [999] * len(NAMES)}
    return layer_records(pid=pid, forward_ms=dict.fromkeys(NAMES, 1.0), held=held)


def test_layers_that_repeat_are_one_group_and_the_largest_is_first():
    found = layer_memory([memory_of()])
    groups = {group.name: (group.layers, group.total_bytes) for group in found.groups}
    assert list(groups.items()) == [
        ("head", (1, 120)),
        ("embed", (1, 110)),
        ("blocks.*.mlp", (2, 60)),
        ("blocks.*", (2, 10)),
    ]
    assert (found.lasting_bytes, found.saved_bytes) == (200, 100)


def test_groups_of_several_classes_whose_names_differ_in_a_number_alone_are_told_apart():
    kinds = ("Net", "Embedding", "Block", "Mlp", "Norm", "Mlp", "Linear")
    found = layer_memory([replace(memory_of(), kinds=kinds)])
    assert [group.name for group in found.groups][2:] == ["blocks.*.mlp", "blocks.0", "blocks.1"]
    names = ("", *(f"enc.{n}" for n in range(4)), "head", "tail")
    kinds = ("Net", "Linear", "LayerNorm", "Linear", "LayerNorm", "Linear", "Linear")
    found = layer_memory([replace(memory_of(), names=names, kinds=kinds)])
    of_several = {group.name for group in found.groups if group.layers > 1}
    assert of_several == {"enc.* (Linear)", "enc.* (LayerNorm)"}


def test_checkpointing_saves_all_but_one_of_the_blocks():
    block = layer_memory([memory_of()]).block
    assert (block.name, block.layers, block.saved_bytes, block.less_bytes) == (
        "blocks.*",
        2,
        50,
        25,
    )


def test_the_rank_that_holds_the_most_is_told():
    few, many = memory_of(pid=1), memory_of(pid=2, saved=(0, 10, 5, 20, 5, 20, 900))
    assert layer_memory([few, many]).saved_bytes == 960


@pytest.mark.parametrize(
    ("total", "peak", "fits"),
    [
        pytest.param(1000, None, 64 * 720 / 100, id="by what is kept for backward"),
        pytest.param(1000, 1160, 64 * 720 / 960, id="by the peak, which has temporaries too"),
        pytest.param(210, None, None, id="what stays from step to step does not fit by itself"),
    ],
)
def test_the_batch_that_fits(total, peak, fits):
    found = layer_memory([memory_of()])
    assert found.fitting_batch(64, total, peak) == (None if fits is None else int(fits))


def test_without_a_count_of_activations_no_batch_is_known():
    held = {"parameters": (0, 100, 0, 10, 0, 10, 80)}
    found = layer_memory([layer_records(forward_ms=dict.fromkeys(NAMES, 1.0), held=held)])
    assert found.saved_bytes is None and found.block is None
    assert found.fitting_batch(64, 1000, None) is None


def test_what_checkpointed_blocks_keep_is_not_known_and_not_zero():
    """The batch is then told by the peak alone."""
    records = memory_of()
    saved = (0, 10, 5, math.nan, 5, math.nan, 40)
    records.held_bytes["saved"] = np.array(saved)
    found = layer_memory([records])
    assert found.saved_bytes is None and found.block is None
    groups = {group.name: group.held_bytes for group in found.groups}
    assert groups["blocks.*.mlp"] == {"parameters": 20} and groups["head"]["saved"] == 40
    assert found.fitting_batch(64, 1000, 1160) == int(64 * 720 / 960)
    assert found.fitting_batch(64, 1000, None) is None


def test_without_a_look_at_memory_nothing_is_known():
    assert layer_memory([layer_records(forward_ms={"": 1.0})]) is None
