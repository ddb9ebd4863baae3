"""Runs read back from an MLflow server: compared and listed as they are from their folders."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import traceml

Said = Callable[..., tuple[int, str, str]]
EXPERIMENT, NAMES = "read", ("good", "again", "poor")
STORE_ONLY = {"run_id"}


@pytest.fixture
def pushed(logs: Path, said: Said) -> dict[str, str]:
    """The words for the runs at the server, in an experiment of their own."""
    words = ["--logs-dir", str(logs), "--experiment", EXPERIMENT, "--format", "json"]
    status, out, errors = said("push", *NAMES, *words)
    assert (status, errors) == (0, "")
    return {each["run"]: f"mlflow:{each['run_id']}" for each in json.loads(out)}


def compared(said: Said, *words: str) -> Any:
    status, out, errors = said("compare", *words, "--format", "json", "--output", "found")
    assert status == 0, errors
    return json.loads(out)


def without_names(found: Any) -> Any:
    """A comparison without the names of its runs, which say where each is from."""
    text = json.dumps(found)
    for name in NAMES:
        text = text.replace(f"{name}@mlflow", name)
    return json.loads(text)


@pytest.mark.parametrize("other", ["again", "poor"])
def test_a_comparison_from_the_server_is_that_of_the_folders(
    logs: Path, pushed: dict[str, str], said: Said, other: str
) -> None:
    """Each pair alone in its logs folder: others there would count as earlier runs."""
    local = compared(said, str(logs / "good"), str(logs / other))
    remote = compared(said, pushed["good"], pushed[other])
    assert remote["a"] == "good@mlflow"
    assert without_names(remote) == local
    assert local["sections"]["step_time"]["metrics"]["step_time_ms"]["delta"] is not None
    assert local["artifacts"], "the checkpoints differ, and were compared"


def test_three_runs_from_the_server_are_compared_as_from_the_folders(
    logs: Path, pushed: dict[str, str], said: Said
) -> None:
    local = compared(said, *(str(logs / name) for name in NAMES))
    remote = compared(said, *pushed.values())
    assert without_names(remote) == local
    assert local["comparisons"][0]["verdict"]["status"]


def test_a_run_is_found_by_its_name_and_by_its_address_in_a_browser(
    logs: Path, pushed: dict[str, str], said: Said, client: Any, server: str
) -> None:
    run_id = pushed["good"].removeprefix("mlflow:")
    client.update_run(run_id, name="a name of its own")
    page = f"mlflow+{server}/#/experiments/0/runs/{run_id}/artifacts"
    same = compared(said, "mlflow:a name of its own", page)
    client.update_run(run_id, name="good")
    assert same["verdict"]["status"] == "NO CHANGE"


def test_the_list_is_that_of_the_folder(
    logs: Path, pushed: dict[str, str], said: Said, server: str
) -> None:
    def rows(*words: str) -> list[dict[str, Any]]:
        status, out, errors = said("runs", *words, "--format", "json")
        assert status == 0, errors
        return [
            {key: value for key, value in run.items() if key not in STORE_ONLY}
            for run in json.loads(out)["runs"]
        ]

    store = ("--store", f"mlflow+{server}", "--experiment", EXPERIMENT)
    assert rows(*store) == rows("--logs-dir", str(logs))
    query = ("--filter", 'lr = 0.01 and status = "finished" and step_time_ms > 0', "--sort", "seed")
    found = rows(*store, *query)
    assert found == rows("--logs-dir", str(logs), *query)
    assert [run["name"] for run in found] == ["good", "again"]


def test_the_list_in_python(pushed: dict[str, str]) -> None:
    found = traceml.runs("lr < 0.001", store="mlflow")
    assert set(found.names) == {"poor"}
    assert found[0]["metrics.val/loss.min"] <= found[0]["metrics.val/loss"]


def test_a_report_of_a_run_at_the_server(pushed: dict[str, str], said: Said) -> None:
    status, out, errors = said("report", pushed["good"])
    assert (status, "Written to good@mlflow.html" in out) == (0, True), errors
    assert "val/accuracy" in Path("good@mlflow.html").read_text()


def test_groups_of_runs_at_the_server(logs: Path, pushed: dict[str, str], said: Said) -> None:
    words = ["runs", "--store", "mlflow", "--experiment", EXPERIMENT]
    status, out, errors = said(*words, "--group-by", "params.lr", "--format", "json")
    assert status == 0, errors
    counts = {group["group"]["params.lr"]: group["count"] for group in json.loads(out)["groups"]}
    assert counts == {0.0001: 1, 0.01: 2}


def test_runs_that_traceml_never_saw(
    logs: Path, pushed: dict[str, str], said: Said, client: Any
) -> None:
    experiment = client.create_experiment("by others")
    ids = []
    for number, rate in enumerate((0.1, 0.2)):
        run = client.create_run(experiment, run_name=f"other-{number}", tags={"stage": "trial"})
        client.log_param(run.info.run_id, "lr", rate)
        client.log_param(run.info.run_id, "optimizer", "sgd")
        for step in range(3):
            client.log_metric(run.info.run_id, "val/loss", 1.0 - rate - step / 10, step=step)
        client.log_metric(run.info.run_id, "broken", math.inf)
        client.set_terminated(run.info.run_id)
        ids.append(run.info.run_id)
    words = ["runs", "--store", "mlflow", "--experiment", "by others", "--sort", "lr"]
    status, out, errors = said(*words, "--format", "json")
    assert status == 0, errors
    first, second = json.loads(out)["runs"]
    assert (first["name"], first["params.lr"], first["status"]) == ("other-0", 0.1, "finished")
    assert second["metrics.val/loss"] == pytest.approx(0.6)
    assert second["metrics.broken"] == "inf"
    assert first["tags"] == ["stage=trial"]
    assert "step_time_ms" not in first and "verdict" not in first
    found = compared(said, *(f"mlflow:{each}" for each in ids))
    change = found["sections"]["logged"]["metrics"]["val/loss"]
    assert (change["lhs"], change["rhs"]) == (pytest.approx(0.7), pytest.approx(0.6))
    mixed = compared(said, str(logs / "good"), f"mlflow:{ids[0]}")
    assert mixed["sections"]["step_time"]["metrics"]["step_time_ms"]["rhs"] is None


def test_what_is_not_there_is_said(said: Said, client: Any, server: str) -> None:
    run = client.create_run("0", run_name="gone")
    client.delete_run(run.info.run_id)
    for _ in range(2):
        client.set_terminated(client.create_run("0", run_name="twice").info.run_id)
    for words, expected in (
        (("compare", "mlflow:0123456789abcdef", "mlflow:x"), "there is no run 0123456789abcdef"),
        (("compare", f"mlflow:{run.info.run_id}", "mlflow:x"), "was deleted"),
        (("compare", "mlflow:twice", "mlflow:x"), "2 runs at"),
        (("compare", f"mlflow+{server}", "mlflow:x"), "names a server and no run"),
        (("compare", "mlflow:'\"", "mlflow:x"), "there is no run '\""),
        (("runs", "--store", "mlflow", "--experiment", "nope"), "there is no experiment 'nope'"),
        (("runs", "--store", "mlflow", "--filter", "no_such_name > 1"), "no_such_name"),
    ):
        status, _, errors = said(*words)
        assert (status, expected in errors) == (2, True), errors
        assert len(errors.strip().splitlines()) <= 3, "a message, and no traceback"


def test_files_that_cannot_be_fetched_are_said(
    logs: Path, said: Said, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, errors = said("push", "good", "--logs-dir", str(logs), "--experiment", "unreadable")
    assert status == 0, errors
    experiment = client.get_experiment_by_name("unreadable").experiment_id
    (run,) = client.search_runs([experiment])

    def unreachable(*_: object) -> None:
        raise ConnectionError("Connection refused")

    monkeypatch.setattr("mlflow.MlflowClient.download_artifacts", unreachable)
    status, _, errors = said("view", f"mlflow:{run.info.run_id}")
    assert status == 2
    assert "does not answer (nothing listens there) while fetching traceml/" in errors
