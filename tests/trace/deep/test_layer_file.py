"""What the deep profile keeps of a step fits into few bytes, and of a long run into one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factories import make_run
from traceml.facts.layers import layer_profile
from traceml.facts.undisturbed_steps import recorded_steps
from traceml.store.layer_records import LayerRecords, read_layers
from traceml.trace.deep import kernel_steps, layer_file
from traceml.trace.deep.kernel_steps import LaunchTable
from traceml.trace.deep.kernels import StepActivity
from traceml.trace.deep.layer_file import LayerFile, MergedSteps
from traceml.trace.deep.layer_names import LayerName

PARTS = ("", "attn", "attn.q", "attn.k", "attn.v", "attn.out", "norm1", "mlp", "mlp.up", "mlp.down")
TRANSFORMER = [LayerName("", "GPT", False), LayerName("embed", "Embedding", True)] + [
    LayerName(f"blocks.{n}.{part}".rstrip("."), "Linear", True) for n in range(12) for part in PARTS
]
"""A transformer of 12 layers."""
MAX_STEP_BYTES = 2_700
"""What ARGUS keeps per rank and step."""


@pytest.fixture
def file(tmp_path: Path) -> LayerFile:
    session: Any = SimpleNamespace(run_folder=tmp_path)
    return LayerFile(session)


def timed(seed: int, layers: int, clocks: tuple[str, ...] = ("host", "gpu")) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    numbers: dict[str, Any] = {"calls": [1] * layers}
    for clock in clocks:
        for phase in ("forward", "backward"):
            numbers[f"{clock}_{phase}_ns"] = random.integers(5_000, 900_000, layers).tolist()
            numbers[f"{clock}_{phase}_outside_ns"] = 1_000_000
    return numbers


def activity(seed: int, layers: int, extra: int = 0) -> StepActivity:
    """Four kernels per layer, some of them of the same name."""
    random = np.random.default_rng(seed)
    launches = {
        (f"void_kernel_with_a_long_name_{(layer + n) % 40}", layer): [
            1 + n,
            int(random.integers(2_000, 90_000)),
        ]
        for layer in range(-1, layers)
        for n in range(4)
    }
    launches |= {(f"new_kernel_{n}", 0): [1, 5_000] for n in range(extra)}
    return StepActivity(10**7, 900, 0, 0, 0, 0, launches)


def read(tmp_path: Path) -> LayerRecords:
    (found,) = read_layers(tmp_path)
    return found


def test_a_step_of_a_transformer_takes_less_than_the_best_known(file: LayerFile, tmp_path) -> None:
    steps, table = MergedSteps(file), LaunchTable(file)
    layers: Any = TRANSFORMER
    steps.add(layers, 1, timed(0, len(layers)))
    steps.add(layers, 2, table.numbers(layers, activity(0, len(layers))) | {"busy_ns": 10**7})
    before = file.written_bytes
    for step in range(10):
        steps.add(layers, 5 + step, timed(step, len(layers)))
    assert (file.written_bytes - before) / 10 < MAX_STEP_BYTES
    before = file.written_bytes
    for step in range(10):
        numbers = table.numbers(layers, activity(step, len(layers)))
        steps.add(layers, 5 + step, numbers | {"busy_ns": 10**7})
    assert (file.written_bytes - before) / 10 < MAX_STEP_BYTES
    found = read(tmp_path)
    assert len(found.steps) == 11 and len(found.kernels) == 11
    told = timed(3, len(layers))
    assert found.times_ns["gpu_forward"][4] == pytest.approx(told["gpu_forward_ns"], rel=3e-4)
    assert found.calls.tolist() == [[1] * len(layers)] * 11


def test_kernels_keep_their_name_layer_calls_and_time(file: LayerFile, tmp_path: Path) -> None:
    layers: Any = TRANSFORMER[:5]
    steps, table = MergedSteps(file), LaunchTable(file)
    seen = [activity(0, 5), activity(1, 5, extra=3)]
    for number, each in enumerate(seen):
        steps.add(layers, number, table.numbers(layers, each) | {"busy_ns": each.busy})
    for each, step in zip(seen, read(tmp_path).kernels, strict=True):
        told = {(kernel.name, kernel.layer): kernel for kernel in step.by_kernel}
        assert told.keys() == each.launches.keys()
        for key, (calls, ns) in each.launches.items():
            assert told[key].calls == calls and told[key].ns == pytest.approx(ns, rel=3e-4)
        in_layer = [value for (_, layer), value in each.launches.items() if layer == 2]
        assert step.layer_kernels[2] == sum(calls for calls, _ in in_layer)
        assert step.layer_busy_ns[2] == pytest.approx(sum(ns for _, ns in in_layer), rel=3e-4)


def test_kernels_beyond_the_table_are_counted_for_their_layer(
    file: LayerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_steps, "MAX_LAUNCHES", 10)
    layers: Any = TRANSFORMER[:5]
    seen = activity(0, 5, extra=50)
    numbers = LaunchTable(file).numbers(layers, seen)
    MergedSteps(file).add(layers, 1, numbers | {"busy_ns": 1})
    (step,) = read(tmp_path).kernels
    assert len(step.by_kernel) <= 10 + 6
    assert step.layer_kernels[0] == sum(n for (_, at), (n, _) in seen.launches.items() if at == 0)


def test_all_kernels_are_stated_again_so_that_a_piece_of_a_long_file_can_be_read(
    file: LayerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_steps, "RESTATE_BYTES", 2_000)
    layers: Any = TRANSFORMER[:5]
    steps, table = MergedSteps(file), LaunchTable(file)
    for number in range(40):
        steps.add(layers, number, table.numbers(layers, activity(number, 5)) | {"busy_ns": 9})
    (path,) = tmp_path.glob("layers-*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"".join(lines[12:]))
    with_kernels = [step for step in read(tmp_path).kernels if step.by_kernel]
    assert len(with_kernels) > 20
    assert with_kernels[-1].by_kernel[0].name.startswith("void_kernel")


def test_steps_of_a_long_run_share_lines_and_none_is_lost(
    file: LayerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_file, "STAGE_BYTES", 2_000)
    monkeypatch.setattr(layer_file, "MAX_FILE_BYTES", 16_000)
    layers: Any = TRANSFORMER[:5]
    steps = MergedSteps(file)
    for step in range(1_000):
        slow = 2 if step >= 500 else 1
        steps.add(layers, step, {"calls": [1] * 5, "host_forward_ns": [1_000_000 * slow] * 5})
    steps.flush()
    found = read(tmp_path)
    assert not file.is_full and file.written_bytes < 16_000
    assert found.row_steps.sum() == 1_000 and found.row_steps[0] == 1
    assert found.row_steps.max() > 16
    profile = layer_profile([found], {})
    assert profile.steps == 1_000
    assert profile.layers[1].time_s == pytest.approx(0.0015, rel=1e-3)


def test_a_line_that_steps_with_kernels_share_says_which_those_are(
    file: LayerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_file, "STAGE_BYTES", 1)
    layers: Any = TRANSFORMER[:5]
    steps, table = MergedSteps(file, lists_steps=True), LaunchTable(file)
    told = [7, 30, 90, 101, 160, 200]
    for step in told:
        steps.add(layers, step, table.numbers(layers, activity(step, 5)) | {"busy_ns": 9})
    steps.flush()
    rows = read(tmp_path).kernels
    assert max(row.steps for row in rows) > 1
    assert [step for row in rows for step in row.numbers or (row.step,)] == told
    run = make_run(steps=300)
    seen = replace(read(tmp_path), pid=run.ranks[0].rank.pid)
    assert recorded_steps(replace(run, layers=(seen,))) == {0: set(told)}
    assert seen.looked_at == tuple(told)


def test_steps_of_two_models_in_turn_are_kept_apart(
    file: LayerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_file, "STAGE_BYTES", 1)  # steps share lines from the first on
    one: Any = TRANSFORMER[:5]
    other: Any = TRANSFORMER[:7]
    steps = MergedSteps(file)
    for step in range(12):
        layers = other if step % 3 == 2 else one
        steps.add(layers, step, {"calls": [1] * len(layers), "host_forward_ns": [9] * len(layers)})
    steps.flush()
    found = read(tmp_path)
    assert found.names == tuple(each.name for each in one)
    assert found.row_steps.sum() == 8 and found.row_steps.max() == 2


def test_a_mean_is_of_the_steps_in_which_it_was_measured(
    file: LayerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only some steps have a backward pass, or run on the GPU that is followed."""
    monkeypatch.setattr(layer_file, "STAGE_BYTES", 1)
    layers: Any = TRANSFORMER[:5]
    steps = MergedSteps(file)
    for step in range(24):
        numbers = {"calls": [1] * 5, "host_forward_ns": [4_000_000] * 5}
        if step % 4 == 3:
            numbers |= {"host_backward_ns": [8_000_000] * 5}
        steps.add(layers, step, numbers)
    steps.flush()
    found = read(tmp_path)
    assert found.row_steps.sum() == 24 and found.row_steps.max() == 3
    own = layer_profile([found], {}).layers[1].own_s
    assert own == pytest.approx({"forward": 0.004, "backward": 0.008}, rel=1e-3)
