"""`traceml compare` says what changed in the files that two runs logged."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from traceml.api import artifact_contents
from traceml.cli import main
from traceml.model.artifact import kind_of_file
from traceml.model.errors import UnreadableArtifact
from traceml.store import arrow_file, npz_file


class Runs:
    """Two runs, `a` and `b`, and what the files are that they logged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifacts: dict[str, dict[str, Any]] = {"a": {}, "b": {}}

    def log(self, run: str, path: str, content: bytes | None = None) -> Path:
        """Gives a run an artifact; without content, the file is there already."""
        place = self.place(run, path)
        if content is not None:
            place.write_bytes(content)
        found = place.read_bytes()
        self.artifacts[run][path] = {
            "path": f"/data/{path}",
            "size_bytes": len(found),
            "sha256": hashlib.sha256(found).hexdigest(),
            "kind": kind_of_file(path, found[:512]).value,
            "stored": f"artifacts/0001/{path}",
        }
        return place

    def place(self, run: str, path: str) -> Path:
        place = self.folder / "logs" / run / "artifacts" / "0001" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def save(self, run: str, path: str, tensors: dict[str, torch.Tensor]) -> Path:
        place = self.place(run, path)
        save_file(tensors, place) if path.endswith("safetensors") else torch.save(tensors, place)
        return self.log(run, path)

    def compare(self, *options: str) -> list[dict[str, Any]]:
        """What `traceml compare a b` writes down about artifacts."""
        for run, artifacts in self.artifacts.items():
            place = self.folder / "logs" / run
            place.mkdir(parents=True, exist_ok=True)
            document = {
                "producer": {"name": "traceml-insight"},
                "step_time": {"global": {"average": {"step_time_ms": 10.0}}},
                "artifacts": artifacts,
            }
            (place / "final_summary.json").write_text(json.dumps(document))
        assert main(["compare", "a", "b", "--output", "ab", *options]) == 0
        found = json.loads((self.folder / "ab.json").read_text())["artifacts"]
        assert isinstance(found, list)
        return found


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.chdir(tmp_path)
    return Runs(tmp_path)


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_two_checkpoints(runs: Runs, capsys: pytest.CaptureFixture[str], form: str) -> None:
    one = {"layer.weight": torch.ones(4), "layer.bias": torch.zeros(2), "old": torch.ones(1)}
    two = {"layer.weight": torch.full((4,), 1.5), "layer.bias": torch.zeros(2)}
    two["head"] = torch.full((3,), float("nan"))
    runs.save("a", f"model.{form}", one)
    runs.save("b", f"model.{form}", two)
    (change,) = runs.compare()
    details = change["details"]
    assert (change["kind"], details["type"]) == ("checkpoint", "checkpoint")
    assert (details["same"], details["moved"]) == (1, 1)
    assert (details["added"], details["removed"]) == (1, 1)
    said = capsys.readouterr().out
    assert "What changed in the logged files:" in said
    assert "layer.weight: changed by 50%, norm 2 -> 3" in said
    assert "head: only in B, float32 [3]" in said
    assert "old: only in A, float32 [1]" in said


def test_a_checkpoint_in_either_format_is_compared_with_the_other(runs: Runs) -> None:
    runs.save("a", "model.pt", {"w": torch.ones(3)})
    runs.save("b", "model.safetensors", {"w": torch.ones(3)})
    runs.artifacts["b"] = {"model.pt": runs.artifacts["b"]["model.safetensors"]}
    (change,) = runs.compare()
    assert (change["details"]["same"], change["details"]["tensors"]) == (1, [])


def test_what_is_the_same_is_not_listed(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    for run in ("a", "b"):
        runs.log(run, "data.bin", b"same")
    assert runs.compare() == []
    assert "logged files" not in capsys.readouterr().out


def test_files_of_one_run_alone_are_named(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.log("a", "old.bin", b"12345678")
    runs.log("b", "new.bin", b"1")
    assert [each["name"] for each in runs.compare()] == ["new.bin", "old.bin"]
    said = capsys.readouterr().out
    assert "new.bin (other): only in B, 1 B" in said
    assert "old.bin (other): only in A, 8 B" in said


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_a_hostile_checkpoint_is_refused_with_its_reason(
    runs: Runs, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return print, ("owned",)

    runs.save("a", "model.pt", {"w": torch.ones(1)})
    torch.save({"w": Evil()}, runs.place("b", "model.pt"))
    runs.log("b", "model.pt")
    (change,) = runs.compare("--format", form)
    assert change["details"] is None
    assert "refused: its pickle names __builtin__.print" in change["not_compared"]
    said = capsys.readouterr().out
    assert "owned" not in said
    assert "refused" in said


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (lambda path: path.unlink(), "B's copy is gone"),
        (lambda path: path.write_bytes(b"cut"), "B's copy was changed"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), "B's copy"),
    ],
    ids=["removed", "cut", "replaced by a link"],
)
def test_a_copy_that_somebody_touched_is_told(runs: Runs, hurt: Any, said: str) -> None:
    runs.save("a", "model.pt", {"w": torch.ones(1)})
    hurt(runs.save("b", "model.pt", {"w": torch.zeros(1)}))
    (change,) = runs.compare()
    assert change["details"] is None
    assert said in change["not_compared"]


