"""The training process says which interpreter it is, once, and none of its secrets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from traceml.model.environment import MARKS, TRAINER_MARK
from traceml.model.interpreter import Interpreter
from traceml.store.lineage import read_interpreter
from traceml.trace.interpreter import introduce


def _introduced(folder: Path) -> Interpreter:
    introduce(folder, TRAINER_MARK)
    found = read_interpreter(folder)
    assert found is not None
    return found


def test_it_says_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    monkeypatch.chdir(tmp_path)
    found = _introduced(tmp_path)
    assert (found.executable, found.folder) == (sys.executable, str(tmp_path))
    assert found.path == tuple(sys.path)
    assert found.argv == ("train.py", "--lr", "0.1")
    assert (found.torch, found.cuda) == (torch.__version__, torch.version.cuda)


def test_only_chosen_variables_are_told_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    told = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "NCCL_DEBUG": "INFO"}
    kept_back = {
        "TORCH_API_KEY": "abc",
        "HF_TOKEN": "abc",
        "NCCL_COOKIE": "hf_" + "a" * 30,
        "RANK": "3",
        "HOME": "/root",
    }
    for name, value in {**told, **kept_back, "TORCH_URL": "http://me:pw@host/x"}.items():
        monkeypatch.setenv(name, value)
    assert _introduced(tmp_path).variables == {**told, "TORCH_URL": "http://host/x"}


def test_secrets_among_the_arguments_never_reach_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "hunter2", "--n=\udcff"])
    assert _introduced(tmp_path).argv == ("train.py", "--api-key", "***", "--n=?")
    assert "hunter2" not in (tmp_path / MARKS / TRAINER_MARK).read_text()


def test_the_first_to_say_so_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _introduced(tmp_path)
    monkeypatch.setattr(sys, "argv", ["another.py"])
    assert _introduced(tmp_path) == first


def test_with_nowhere_to_write_nothing_is_said(tmp_path: Path) -> None:
    introduce(tmp_path / "gone", TRAINER_MARK)
    assert list(tmp_path.iterdir()) == []


def test_a_notebooks_own_arguments_are_not_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setattr(sys, "argv", ["launcher.py", "-f", "kernel-1.json"])
    assert _introduced(tmp_path).argv == ("launcher.py",)
