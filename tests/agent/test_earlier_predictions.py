"""Which earlier runs the predictions of a run are scored by."""

from __future__ import annotations

from pathlib import Path

from history_runs import TRAIN, write_traced
from traceml.agent.earlier_predictions import with_scores
from traceml.summaries.read import read_summary
from traceml.summaries.record import KindScore, Summary

SLOW, FAST = {"input_ms": 40.0}, {"input_ms": 1.0}


def write_fix(logs: Path, host: str = "node") -> None:
    """An input-bound run, and the next commit without the finding."""
    write_traced(logs, "slow", "a" * 40, started_s=0.0, host=host, **SLOW)
    write_traced(logs, "fast", "b" * 40, started_s=10.0, host=host, seed=1, **FAST)


def score(logs: Path, name: str = "new") -> KindScore | None:
    summary: Summary = read_summary(logs / name / "final_summary.json")
    (found,) = [each for each in summary.what_if if each.kind == "INPUT_BOUND"]
    return found.score


def write_new(logs: Path, started_s: float = 20.0, name: str = "new") -> None:
    write_traced(logs, name, "c" * 40, started_s=started_s, seed=2, **SLOW)


def test_a_fix_before_a_run_scores_its_prediction(tmp_path: Path):
    write_fix(tmp_path)
    write_new(tmp_path)
    found = score(tmp_path)
    assert found is not None and found.predictions == 1
    assert 0.9 < found.median_saved_share < 1.05


def test_a_fix_after_a_run_is_no_earlier_one(tmp_path: Path):
    write_fix(tmp_path)
    write_new(tmp_path, started_s=-5.0)
    assert score(tmp_path) is None


def test_runs_of_another_machine_or_command_say_nothing(tmp_path: Path):
    write_fix(tmp_path, host="other")
    write_traced(tmp_path, "s", "a" * 40, started_s=1.0, command=(*TRAIN, "--big"), **SLOW)
    write_traced(tmp_path, "f", "b" * 40, started_s=2.0, command=(*TRAIN, "--big"), **FAST)
    write_new(tmp_path)
    assert score(tmp_path) is None


def test_runs_of_another_script_of_the_name_say_nothing(tmp_path: Path):
    kept = {"folder": "/home/one", "content": "1"}
    write_traced(tmp_path, "slow", "a" * 40, started_s=0.0, **kept, **SLOW)
    write_traced(tmp_path, "fast", "b" * 40, started_s=10.0, seed=1, **kept, **FAST)
    there = {"folder": "/home/two", "content": "2"}
    write_traced(tmp_path, "new", "c" * 40, started_s=20.0, seed=2, **there, **SLOW)
    assert score(tmp_path) is None
    write_traced(tmp_path, "again", "c" * 40, started_s=30.0, seed=2, **kept, **SLOW)
    assert score(tmp_path, "again") is not None


def test_without_time_or_with_damaged_runs_there_is_no_score_and_no_error(tmp_path: Path):
    write_fix(tmp_path)
    (tmp_path / "fast" / "final_summary.json").write_text("{")
    (tmp_path / "no-run").mkdir()
    write_new(tmp_path)
    assert score(tmp_path) is None
    summary = read_summary(tmp_path / "new" / "final_summary.json")
    assert with_scores(summary, tmp_path / "new", 1e12, timeout_s=0.0) == summary