@pytest.mark.parametrize("stored", [None, "../../secret", "/etc/passwd"])
def test_a_copy_outside_of_its_run_is_not_read(runs: Runs, stored: str | None) -> None:
    runs.save("a", "model.pt", {"w": torch.ones(1)})
    runs.save("b", "model.pt", {"w": torch.zeros(1)})
    runs.artifacts["b"]["model.pt"] |= {"stored": stored, "note": "it was too large"}
    (change,) = runs.compare()
    reason = "too large" if stored is None else "outside of its run's folder"
    assert reason in change["not_compared"]


def test_large_files_are_read_when_asked_for(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(artifact_contents, "MAX_READ_BYTES", 100)
    runs.save("a", "model.pt", {f"w{number}": torch.ones(1) for number in range(20)})
    runs.save("b", "model.pt", {f"w{number}": torch.zeros(1) for number in range(20)})
    (change,) = runs.compare()
    assert "--artifacts does" in change["not_compared"]
    capsys.readouterr()
    (change,) = runs.compare("--artifacts")
    assert change["details"]["moved"] == 20
    assert capsys.readouterr().out.count("changed by 100%") == 20


def test_a_folder_is_compared_file_by_file(runs: Runs) -> None:
    for run, weight in (("a", 1.0), ("b", 2.0)):
        runs.save(run, "ckpt/model.safetensors", {"w": torch.full((2,), weight)})
        runs.log(run, "ckpt/config.json", b"{}")
        inside = {
            path.removeprefix("ckpt/"): {
                key: known[key] for key in ("size_bytes", "sha256", "kind")
            }
            for path, known in runs.artifacts[run].items()
        }
        runs.artifacts[run] = {
            "ckpt": {"path": "/ckpt", "kind": "folder", "stored": "artifacts/0001/ckpt"}
            | {"files": inside, "sha256": run}
        }
    (change,) = runs.compare()
    assert change["name"] == "ckpt/model.safetensors"
    assert change["details"]["relative_change"] == 1.0


def test_texts_documents_tables_and_samples(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "notes.txt": (b"the quick fox\n", b"the slow fox\n"),
        "train.log": (b"10:00:01 step 1 loss 0.5\n", b"11:22:33 step 9 loss nan\n"),
        "config.json": (b'{"lr": 0.1}', b'{"lr": 0.2}'),
        "scores.csv": (b"name;f1\ncat;0.5\n", b"name;f1\ncat;0.75\n"),
        "samples.jsonl": (
            b'{"prompt": "Hi", "text": "Hello you"}\n',
            b'{"prompt": "Hi", "text": "Hello \\u001b[31mthere"}\n',
        ),
        "list.json": (b'[{"prompt": "1", "text": "a"}]', b'[{"prompt": "1", "text": "b"}]'),
        "events.jsonl": (b'{"step": 1}\n', b'{"step": 2}\n'),
        "roc.json": (
            b'{"fpr": [0, 0.5, 1], "tpr": [0, 0.5, 1]}',
            b'{"fpr": [0, 0, 1], "tpr": [0, 1, 1]}',
        ),
    }
    for name, (lhs, rhs) in files.items():
        runs.log("a", name, lhs)
        runs.log("b", name, rhs)
    found = {change["name"]: change["details"]["type"] for change in runs.compare()}
    assert found == {
        "config.json": "json",
        "events.jsonl": "json",
        "list.json": "samples",
        "notes.txt": "text",
        "roc.json": "curve",
        "samples.jsonl": "samples",
        "scores.csv": "table",
        "train.log": "text",
    }
    said = capsys.readouterr().out
    assert "line 1: the [-quick-]{+slow+} fox" in said
    assert "lr: 0.1 -> 0.2" in said
    assert "name cat, f1: 0.5 -> 0.75" in said
    assert "Hi: Hello [-you-]" in said
    assert "area: 0.5 -> 1 (+0.5)" in said
    assert "line 1: 10:00:01 step 1 loss [-0.5-]{+nan+}" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"{", "B's file: it is no JSON"),
        ("a.json", b"[" * 100_000, "B's file: it is no JSON"),
        ("a.jsonl", b"{}\n3\n", "B's file: line 2 is no JSON object"),
        ("a.txt", b"a\0b", "B's file: it holds null bytes"),
        ("a.csv", b'a,b\n"' + b"x" * 200_000, "B's file: it is no table"),
        ("a.txt", b"x" * (17 << 20), "B's file: it cannot be read"),
    ],
    ids=["cut", "nested", "no objects", "null bytes", "an endless field", "too long"],
)
def test_a_damaged_document_is_told(runs: Runs, name: str, content: bytes, said: str) -> None:
    runs.log("a", name, b"")
    runs.log("a", name, b"{}" if "json" in name else b"a,b\n1,2\n")
    runs.log("b", name, content)
    (change,) = runs.compare()
    assert change["details"] is None
    assert change["not_compared"].startswith(said)


