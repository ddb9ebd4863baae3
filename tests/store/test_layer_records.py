"""The files of the deep profile: read whole, or in whole lines from all over a long run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traceml.store import layer_records
from traceml.store.layer_records import (
    NOT_ALL_READ,
    LayerFileReader,
    read_layers,
    read_spread,
)

NAMES = {"set": 1, "names": ["", "block"], "kinds": ["Net", "Block"]}


def write(folder: Path, steps: int, pid: int = 7) -> Path:
    lines = [NAMES]
    for step in range(1, steps + 1):
        times = {"host_forward_ns": [step, 2 * step], "host_backward_ns": [1, 1]}
        lines.append({"set": 1, "step": step, "calls": [1, 3], **times})
    lines.append({"set": 1, "step": steps, "saved": [0, 512]})
    path = folder / f"layers-{pid}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_short_file_is_read_whole(tmp_path: Path) -> None:
    write(tmp_path, steps=5)
    (found,) = read_layers(tmp_path)
    assert (found.pid, found.names, found.kinds) == (7, ("", "block"), ("Net", "Block"))
    assert found.steps == (1, 2, 3, 4, 5) and found.notes == ()
    assert found.times_ns["host_forward"].tolist()[-1] == [5.0, 10.0]
    assert found.calls.tolist()[0] == [1, 3] and found.held_bytes["saved"].tolist() == [0, 512]


def test_of_long_files_steps_from_the_whole_run_are_read_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MAX_BYTES": 12_000, "MIN_BYTES": 4_000, "PIECE_BYTES": 1_000}.items():
        monkeypatch.setattr(layer_records, name, value)
    for pid in (7, 8):
        write(tmp_path, steps=4_000, pid=pid)
    for found in read_layers(tmp_path):
        assert found.names == ("", "block") and found.notes == (NOT_ALL_READ,)
        assert found.steps[0] == 1 and found.steps[-1] == 4_000
        assert any(1_500 < step < 2_500 for step in found.steps) and 20 < len(found.steps) < 200
        assert found.times_ns["host_forward"][:, 0].tolist() == list(map(float, found.steps))
        assert found.held_bytes["saved"].tolist() == [0, 512]


@pytest.mark.parametrize("most", [1, 60, 1_000, 5_000, 10**6])
def test_what_is_read_of_a_file_is_whole_lines_of_it(tmp_path: Path, most: int) -> None:
    path = write(tmp_path, steps=300)
    content, left_out = read_spread(path, most)
    lines = path.read_bytes().splitlines(keepends=True)
    assert set(content.splitlines(keepends=True)) <= set(lines)
    assert len(content) <= most and len(content) + left_out == path.stat().st_size


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, steps=3)
    path.write_bytes(path.read_bytes()[:-5])
    (found,) = read_layers(tmp_path)
    assert found.steps == (1, 2, 3) and found.held_bytes == {}


def lines_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collects how many lines are decoded at each reading."""
    counts: list[int] = []
    decode = layer_records.decode_lines

    def counted(lines: list[bytes], decoder: Any) -> Any:
        counts.append(len(lines))
        return decode(lines, decoder)

    monkeypatch.setattr(layer_records, "decode_lines", counted)
    return counts


def test_of_a_file_that_grows_only_what_was_added_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, steps=50)
    content = path.read_bytes()
    cut = content.index(b"\n", len(content) // 2) + 20  # in the middle of a line
    path.write_bytes(content[:cut])
    counts, reader = lines_read(monkeypatch), LayerFileReader(path)
    half = reader.read(1)
    path.write_bytes(content)
    whole = reader.read(1)
    assert len(half.steps) + 1 == counts[0] and sum(counts) == 52
    assert whole.steps == tuple(range(1, 51)) and whole.held_bytes["saved"].tolist() == [0, 512]
    path.write_bytes(content[: len(content) // 4])
    assert len(reader.read(1).steps) < 25, "a file that is shorter is another one"


def test_a_file_that_grows_too_long_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MAX_BYTES": 8_000, "MIN_BYTES": 8_000, "PIECE_BYTES": 1_000}.items():
        monkeypatch.setattr(layer_records, name, value)
    reader = LayerFileReader(write(tmp_path, steps=50))
    assert reader.read(1).notes == ()
    write(tmp_path, steps=500)
    found = reader.read(1)
    assert found.notes == (NOT_ALL_READ,) and found.steps[-1] == 500


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere = write(tmp_path, steps=3)
    elsewhere.rename(tmp_path / "kept")
    (tmp_path / "layers-7.jsonl").symlink_to(tmp_path / "kept")
    (found,) = read_layers(tmp_path)
    assert found.names == () and found.steps == ()


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


def test_of_two_counted_steps_the_later_one_counts(tmp_path):
    first = {"set": 1, "step": 7, "forward_flops": [1, 2], "given_elements": 10}
    first |= {"uncounted": {"mine::product": [1]}}
    second = {"set": 1, "step": 9, "forward_flops": [10, 20], "given_elements": 100}
    found = layers_of(tmp_path, HEAD, first, second)
    assert found.counted["forward_flops"].tolist() == [10, 20]
    assert (found.counted_step, found.counted_elements, found.uncounted) == (9, 100, {})


def test_what_the_model_was_given_is_read_by_row_and_missing_in_older_files(tmp_path):
    counted = {"set": 1, "step": 7, "forward_flops": [1, 2]}
    found = layers_of(tmp_path, HEAD, TIMED, counted)
    assert not len(found.given_elements)
    assert (found.counted_step, found.counted_elements) == (7, None)
    found = layers_of(tmp_path, HEAD, TIMED, {**TIMED, "step": 6, "given_elements": 30})
    np.testing.assert_array_equal(found.given_elements, [np.nan, 30])


def test_a_line_is_of_its_own_set_of_layers(tmp_path):
    other = {"set": 2, "names": ["", "two"], "kinds": ["Model", "Linear"]}
    lines = [{**TIMED, "set": number, "step": step} for step, number in enumerate([2, 1, 2], 5)]
    found = layers_of(tmp_path, HEAD, other, *lines)
    assert (found.names, found.steps) == (("", "two"), (5, 7))
