"""Files of `torch.distributed.checkpoint`: tensors by name, and nothing of a pickle runs."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from traceml.compare.checkpoints import compare_checkpoints
from traceml.model.errors import UnreadableArtifact
from traceml.store.distributed_checkpoint import METADATA, open_distributed_checkpoint

dcp = pytest.importorskip("torch.distributed.checkpoint")


def save(folder: Path, **state: Any) -> Path:
    """Saves as a script would; returns the one file with tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    (made,) = folder.glob("*.distcp")
    return made


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 2).to(torch.bfloat16))


def test_tensors_and_values_have_their_names(tmp_path: Path) -> None:
    made, counts = model(1), torch.arange(6)
    path = save(tmp_path / "a", model=made.state_dict(), epoch=3, optim={"counts": counts})
    with open_distributed_checkpoint(path) as file:
        assert {name: (each.dtype, each.shape) for name, each in file.tensors.items()} == {
            "model.0.weight": ("float32", (200, 300)),
            "model.0.bias": ("float32", (200,)),
            "model.1.weight": ("bfloat16", (2, 200)),
            "model.1.bias": ("bfloat16", (2,)),
            "optim.counts": ("int64", (6,)),
        }
        assert file.values == {"epoch": 3}
        for name, expected in made.state_dict(prefix="model.").items():
            pieces = file.pieces(name)
            assert pieces is not None
            found = np.concatenate(list(pieces))
            assert (found == expected.double().flatten().numpy()).all()


def test_two_checkpoints_are_compared_by_tensor(tmp_path: Path) -> None:
    made = model(1)
    before = save(tmp_path / "a", model=made.state_dict(), epoch=3)
    with torch.no_grad():
        made[0].bias += 1.0
    after = save(tmp_path / "b", model=made.state_dict(), epoch=4)
    with open_distributed_checkpoint(before) as a, open_distributed_checkpoint(after) as b:
        found = compare_checkpoints(a, b)
    assert (found.same, found.moved) == (3, 1)
    assert [each.name for each in found.tensors] == ["model.0.bias"]
    assert [(each.path, each.lhs, each.rhs) for each in found.values] == [("epoch", 3, 4)]


def archive(value: Any) -> bytes:
    made = io.BytesIO()
    torch.save(value, made)
    return made.getvalue()


def test_the_pieces_of_a_tensor_are_told_apart_by_their_place(tmp_path: Path) -> None:
    """As two ranks leave them, made with torch's own classes."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

    parts = [archive(torch.zeros(2, 3)), archive(torch.ones(2, 3))]
    (tmp_path / "__0_0.distcp").write_bytes(b"".join(parts))
    (tmp_path / "__1_0.distcp").write_bytes(archive(torch.ones(1)))
    places = {
        MetadataIndex("w", torch.Size([0, 0]), 0): _StorageInfo("__0_0.distcp", 0, len(parts[0])),
        MetadataIndex("w", torch.Size([2, 0]), 1): _StorageInfo(
            "__0_0.distcp", len(parts[0]), len(parts[1])
        ),
        MetadataIndex("v", torch.Size([0]), 0): _StorageInfo("__1_0.distcp", 0, 10),
    }
    content = pickle.dumps(Metadata(state_dict_metadata={}, storage_data=places))
    (tmp_path / METADATA).write_bytes(content)
    with open_distributed_checkpoint(tmp_path / "__0_0.distcp") as file:
        found = {name: next(iter(file.pieces(name) or ())).tolist() for name in file.tensors}
    assert found == {"w": [0.0] * 6, "w [2, 0]": [1.0] * 6}


class Evil:
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (os.system, (f"touch {self._mark}",))


@pytest.mark.parametrize("where", ["the metadata", "a part"])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, where: str) -> None:
    mark = tmp_path / "unpickled"
    path = save(tmp_path / "a", w=torch.zeros(3), evil=Evil(mark) if where == "a part" else 1)
    if where == "the metadata":
        (tmp_path / "a" / METADATA).write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(UnreadableArtifact, match="refused: its pickle names posix"):
        open_distributed_checkpoint(path)
    assert not mark.exists()


def test_what_is_missing_cut_or_damaged_is_told(tmp_path: Path) -> None:
    path = save(tmp_path / "a", w=torch.zeros(1000), v=torch.zeros(1000))
    metadata = tmp_path / "a" / METADATA
    content = metadata.read_bytes()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3000])
    with pytest.raises(UnreadableArtifact, match="it was cut"):
        open_distributed_checkpoint(path)
    path.write_bytes(whole)
    for damaged in (content[:100], b"", pickle.dumps({"a": 1}), content.replace(b"fqn", b"xqn")):
        metadata.write_bytes(damaged)
        with pytest.raises(UnreadableArtifact):
            open_distributed_checkpoint(path)
    metadata.unlink()
    with pytest.raises(UnreadableArtifact, match="log the whole folder"):
        open_distributed_checkpoint(path)