def test_documents_in_other_encodings_are_read_as_far_as_they_go(runs: Runs) -> None:
    runs.log("a", "a.txt", "\ufeffgrün\n".encode())
    runs.log("b", "a.txt", "grün\n".encode("latin-1"))
    (change,) = runs.compare()
    assert change["details"]["removed"] == 1


def test_a_separator_within_a_line_ends_none(runs: Runs) -> None:
    """Generated texts have U+2028, old sources form feeds: no line of JSON or of a table ends
    there."""
    for run, said in (("a", "one"), ("b", "two")):
        sample = {"prompt": "x", "text": f"{said}\u2028more\x85"}
        runs.log(run, "samples.jsonl", json.dumps(sample, ensure_ascii=False).encode() + b"\n")
        runs.log(run, "words.csv", f"word,text\nx,{said}\u2028more\f\r\n".encode())
    samples, table = runs.compare()
    assert (samples["not_compared"], table["not_compared"]) == (None, None)
    assert (samples["details"]["paired_by"], samples["details"]["paired"]) == ("prompt", 1)
    assert (table["details"]["lhs_rows"], table["details"]["changed_cells"]) == (1, 1)


def _image(*size: int, colour: str = "red", form: str = "PNG") -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", size, colour).save(file, form)
    return file.getvalue()


