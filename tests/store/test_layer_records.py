"""The files of the deep profile, as damaged as files can be."""

import json

import pytest

from traceml.store.layer_records import read_layers

HEAD = {"set": 1, "names": ["", "one"], "kinds": ["Model", "Linear"]}
TIMED = {"set": 1, "step": 5, "calls": [1, 1], "host_forward_ns": [10, 20]}


def layers_of(folder, *lines):
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "layers-7.jsonl").write_text(text)
    (found,) = read_layers(folder)
    return found


@pytest.mark.parametrize(
    "damaged",
    [
        {**TIMED, "calls": [1, 1 << 63]},
        {**TIMED, "host_forward_ns": [10, -(1 << 64)]},
        {"set": 1, "step": 5, "forward_flops": [0, 1 << 64]},
        {"set": 1, "step": 5, "busy_ns": 9, "layer_busy_ns": [1, 1], "layer_kernels": [1]},
    ],
    ids=["calls", "times", "operations", "kernels of fewer layers"],
)
def test_a_damaged_line_costs_no_other(tmp_path, damaged):
    found = layers_of(tmp_path, HEAD, damaged, {**TIMED, "step": 6})
    assert found.steps == (6,)
    assert found.times_ns["host_forward"].tolist() == [[10, 20]]
    assert not found.counted and not found.kernels


def test_a_line_is_of_its_own_set_of_layers(tmp_path):
    other = {"set": 2, "names": ["", "two"], "kinds": ["Model", "Linear"]}
    lines = [{**TIMED, "set": number, "step": step} for step, number in enumerate([2, 1, 2], 5)]
    found = layers_of(tmp_path, HEAD, other, *lines)
    assert (found.names, found.steps) == (("", "two"), (5, 7))
