"""`/explore` and its data, as the server answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from listed_runs import list_sweep
from served import Served
from traceml.api.query_runs import RunSearch
from traceml.web.run_exploration import ExploredRuns

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Asks for an answer over the runs of a sweep."""
    logs: Path = list_sweep(tmp_path_factory.mktemp("sweep"))
    search = RunSearch(logs)
    explored = ExploredRuns(logs, lambda: search)

    def answer(method: str, **asked: str) -> Any:
        return json.loads(asyncio.run(getattr(explored, method)(asked)))

    return answer


def test_columns_are_arrays_with_a_value_per_run(ask: Ask) -> None:
    page = ask("page", q="params.lr < 0.05", axes="lr,optimizer", token="ignored")
    assert len(page["names"]) == 6
    columns = {column["name"]: column for column in page["columns"]}
    assert columns["params.lr"]["values"] == [0.01] * 6
    labels = [each["label"] for each in columns["params.optimizer"]["categories"]]
    assert labels == ["adam", "sgd"]
    assert page["filter"] == "params.lr < 0.05"


def test_what_mattered_is_answered(ask: Ask) -> None:
    found = ask("what_mattered", metric='metrics."val/loss"', down="params.optimizer")
    assert found["title"] == "What mattered for val/loss"
    assert found["warnings"], "twelve runs are few"


def test_there_is_nothing_to_say_of_no_runs(ask: Ask) -> None:
    assert ask("what_mattered", q='name = "nobody"') is None
    assert ask("curves", q='name = "nobody"')["lines"] is None


def test_the_pages_are_there(server: Served) -> None:
    shell = server.get("/explore?q=x&brush=%5B%5D")
    assert (shell.status, b'<div id="app">' in shell.body) == (200, True)
    page = server.get("/api/explore")
    assert (page.status, page.headers["cache-control"]) == (200, "no-store")
    assert set(page.json["names"]) == {"a", "b"}
    assert any("traceml.log_metrics" in words for words in page.json["advice"])
    assert server.get("/api/explore/curves").json["lines"] is None
    assert server.get("/api/explore/what-mattered").status == 200


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (f"q={quote('steps >')}", "expected a value after"),
        ("x=stpes", "did you mean steps"),
        ("axes=nothing", "no run has 'nothing'"),
    ],
)
def test_what_cannot_be_understood_is_refused(server: Served, query: str, words: str) -> None:
    answer = server.get(f"/api/explore?{query}")
    assert answer.status == 400
    assert words in answer.error