def test_images_are_shown_side_by_side(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    name = "samples/grid 1.png"
    runs.log("a", name, _image(8, 8))
    runs.log("b", name, _image(8, 8, colour="blue"))
    (change,) = runs.compare()
    details = change["details"]
    assert (details["type"], details["changed_share"]) == ("image", 1.0)
    picture = Path(details["picture"])
    assert picture.parent.name == "ab.files"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "100% of the pixels differ" in capsys.readouterr().out


def test_jpeg_and_other_sizes(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.log("a", "a.jpg", _image(8, 8, form="JPEG"))
    runs.log("b", "a.jpg", _image(4, 8, form="JPEG"))
    assert runs.compare()[0]["details"]["changed_share"] is None
    assert "8 × 8 pixels -> 4 × 8 pixels" in capsys.readouterr().out


def test_a_damaged_or_endless_image_is_told(runs: Runs) -> None:
    runs.log("a", "a.png", _image(8, 8))
    runs.log("b", "a.png", _image(8, 8)[:45])
    assert "B's file: it is no PNG or JPEG" in runs.compare()[0]["not_compared"]
    header = bytearray(_image(8, 8))
    header[16:24] = (60_000).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    runs.log("b", "a.png", bytes(header))
    assert "3600000000 pixels" in runs.compare()[0]["not_compared"]


def test_without_pillow_images_say_what_to_install(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    runs.log("a", "a.png", b"\x89PNG 1")
    runs.log("b", "a.png", b"\x89PNG 2")
    assert "pip install 'traceml-insight[images]'" in runs.compare()[0]["not_compared"]


def test_embeddings_are_projected_together(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    for run in ("a", "b"):
        np.save(runs.place(run, "embeddings.npy"), generator.normal(size=(20, 3)))
        runs.log(run, "embeddings.npy")
    (change,) = runs.compare()
    assert len(change["details"]["projection"]["lhs"]) == 20
    assert "alignment (CKA) 0." in capsys.readouterr().out


@pytest.mark.parametrize("how", ["objects", "cut", "text"])
def test_an_array_that_is_none_is_told(runs: Runs, how: str) -> None:
    np.save(runs.place("a", "x.npy"), np.ones(3))
    place = runs.place("b", "x.npy")
    np.save(place, np.array([{}]) if how == "objects" else np.ones(30), allow_pickle=True)
    if how != "objects":
        place.write_bytes(place.read_bytes()[:150] if how == "cut" else b"no array")
    runs.log("a", "x.npy")
    runs.log("b", "x.npy")
    assert runs.compare()[0]["not_compared"].startswith("B's file: it is no ")


# Several arrays in one file


def save_arrays(runs: Runs, run: str, compressed: bool = False, **arrays: Any) -> Path:
    place = runs.place(run, "weights.npz")
    save = np.savez_compressed if compressed else np.savez
    save(place, **arrays)
    return runs.log(run, "weights.npz")


@pytest.mark.parametrize("compressed", [False, True], ids=["stored", "compressed"])
def test_the_arrays_of_an_npz_file_are_compared_like_tensors(runs: Runs, compressed: bool) -> None:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(300, 500))  # more than one piece
    moved = weight.copy()
    moved[7, 3] += 2.0
    same, matrix = np.arange(5), rng.normal(size=(4, 6))
    save_arrays(runs, "a", compressed, w=weight, same=same, old=same, order=matrix, n=np.ones(3))
    save_arrays(
        runs, "b", compressed, w=moved, same=same, new=same, order=np.asfortranarray(matrix),
        n=np.array([1.0, np.nan, 1.0]),
    )  # fmt: skip
    (change,) = runs.compare()
    details = change["details"]
    assert (details["type"], details["same"], details["moved"]) == ("checkpoint", 2, 2)
    assert (details["added"], details["removed"]) == (1, 1)
    by_name = {each["name"]: each for each in details["tensors"]}
    expected = 2.0 / np.linalg.norm(weight)
    assert by_name["w"]["relative_change"] == pytest.approx(expected)
    assert by_name["w"]["lhs"] == {
        "dtype": "float64",
        "shape": [300, 500],
        "norm": pytest.approx(np.linalg.norm(weight)),
        "not_finite": 0,
    }
    assert by_name["n"]["rhs"]["not_finite"] == 1


def test_complex_numbers_and_any_byte_order_are_read(runs: Runs) -> None:
    values = np.array([[1 + 2j, 3], [4, 5j]])
    save_arrays(runs, "a", c=values, big=np.arange(6, dtype=">i4"))
    save_arrays(runs, "b", c=np.asfortranarray(values), big=np.arange(6, dtype="<i4") * 2)
    (change,) = runs.compare()
    details = change["details"]
    assert [each["name"] for each in details["tensors"]] == ["big"]
    assert details["same"] == 1


def test_an_npz_file_with_a_pickle_is_not_unpickled(runs: Runs, tmp_path: Path) -> None:
    mark = tmp_path / "unpickled"

    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path.touch, (mark,))  # type: ignore[return-value]

    for run, number in (("a", 1.0), ("b", 2.0)):
        save_arrays(runs, run, evil=np.array([Evil()], dtype=object), w=np.array([number]))
    (change,) = runs.compare()
    by_name = {each["name"]: each for each in change["details"]["tensors"]}
    assert by_name["evil"]["lhs"] == {
        "dtype": "object",
        "shape": [1],
        "norm": None,
        "not_finite": 0,
    }
    assert by_name["w"]["relative_change"] == 1.0
    assert not mark.exists()


@pytest.mark.parametrize("damage", ["cut", "no zip", "no arrays", "a bomb", "header"])
def test_a_damaged_npz_file_is_told(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    save_arrays(runs, "a", w=np.arange(1000.0))
    place = save_arrays(runs, "b", w=np.arange(1000.0) + 1)
    content = place.read_bytes()
    if damage == "cut":
        content = content[:1000]
    elif damage == "no zip":
        content = b"PK" + bytes(100)
    elif damage == "no arrays":
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("readme.txt", "nothing")
        content = made.getvalue()
    elif damage == "header":
        content = content.replace(b"'descr': '<f8'", b"'descr': '<q8'")
    else:
        monkeypatch.setattr(npz_file, "MAX_UNPACKED_BYTES", 100)
    runs.log("b", "weights.npz", content)
    (change,) = runs.compare()
    assert change["details"] is None
    assert change["not_compared"].startswith(("B's file: it", "A's file: it unpacks"))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"{'descr': '<f8', 'fortran_order': False, 'shape': (-5,)}", "the shape (-5,)"),
        (b" " * (8 << 20), "description of an array has 8,388,608 bytes"),
    ],
    ids=["less than nothing", "an endless description"],
)
def test_a_small_npz_file_takes_little_memory(tmp_path: Path, head: bytes, said: str) -> None:
    path = tmp_path / "small.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        start = b"\x93NUMPY\x02\x00" + len(head).to_bytes(4, "little")
        archive.writestr("w.npy", start + head + bytes(8 << 20))
    tracemalloc.start()
    with pytest.raises(UnreadableArtifact, match=re.escape(said)), npz_file.open_npz(path) as file:
        for piece in file.pieces("w") or ():
            assert piece.size
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 << 20


