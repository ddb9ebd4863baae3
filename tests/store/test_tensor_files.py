"""Checkpoints are read without torch and without running anything, and damage is told."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import tempfile
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from traceml.compare.checkpoints import compare_checkpoints
from traceml.model.errors import UnreadableArtifact
from traceml.store import pickled_tensors
from traceml.store.safetensors_file import open_safetensors
from traceml.store.torch_file import open_torch_file

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def numbers(file, name):
    return np.concatenate([*file.pieces(name), np.array([])])


def saved(tmp_path: Path, form: str, values) -> Path:
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / f"model.{form}"
    if form == "safetensors":
        save_file(values, path)
    else:
        torch.save(values, path)
    return path


def opened(path: Path):
    return open_safetensors(path) if path.suffix == ".safetensors" else open_torch_file(path)


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_every_type_is_read_as_the_numbers_it_holds(tmp_path, form):
    values = {str(dtype): torch.tensor([-3, 0, 1.5, 2, 96]).to(dtype) for dtype in DTYPES}
    values["empty"] = torch.zeros(0, 3)
    values["one"] = torch.tensor(7.0)
    values["long"] = torch.arange(300_000, dtype=torch.float32)
    with opened(saved(tmp_path, form, values)) as file:
        assert file.tensors.keys() == values.keys()
        for name, value in values.items():
            expected = value.to(torch.float64).numpy().reshape(-1)
            np.testing.assert_array_equal(numbers(file, name), expected, name)
            assert file.tensors[name].shape == tuple(value.shape)
            assert f"torch.{file.tensors[name].dtype}" == str(value.dtype)


def test_all_values_of_eight_bit_floats_are_torchs(tmp_path):
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    values = {
        "e4m3": every.clone().view(torch.float8_e4m3fn),
        "e5m2": every.clone().view(torch.float8_e5m2),
    }
    with opened(saved(tmp_path, "pt", values)) as file:
        for name, value in values.items():
            np.testing.assert_array_equal(numbers(file, name), value.to(torch.float64).numpy())


def test_views_and_shared_storages_are_read_in_the_order_of_their_elements(tmp_path):
    whole = torch.arange(24.0).reshape(4, 6)
    values = {
        "t": whole.t(),
        "row": whole[2],
        "column": whole[:, 1],
        "wide": whole[:1].expand(3, 6),
    }
    with opened(saved(tmp_path, "pt", values)) as file:
        for name, value in values.items():
            np.testing.assert_array_equal(numbers(file, name), value.reshape(-1).numpy())


def test_what_trainers_save_beside_the_weights_is_passed_over(tmp_path):
    model = torch.nn.Linear(3, 2)
    state = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2, 3)}
    optimizer = {"state": {0: state}, "param_groups": [{"lr": 0.001, "params": [0]}]}
    values = {
        "epoch": 3,
        "model": model.state_dict(),
        "optimizer": optimizer,
        "options": argparse.Namespace(lr=0.1, path=Path("/data")),
        "history": [1.5, None, {"a": (1, 2), 7: "x" * 300}, {1, 2}],
        "best": np.float64(0.5),
        "rng": torch.get_rng_state(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "size": torch.Size([2]),
        "state": list(range(1000)),
        "order": OrderedDict(a=torch.ones(1)),
        "type": torch.float16,
    }
    with opened(saved(tmp_path, "pt", values)) as file:
        assert {"model.weight", "model.bias", "optimizer.state.0.exp_avg", "rng", "order.a"} <= (
            file.tensors.keys()
        )
        expected = model.state_dict()["weight"].reshape(-1).numpy()
        np.testing.assert_array_equal(numbers(file, "model.weight"), expected)
        np.testing.assert_array_equal(numbers(file, "parameter"), [1.0, 1.0])
        assert file.values["epoch"] == 3
        assert file.values["history.0"] == 1.5
        assert "state.0" not in file.values
        assert file.values["optimizer.param_groups.0.lr"] == 0.001


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickles_is_read(tmp_path, protocol):
    path = tmp_path / "model.pt"
    torch.save({"a": torch.ones(2), "b": [torch.zeros(1)]}, path, pickle_protocol=protocol)
    with open_torch_file(path) as file:
        assert file.tensors.keys() == {"a", "b.0"}


class Calls:
    """Runs a command when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


