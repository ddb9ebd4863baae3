"""The benchmark of the index runs whole, on few runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.run_index import Size, breakdown, run

from benchmarks import run_index
from traceml.api.query_runs import RunQuery, RunSearch

TINY = Size(40, 12, 12, "–")


@pytest.mark.slow
def test_everything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "REPEATS", 2)
    monkeypatch.setattr(run_index, "COMMAND_REPEATS", 1)
    monkeypatch.setattr(run_index, "_missing_peer", lambda: "there is no package mlflow")
    figures = run((TINY,), built_runs=3)
    assert [each.measured > 0 for each in figures] == [True] * 5
    assert figures[0].what.startswith("40 runs × 12 params × 12 metrics: filter, sort")
    assert breakdown(figures).startswith("MLflow is left out: there is no package mlflow")


def test_the_question_lets_some_runs_through(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    run_index.make_index(logs, TINY)
    found = RunSearch(logs).search(RunQuery(run_index.FILTER, run_index.SORT))
    assert 0 < len(found) < TINY.runs
    best = [run["metrics.m5"] for run in found if "metrics.m5" in run]
    assert best == sorted(best, reverse=True)