# Parquet and Arrow tables


def save_table(runs: Runs, run: str, path: str, **columns: Any) -> Path:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(columns)
    place = runs.place(run, path)
    if path.endswith("parquet"):
        pytest.importorskip("pyarrow.parquet").write_table(table, place, row_group_size=1000)
    elif path.endswith("stream.arrow"):
        with arrow.ipc.new_stream(place, table.schema) as writer:
            writer.write_table(table)
    else:
        with arrow.ipc.new_file(place, table.schema) as writer:
            writer.write_table(table, max_chunksize=700)
    return runs.log(run, path)


@pytest.mark.parametrize("path", ["t.parquet", "t.feather", "stream.arrow"])
def test_small_tables_are_paired_by_their_key(runs: Runs, path: str) -> None:
    save_table(runs, "a", path, id=["x", "y", "z"], score=[0.1, 0.2, None], gone=[1, 2, 3])
    save_table(runs, "b", path, id=["z", "x", "w"], score=[0.3, 0.1, 0.5], new=[True, None, False])
    (change,) = runs.compare()
    details = change["details"]
    assert (change["kind"], details["type"], details["paired_by"]) == ("table", "table", "id")
    assert (details["added_rows"], details["removed_rows"]) == (1, 1)
    assert (details["added_columns"], details["removed_columns"]) == (["new"], ["gone"])
    assert [cell["path"] for cell in details["cells"]] == ["id z, score"]


@pytest.mark.parametrize("path", ["t.parquet", "t.feather", "stream.arrow"])
def test_large_tables_are_compared_as_they_are_read(
    runs: Runs, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_contents, "MAX_CELLS", 100)
    monkeypatch.setattr(arrow_file, "BATCH_ROWS", 333)
    rows = 5000
    numbers = [float(n) for n in range(rows)]
    words = [f"w{n}" for n in range(rows)]
    other_numbers, other_words = [*numbers[:-1], 0.0], list(words)
    other_words[1234] = "new"
    gaps: list[int | None] = [None if n % 7 == 0 else n for n in range(rows)]
    other_gaps = list(gaps)
    other_gaps[7] = 7
    save_table(runs, "a", path, n=numbers, w=words, g=gaps, nan=[float("nan")] * rows)
    save_table(
        runs, "b", path, n=[*other_numbers, 1.0], w=[*other_words, "end"], g=[*other_gaps, 1],
        nan=[float("nan")] * (rows + 1),
    )  # fmt: skip
    (change,) = runs.compare()
    details = change["details"]
    assert (details["lhs_rows"], details["rhs_rows"], details["added_rows"]) == (rows, rows + 1, 1)
    assert (details["paired_by"], details["changed_cells"]) == ("row", 3)
    cells = {cell["path"]: (cell["lhs"], cell["rhs"]) for cell in details["cells"]}
    assert cells == {
        "row 1235, w": ("w1234", "new"),
        "row 5000, n": (4999.0, 0.0),
        "row 8, g": (None, 7),
    }
    (column,) = [each for each in details["columns"] if each["name"] == "n"]
    assert column["lhs_mean"] == pytest.approx(np.mean(numbers))
    assert column["rhs_mean"] == pytest.approx(np.mean(other_numbers))


def test_a_table_that_is_cut_or_needs_pyarrow_says_so(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in "ab":
        runs.log(run, "t.parquet", b"PAR1" + run.encode() * 50)
    (change,) = runs.compare()
    assert change["details"] is None
    assert "pyarrow" in change["not_compared"] or "damaged" in change["not_compared"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (change,) = runs.compare()
    assert change["not_compared"].endswith("need pyarrow; pip install pyarrow")


def test_files_that_were_logged_before_their_kind_was_known_are_compared(runs: Runs) -> None:
    for run, number in (("a", 1.0), ("b", 2.0)):
        save_arrays(runs, run, w=np.array([number]))
        runs.artifacts[run]["weights.npz"]["kind"] = "other"
    (change,) = runs.compare()
    assert change["details"]["moved"] == 1
