"""`/history` and its data, as the server answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from listed_runs import list_run, metric
from served import Served
from traceml.api import series_summaries
from traceml.api.query_runs import RunSearch
from traceml.summaries.record import Summary
from traceml.web.run_histories import RunHistories
from traceml.web.run_search import SearchedRuns

Ask = Callable[..., Any]
SLOWER_FROM, RUNS = 8, 16


def write_runs(logs: Path) -> None:
    """Sixteen runs of one command, slower from the ninth on; three of another; one that failed."""
    for number in range(RUNS):
        step_ms = (20.0 if number < SLOWER_FROM else 24.0) + 0.1 * (number % 3)
        list_run(
            logs,
            f"run-{number:02}",
            {"seed": number, "lr": 0.1},
            {"loss": metric(1.0 - 0.001 * number)},
            step_ms=step_ms,
            ago_s=3600.0 * (RUNS - number),
        )
    for number in range(3):
        list_run(logs, f"other-{number}", {"lr": 0.2}, step_ms=50.0, ago_s=60.0 * number + 9)
    list_run(logs, "failed", {"seed": 0, "lr": 0.1}, exit_status=1, ago_s=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of these runs."""
    logs = tmp_path_factory.mktemp("history")
    write_runs(logs)
    return logs


@pytest.fixture
def ask(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Asks for a history over these runs, outside any repository."""
    monkeypatch.chdir(tmp_path)
    search = RunSearch(folder)
    histories = RunHistories(folder, lambda: search)
    return lambda **asked: json.loads(asyncio.run(histories.page(asked)))


@pytest.mark.slow
def test_the_page_has_the_change_and_the_other_series(ask: Ask):
    page = ask()
    assert (page["metric"], page["order"], page["found"]) == ("step_time_ms", "time", "20 runs")
    assert [point["run"] for point in page["points"]] == [f"run-{n:02}" for n in range(RUNS)]
    (change,) = page["changes"]
    assert (change["place"], change["status"]) == (SLOWER_FROM, "WORSE")
    assert [each["run"] for each in page["series"]] == ["", "other-0"]
    offered = {each["name"] for each in page["choices"]}
    assert {"step_time_ms", "metrics.loss"} <= offered
    assert not offered & {"params.lr", "started", "name"}
    assert [each["name"] for each in page["params"]] == ["params.lr"]
    assert any("failed" in note for note in page["notes"])


@pytest.mark.slow
def test_a_run_chooses_its_series_whether_it_ended_well_or_not(ask: Ask):
    assert len(ask(run="other-2")["points"]) == 3
    assert len(ask(run="failed")["points"]) == RUNS
    assert len(ask(ignore="lr")["points"]) == RUNS + 3


@pytest.mark.slow
def test_filter_and_metric_choose_what_is_shown(ask: Ask):
    page = ask(q='name matches "run-0*"', metric="metrics.loss")
    assert page["verdict"]["status"] == "TOO FEW RUNS"
    assert [point["value"] for point in page["points"]] == [1.0 - 0.001 * n for n in range(10)]
    none = ask(q='name = "nobody"')
    assert (none["points"], none["verdict"]["status"]) == ([], "NO DATA")


@pytest.mark.slow
def test_a_summary_is_read_again_only_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A run in progress is another one at every look, and the others are not."""
    write_runs(tmp_path)
    read: list[str] = []
    real = series_summaries.read_compared

    def counted(path: Path) -> Summary:
        read.append(path.parent.name)
        return real(path)

    monkeypatch.setattr(series_summaries, "read_compared", counted)
    monkeypatch.chdir(tmp_path)
    histories = RunHistories(tmp_path, lambda: RunSearch(tmp_path))

    def ask() -> Any:
        return json.loads(asyncio.run(histories.page({})))

    page = ask()
    first = sorted(read)
    assert first == ["other-0", *(f"run-{number:02}" for number in range(RUNS))]
    assert ask() == page and sorted(read) == first
    changed = tmp_path / "run-03" / "final_summary.json"
    summary = json.loads(changed.read_text())
    summary["step_time"]["global"]["average"]["step_time_ms"] = 21.0
    changed.write_text(json.dumps(summary))
    assert ask()["points"][3]["value"] == pytest.approx(21.0)
    assert read[len(first) :] == ["run-03"]
    (tmp_path / "run-04" / "final_summary.json").unlink()
    assert len(ask()["points"]) == RUNS - 1


def test_the_pages_are_there(server: Served):
    shell = server.get("/history?q=x")
    assert (shell.status, b'<div id="app">' in shell.body) == (200, True)
    page = server.get("/api/history")
    assert (page.status, page.headers["cache-control"]) == (200, "no-store")
    assert page.json["verdict"]["status"] == "TOO FEW RUNS"
    assert {point["run"] for point in page.json["points"]} == {"a", "b"}
    assert server.get("/api/version").json == server.get("/api/version").json


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (f"q={quote('steps >')}", "expected a value after"),
        ("metric=stpe_time_ms", "did you mean step_time_ms"),
        ("metric=steps,step_time_ms", "one metric or fact"),
        ("order=size", "expected commit or time"),
        ("run=nobody", "there is no run 'nobody'"),
        ("command=nothing", "there are:"),
    ],
)
def test_what_cannot_be_understood_is_refused(server: Served, query: str, words: str):
    answer = server.get(f"/api/history?{query}")
    assert answer.status == 400
    assert words in answer.error


def test_the_version_is_another_one_after_a_run_has_come(tmp_path: Path):
    list_run(tmp_path, "first")
    searched = SearchedRuns(tmp_path)

    def version() -> str:
        found: str = json.loads(asyncio.run(searched.version()))["version"]
        return found

    before = version()
    searched.search()._max_age_s = 0.0  # looks at the folder every time
    assert version() == before
    list_run(tmp_path, "second")
    assert version() != before
