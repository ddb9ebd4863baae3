"""Groups of runs: by name, by pattern, by what they ran with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from traceml.api.find_runs import choose_summaries
from traceml.model.errors import RunNotFound, TraceMLError
from traceml.store.query_language import QueryError


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, rate in (("base-1", 0.1), ("base-2", 0.1), ("other", 0.2)):
        folder = tmp_path / "logs" / name
        folder.mkdir(parents=True)
        document = {"params": {"lr": rate}, "meta": {"world_size": 2}, "system": {}}
        if name == "other":  # what the index has no column of
            document["meta"]["colour"] = "blue"
        (folder / "final_summary.json").write_text(json.dumps(document))
    (tmp_path / "logs" / "unfinished").mkdir()
    (tmp_path / "logs" / "broken").mkdir()
    (tmp_path / "logs" / "broken" / "final_summary.json").write_text("[[[")
    return Path("logs")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["base-2", "base-1"], ["base-2", "base-1"]),
        (["base-*"], ["base-1", "base-2"]),
        (["logs/base-?"], ["base-1", "base-2"]),
        (["logs/*/final_summary.json", "base-1"], ["base-1", "base-2", "broken", "other"]),
        (["params.lr=0.1"], ["base-1", "base-2"]),
        (["lr=2e-1,world_size=2"], ["other"]),
        (["lr = 0.1"], ["base-1", "base-2"]),
        (["meta.world_size=2,params.lr=0.2"], ["other"]),
        (["meta.colour=blue"], ["other"]),
        (["lr > 0.15"], ["other"]),
        (["lr < 0.15 and world_size = 2"], ["base-1", "base-2"]),
        (["params.lr in (0.2, 0.3)"], ["other"]),
        (['name matches "base*" and not name = "base-1"'], ["base-2"]),
        (["lr is not missing", "base-1"], ["base-1", "base-2", "other"]),
        (["base-1", "base-*", "base-1"], ["base-1", "base-2"]),
    ],
)
def test_the_runs_are_found_each_once(logs: Path, words: list[str], expected: list[str]) -> None:
    assert [path.parent.name for path in choose_summaries(words, logs)] == expected


def test_a_run_of_somebody_else_is_left_out_of_a_pattern(
    logs: Path, forbid_entry: Callable[[Path], None]
) -> None:
    """Its folder is for its owner alone."""
    theirs = logs / "base-theirs"
    theirs.mkdir()
    forbid_entry(theirs)
    assert [path.parent.name for path in choose_summaries(["base-*"], logs)] == ["base-1", "base-2"]


def test_an_absolute_pattern_is_found(logs: Path) -> None:
    assert len(choose_summaries([str(logs.absolute() / "base-*")], logs)) == 2


@pytest.mark.parametrize("word", ["gone", "gone-*", "lr=9", "lr=0.1,", "unfinished", "base**"])
def test_what_leads_to_no_run_is_said(logs: Path, word: str) -> None:
    with pytest.raises(TraceMLError) as refusal:
        choose_summaries([word], logs)
    assert "\n" not in str(refusal.value)


def test_words_for_runs_of_other_tools_are_never_followed_here(tmp_path: Path) -> None:
    """A server of ours comes this way: a browser must not make it ask other machines."""
    for word in ("mlflow:1a2b", "mlflow+http://127.0.0.1:9#1a2b", "tensorboard:/", "wandb:/"):
        with pytest.raises(RunNotFound):
            choose_summaries([word], tmp_path)


def test_a_wrong_name_is_told_with_the_near_one(logs: Path) -> None:
    with pytest.raises(RunNotFound, match=r"no run has 'lrr'; did you mean params\.lr"):
        choose_summaries(["lrr=0.1"], logs)
    with pytest.raises(QueryError, match=r"did you mean params\.lr") as raised:
        choose_summaries(["world_size = 2 and lrr > 0.1"], logs)
    assert raised.value.at == 19