class Evaluates:
    def __reduce__(self):
        return eval, ("1 + 1",)


class OwnClass:
    pass


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Calls, "posix.system"),
        (lambda marker: Evaluates(), "eval"),
        (lambda marker: OwnClass(), "OwnClass"),
        (lambda marker: torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
    ],
    ids=["a command", "eval", "a class of the script's", "a whole model"],
)
def test_a_pickle_that_names_code_is_refused_and_not_run(tmp_path, make, said):
    marker = tmp_path / "was-run"
    torch.save({"weight": torch.ones(1), "more": make(marker)}, tmp_path / "evil.pt")
    with pytest.raises(UnreadableArtifact, match="refused: its pickle names .*" + said):
        open_torch_file(tmp_path / "evil.pt")
    assert not marker.exists()


def archive(path: Path, pickled: bytes, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("archive/data.pkl", pickled)
        for name, content in members.items():
            made.writestr(f"archive/{name}", content)
    return path


def _doubling(depth: int) -> bytes:
    """A list that holds two references to a list that holds two …: 2 ** depth values."""
    inner: list = []
    for _ in range(depth):
        inner = [inner, inner]
    return pickle.dumps(inner, protocol=2)


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (_doubling(40), "nested too deeply, or holds itself"),
        (b"\x80\x02r\xff\xff\xff\xff.", "damaged"),  # puts nothing at place 4,294,967,295
        (b"\x80\x02(((((.", "damaged"),
        (b"\x80\x02", "damaged"),
        (b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00true\x85R.", "os.system"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "os.system"),
        (b"\x82\x01.", "instruction EXT1"),
        (b"(S'x'\nios\nsystem\n.", "instruction INST"),
        (b"\x80\x02B\xff\xff\xff\x7fab.", "damaged"),
        (b"\x80\x02]q\x00h\x00a.", "nested too deeply, or holds itself"),
    ],
    ids=[
        "many references",
        "a distant place",
        "marks",
        "no end",
        "a global",
        "a global of protocol 4",
        "an extension",
        "an old call",
        "a long text",
        "a list in itself",
    ],
)
def test_hostile_pickles_are_refused_in_little_time_and_memory(
    tmp_path, monkeypatch, pickled, said
):
    monkeypatch.setattr(pickled_tensors, "MAX_VISITED", 20_000)
    with pytest.raises(UnreadableArtifact, match=said):
        open_torch_file(archive(tmp_path / "evil.pt", pickled))


def test_other_files_are_told_for_what_they_are(tmp_path):
    legacy = tmp_path / "old.pt"
    torch.save({"a": torch.ones(1)}, legacy, _use_new_zipfile_serialization=False)
    with pytest.raises(UnreadableArtifact, match=r"format before 1\.6"):
        open_torch_file(legacy)
    (text := tmp_path / "text.pt").write_text("no archive")
    with pytest.raises(UnreadableArtifact, match=r"no file of torch\.save"):
        open_torch_file(text)
    (empty := tmp_path / "empty.pt").touch()
    with pytest.raises(UnreadableArtifact, match=r"no file of torch\.save"):
        open_torch_file(empty)
    with zipfile.ZipFile(tmp_path / "some.pt", "w") as made:
        made.writestr("a.txt", "x")
    with pytest.raises(UnreadableArtifact, match=r"without a data\.pkl"):
        open_torch_file(tmp_path / "some.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(UnreadableArtifact, match="named pipe"):
        open_torch_file(tmp_path / "pipe.pt")


def header(path: Path, content: object, data: bytes = b"", length: int | None = None) -> Path:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    size = len(text) if length is None else length
    path.write_bytes(size.to_bytes(8, "little") + text + data)
    return path


def tensor(shape, offsets, dtype="F32"):
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("content", "length", "said"),
    [
        (b"", (1 << 64) - 1, "claims 18,446,744,073,709,551,615 bytes"),
        (b"{}", 30, "claims 30 bytes"),
        (b"{]", None, "no JSON"),
        (b"[]", None, "no JSON object"),
        (b"\xff\xfe", None, "no JSON"),
        (b"[" * 100_000, None, "no JSON"),
        (tensor([2**62, 2**62], [0, 8]), None, "has 8 bytes, expected"),
        (tensor([-1], [0, 8]), None, "damaged at 'w'"),
        (tensor([2**70], [0, 8]), None, "damaged at 'w'"),
        (tensor([2], [8, 0]), None, "reaches to byte"),
        (tensor([2], [0, 2**63 - 1]), None, "reaches to byte"),
        (tensor([2], [0, 80]), None, "it was cut"),
        (tensor([3], [0, 8]), None, "has 8 bytes, expected 12"),
        (tensor("x", [0, 8]), None, "damaged at 'w'"),
        ({"w": 3}, None, "damaged at 'w'"),
    ],
)
def test_a_damaged_header_is_told(tmp_path, content, length, said):
    with pytest.raises(UnreadableArtifact, match=said):
        open_safetensors(header(tmp_path / "m.safetensors", content, b"\0" * 8, length))


