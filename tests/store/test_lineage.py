"""Lineage is read back as it was written; damaged files say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traceml.model.environment import INTERPRETER_MARK, MARKS, TRAINER_MARK
from traceml.model.interpreter import Interpreter
from traceml.model.lineage import (
    ChangedFile,
    Changes,
    Code,
    Command,
    Data,
    Environment,
    Fingerprint,
    Gpu,
    Hardware,
    Lineage,
)
from traceml.store import lineage as store

LINEAGE = Lineage(
    captured_unix_s=1.5,
    code=Code(commit="c", changes=Changes("h", (ChangedFile("a.py", 1, 2),), 1, 1, 2)),
    command=Command(("python", "train.py"), "train.py", (), "/srv"),
    environment=Environment(python="3.12.1"),
    packages={"torch": "2.11"},
    hardware=Hardware(gpus=(Gpu("H200", 5),)),
    data=Data({"a": "1"}, {"b": Fingerprint(1, 2, 3)}),
    variables={"OMP_NUM_THREADS": "1"},
)


def test_lineage_round_trips(tmp_path: Path) -> None:
    store.write_lineage(tmp_path, LINEAGE)
    assert store.read_lineage(tmp_path) == LINEAGE


@pytest.mark.parametrize("content", [b"", b"{", b'{"code": 3}', b"\xff\xfe"])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    assert store.read_lineage(tmp_path) is None
    (tmp_path / store.LINEAGE).write_bytes(content)
    assert store.read_lineage(tmp_path) is None


def test_a_diff_is_kept_beside_it_only_where_there_is_one(tmp_path: Path) -> None:
    store.write_diff(tmp_path, "")
    assert list(tmp_path.iterdir()) == []
    store.write_diff(tmp_path, "+ä")
    assert (tmp_path / "diff.patch").read_text() == "+ä"
    store.write_diff(tmp_path, "")
    assert list(tmp_path.iterdir()) == []


def test_the_interpreter_that_trains_goes_before_the_one_that_launches(tmp_path: Path) -> None:
    launcher = Interpreter("python", "3.12", ("/a",), ("torchrun",), "/srv", {})
    trainer = launcher._replace(argv=("train.py",))
    assert store.read_interpreter(tmp_path) is None
    (tmp_path / MARKS).mkdir()
    (tmp_path / MARKS / INTERPRETER_MARK).write_text(json.dumps(launcher))
    assert store.read_interpreter(tmp_path) == launcher
    (tmp_path / MARKS / TRAINER_MARK).write_text("[")  # just being written
    assert store.read_interpreter(tmp_path) == launcher
    (tmp_path / MARKS / TRAINER_MARK).write_text(json.dumps(trainer))
    assert store.read_interpreter(tmp_path) == trainer
