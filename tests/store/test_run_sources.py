"""A user's words for runs of other tools, before anything is fetched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from traceml.model.errors import RunNotFound, UsageError
from traceml.store.mlflow_server import split_address
from traceml.store.run_sources import is_source_word, open_source


@pytest.mark.parametrize(
    ("word", "is_source"),
    [
        ("mlflow:1a2b", True),
        ("mlflow+http://host:5000#1a2b", True),
        ("tensorboard:runs/one", True),
        ("wandb:wandb/latest-run", True),
        ("mlflow", False),
        ("mlflow-baseline", False),
        ("logs/run:1", False),
        ("params.lr=0.1", False),
    ],
)
def test_which_words_name_runs_of_other_tools(word: str, is_source: bool) -> None:
    assert is_source_word(word) is is_source


@pytest.mark.parametrize(
    ("word", "address", "run"),
    [
        ("mlflow", None, ""),
        ("mlflow:1a2b", None, "1a2b"),
        ("mlflow+http://host:5000", "http://host:5000", ""),
        ("mlflow+http://host:5000/#1a2b", "http://host:5000", "1a2b"),
        ("mlflow+https://h/ml#/experiments/3/runs/1a2b", "https://h/ml", "1a2b"),
        ("mlflow+https://h#/experiments/3/runs/1a2b/artifacts/x", "https://h", "1a2b"),
        ("mlflow+http://h#/experiments/3/runs/1a2b?workspace=a", "http://h", "1a2b"),
        ("mlflow+sqlite:///here.db", "sqlite:///here.db", ""),
    ],
)
def test_address_and_run_of_a_word(word: str, address: str | None, run: str) -> None:
    assert split_address(word) == (address, run)


def test_credentials_have_no_place_in_an_address() -> None:
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_PASSWORD") as refused:
        split_address("mlflow+https://ada:secret@host")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("mlflw", "did you mean mlflow?"),
        ("s3://bucket", "names no store"),
        ("tensorboard", "names no store"),
        ("wandb:", "names no store"),
    ],
)
def test_a_word_that_names_no_store(word: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        open_source(word)
    assert words in str(refused.value)


def test_experiments_are_mlflows() -> None:
    with pytest.raises(UsageError, match="--experiment is MLflow's"):
        open_source("tensorboard:runs", ["mine"])


@pytest.mark.parametrize("word", ["tensorboard:nope", "wandb:nope"])
def test_a_folder_that_is_not_there(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunNotFound, match="nope"):
        open_source(word)


@pytest.mark.parametrize(
    ("word", "package", "extra"),
    [
        ("mlflow+http://127.0.0.1:9", "mlflow", "[mlflow]"),
        ("tensorboard:.", "tensorboard", "[tensorboard]"),
        ("wandb:.", "wandb", "[wandb]"),
    ],
)
def test_a_package_that_is_missing_is_named(
    word: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name == package or name.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError) as refused:
        open_source(word)
    assert f"pip install 'traceml-insight{extra}'" in str(refused.value)