def test_a_type_that_is_not_known_here_is_listed_and_not_read(tmp_path):
    path = header(tmp_path / "m.safetensors", tensor([16], [0, 8], "F4"), b"\0" * 8)
    with open_safetensors(path) as file:
        assert file.tensors["w"].dtype == "F4"
        assert file.pieces("w") is None


def test_what_safetensors_say_about_themselves_is_read(tmp_path):
    save_file({"w": torch.ones(1)}, tmp_path / "m.safetensors", metadata={"epoch": "3"})
    with open_safetensors(tmp_path / "m.safetensors") as file:
        assert (file.values, file.tensors.keys()) == ({"epoch": "3"}, {"w"})


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_a_large_file_is_compared_in_little_memory(tmp_path, form):
    """16 MiB on each side, in a few megabytes; a file of any size takes as much."""
    paths = [
        saved(tmp_path / name, form, {"w": torch.full((1 << 22,), value)})
        for name, value in (("a", 1.0), ("b", 2.0))
    ]
    tracemalloc.start()
    try:
        with opened(paths[0]) as a, opened(paths[1]) as b:
            found = compare_checkpoints(a, b)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert found.relative_change == 1


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_however_a_file_is_damaged_it_is_read_or_told(tmp_path, form):
    """Three hundred times, at bytes that a fixed seed chooses: most of them where lengths are."""
    values = {"layer.weight": torch.ones(4, 4), "layer.bias": torch.zeros(4)}
    whole = saved(tmp_path, form, values).read_bytes()
    choose = random.Random(7)
    told = 0
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(choose.choice((1, 1, 4))):
            content[choose.randrange(len(content))] = choose.randrange(256)
        if choose.random() < 0.3:
            del content[choose.randrange(len(content)) :]
        (path := tmp_path / f"damaged.{form}").write_bytes(content)
        try:
            with opened(path) as file:
                for name in file.tensors:
                    for _ in file.pieces(name) or ():
                        pass
        except UnreadableArtifact as error:
            told += 1
            assert str(error)
    assert told > 50


@st.composite
def any_tensor(draw):
    dtype = draw(st.sampled_from([*DTYPES[:4], torch.int64, torch.uint8, torch.bool]))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    made = torch.arange(float(np.prod(shape, dtype=int))).reshape(shape).to(dtype)
    how = draw(st.sampled_from(["whole", "transposed", "part", "every other", "parameter"]))
    if how == "transposed":
        return made.T if made.ndim == 2 else made
    if how in ("part", "every other") and made.ndim:
        return made[1:] if how == "part" else made[::2]
    return torch.nn.Parameter(made) if how == "parameter" and dtype.is_floating_point else made


KEYS = st.text(max_size=4) | st.integers(-5, 5)
STRUCTURES = st.recursive(
    any_tensor() | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.dictionaries(KEYS, inner, max_size=4)
        | st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


def tensors_of(value):
    """The tensors of a structure, in its order."""
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    is_structure = isinstance(value, (dict, list, tuple))
    return [each for part in parts for each in tensors_of(part)] if is_structure else []


@given(STRUCTURES)
@settings(max_examples=60)
def test_whatever_torch_saves_has_the_tensors_that_torch_loads(structure):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        torch.save(structure, path)
        expected = tensors_of(torch.load(path, weights_only=True))
        with open_torch_file(path) as file:
            assert len(file.tensors) == len(expected)
            for name, value in zip(file.tensors, expected, strict=True):
                found = numbers(file, name)
                flat = value.detach().to(torch.float64).reshape(-1).numpy()
                np.testing.assert_array_equal(found, flat)
