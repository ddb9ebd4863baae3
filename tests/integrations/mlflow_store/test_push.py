"""What `traceml push` sends to an MLflow server: all of it, once; what is not sent is said."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from listed_runs import list_run, now_unix_s
from traceml.api.query_runs import RunQuery, RunRecord
from traceml.api.store_search import search_store

Said = Callable[..., tuple[int, str, str]]
HOSTILE = (
    "a//b",
    "../up",
    "/root",
    "val/loss@1 %",
    "größe",
    "损失",
    ".",
    "..",
    "a/",
    "x\ny",
    "_x0041_",
    " ",
    "😀",
    "a'b\"c",
    "n" * 300,
)
LONG = "v" * 10_000


def made(logs: Path, name: str, values: dict[str, list[float]], **params: Any) -> Path:
    """A finished run that logged these values, one per step."""
    metrics = {
        key: {
            "count": len(each),
            "last": each[-1] if math.isfinite(each[-1]) else None,
            **({"min": min(each), "max": max(each)} if all(map(math.isfinite, each)) else {}),
        }
        for key, each in values.items()
    }
    folder = list_run(logs, name, params, metrics)
    lines = [
        {
            "number": number,
            "kind": "metrics",
            "step": step,
            "unix_ns": int(now_unix_s(logs) * 1e9) + number * 1_000_000,
            "values": {key: value if math.isfinite(value) else str(value)},
        }
        for number, (key, step, value) in enumerate(
            (key, step, value) for key, each in values.items() for step, value in enumerate(each)
        )
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "rank-0.messages").write_text(text)
    return folder


def value_of(run: RunRecord, key: str) -> Any:
    """What a listed run has under a key of the index."""
    return run._runs.column(key)[0]


def sent(said: Said, *words: str) -> dict[str, Any]:
    """Push one run into an experiment of this test's own."""
    status, out, errors = said("push", *words, "--format", "json")
    assert status == 0, errors
    (found,) = json.loads(out)
    return dict(found, said=errors)


def test_a_run_is_sent_with_all_that_it_has(logs: Path, said: Said, client: Any) -> None:
    words = (str(logs / "good"), "--experiment", "whole")
    found = sent(said, *words)
    assert found["said"] == "" and found["notes"] == found["problems"] == []
    run = client.get_run(found["run_id"])
    summary = json.loads((logs / "good" / "final_summary.json").read_bytes())
    assert {name: run.data.params[name] for name in ("lr", "optimizer", "seed")} == {
        "lr": "0.01",
        "optimizer": "adam",
        "seed": "0",
    }
    assert (run.info.status, run.info.run_name) == ("FINISHED", "good")
    took_s = (run.info.end_time - run.info.start_time) / 1000
    assert took_s == pytest.approx(summary["duration_s"], abs=5)
    tags = run.data.tags
    assert tags["traceml.diagnosis"] == summary["primary_diagnosis"]["kind"]
    average = summary["step_time"]["global"]["average"]
    assert run.data.metrics["traceml/step_time_ms"] == average["step_time_ms"]
    (messages,) = (logs / "good").glob("rank-*.messages")
    logged = [json.loads(line) for line in messages.read_text().splitlines()]
    expected = [
        (each["step"], each["values"]["val/loss"], each["unix_ns"] // 1_000_000)
        for each in logged
        if each["kind"] == "metrics"
    ]
    history = client.get_metric_history(found["run_id"], "val/loss")
    assert sorted((each.step, each.value, each.timestamp) for each in history) == expected
    files = {each.path for each in client.list_artifacts(found["run_id"], "traceml")}
    assert {f"traceml/{name}" for name in ("final_summary.json", "final_summary.txt")} <= files
    (kept,) = client.list_artifacts(found["run_id"], "traceml/artifacts/0001")
    assert kept.file_size == summary["artifacts"]["model.pt"]["size_bytes"]


def test_a_run_is_sent_once_and_brought_up_to_date(logs: Path, said: Said, client: Any) -> None:
    shutil.copytree(logs / "poor", "logs/poor")
    first = sent(said, "poor", "--experiment", "once")
    shutil.move("logs/poor", "logs/renamed")
    again = sent(said, "renamed", "--experiment", "once")
    assert again["was_there"] and again["run_id"] == first["run_id"]
    assert said("tag", "renamed", "bad", "--note", "learns little")[0] == 0
    later = sent(said, "renamed", "--experiment", "once")
    assert (later["run_id"], later["is_new"], later["values"]) == (first["run_id"], False, 0)
    experiment = client.get_experiment_by_name("once").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.data.tags["mlflow.note.content"] == "learns little"
    status, out, _ = said("runs", "--store", "mlflow", "--filter", 'tags contains "bad"')
    assert (status, "poor" in out) == (0, True)


def test_a_push_that_breaks_is_continued(
    said: Said, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    made(Path("logs"), "long", {"loss": [1 / (1 + step) for step in range(2500)]}, lr=0.1)
    whole, calls = mlflow.MlflowClient.log_batch, []

    def breaks(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(len(options.get("metrics", ())))
        if len([each for each in calls if each]) == 3:
            raise ConnectionResetError("Connection reset by peer")
        return whole(self, *args, **options)

    monkeypatch.setattr("mlflow.MlflowClient.log_batch", breaks)
    status, _, errors = said("push", "long", "--experiment", "broken")
    assert (status, "it closed the connection" in errors) == (2, True)
    monkeypatch.setattr("mlflow.MlflowClient.log_batch", whole)
    experiment = client.get_experiment_by_name("broken").experiment_id
    (half,) = client.search_runs([experiment])
    assert half.data.tags["traceml.push"] == "incomplete"
    status, out, errors = said("view", f"mlflow:{half.info.run_id}")
    assert (status, "its push broke off" in errors, "loss" in out) == (0, True, True)
    found = sent(said, "long", "--experiment", "broken")
    assert found["run_id"] == half.info.run_id
    assert 0 < found["values"] < 2500, "what had arrived is not sent again"
    history = client.get_metric_history(found["run_id"], "loss")
    assert sorted(each.step for each in history) == list(range(2500))


def test_names_and_values_that_mlflow_refuses_come_back_as_they_were(
    said: Said, client: Any
) -> None:
    values = {name: [1.0, float(place)] for place, name in enumerate(HOSTILE)}
    values |= {"nothing": [math.nan], "much": [math.inf], "little": [-math.inf]}
    params: dict[str, Any] = dict.fromkeys(HOSTILE, 1) | {"long": LONG, "none": None, "on": True}
    made(Path("logs"), "hostile", values, **params)
    found = sent(said, "hostile", "--experiment", "hostile")
    assert any("longer than the 6,000 characters" in note for note in found["notes"])
    assert any("names too long" in note for note in found["notes"])
    (run,) = search_store("mlflow", RunQuery(), ["hostile"])
    for place, name in enumerate(HOSTILE[:-1]):
        assert value_of(run, f"metrics.{name}") == place
        assert value_of(run, f"params.{name}") == 1
    assert value_of(run, "metrics.much") == math.inf
    assert value_of(run, "metrics.little") == -math.inf
    assert math.isnan(value_of(run, "metrics.nothing"))
    # Nothing is lost: whatever was cut is whole in the summary that was sent along.
    status, out, _ = said("compare", "hostile", f"mlflow:{found['run_id']}", "--format", "json")
    assert (status, json.loads(out)["verdict"]["status"]) == (0, "NO CHANGE")


def test_thousands_of_metrics(said: Said, client: Any) -> None:
    made(Path("logs"), "many", {f"m/{number}": [float(number)] for number in range(3000)})
    found = sent(said, "many", "--experiment", "many")
    assert found["values"] >= 3000
    run = client.get_run(found["run_id"])
    assert [run.data.metrics[f"m/{number}"] for number in range(3000)] == list(range(3000))


def test_a_parameter_that_has_changed_is_said(said: Said, client: Any) -> None:
    folder = made(Path("logs"), "changed", {"loss": [1.0]}, lr=0.1)
    first = sent(said, "changed", "--experiment", "changed")
    path = folder / "final_summary.json"
    path.write_text(path.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    later = sent(said, "changed", "--experiment", "changed")
    assert "the parameter 'lr' is '0.1' there and '0.2' here" in later["said"]
    assert client.get_run(first["run_id"]).data.params["lr"] == "0.1"


def test_what_was_removed_here_is_removed_there(said: Said, client: Any) -> None:
    """The facts of many metrics fill several tags, those of one metric a single one."""
    folder = made(Path("logs"), "less", {f"m{number}": [1.0, 2.0] for number in range(300)})
    note = "n" * 6000
    assert said("tag", "less", "good", "--note", note)[0] == 0
    found = sent(said, "less", "--experiment", "less")
    assert "mlflow.note.content: cut to the 5,000 characters" in found["said"]
    tags = client.get_run(found["run_id"]).data.tags
    assert tags["traceml.tags"] == "good" and int(tags["traceml.row"]) > 1
    assert len(tags["mlflow.note.content"]) == 5000
    path = folder / "final_summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "metrics": {"m0": summary["metrics"]["m0"]}}))
    assert said("tag", "less", "--remove", "good")[0] == 0
    sent(said, "less", "--experiment", "less")
    tags = client.get_run(found["run_id"]).data.tags
    assert (tags["traceml.tags"], tags["traceml.row"]) == ("", "1")
    (run,) = search_store("mlflow", RunQuery(), ["less"])
    assert run["step_time_ms"] == 20.0 and run.get("tags") is None


def test_a_value_that_is_refused_costs_no_other_and_is_said_every_time(
    said: Said, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    from mlflow.exceptions import RestException

    whole = mlflow.MlflowClient.log_batch

    def refuses(self: Any, run_id: str, metrics: Any = (), **options: Any) -> Any:
        if any(each.key == "loss" and each.step == 70 for each in metrics):
            raise RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "not that"})
        return whole(self, run_id, metrics=metrics, **options)

    monkeypatch.setattr("mlflow.MlflowClient.log_batch", refuses)
    made(Path("logs"), "refused", {"loss": [1.0 + step for step in range(100)]})
    for _ in range(2):
        status, _, errors = said("push", "refused", "--experiment", "refused")
        assert (status, errors.count("not sent: a value of the metric 'loss'")) == (1, 1), errors
    monkeypatch.setattr("mlflow.MlflowClient.log_batch", whole)
    found = sent(said, "refused", "--experiment", "refused")
    history = client.get_metric_history(found["run_id"], "loss")
    assert sorted(each.step for each in history) == list(range(100))


def test_a_server_of_an_older_version_gets_shorter_values(
    said: Said, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    from mlflow.exceptions import RestException

    whole = mlflow.MlflowClient.log_batch

    def refuses(self: Any, run_id: str, params: Any = (), **options: Any) -> Any:
        for each in params:
            if len(each.value) > 500:
                message = f"Param value '{each.value}' had length {len(each.value)}"
                raise RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": message})
        return whole(self, run_id, params=params, **options)

    monkeypatch.setattr("mlflow.MlflowClient.log_batch", refuses)
    made(Path("logs"), "older", {"loss": [1.0]}, prompt=LONG, lr=0.1)
    found = sent(said, "older", "--experiment", "older")
    assert any("longer than the 500 characters" in note for note in found["notes"])
    params = client.get_run(found["run_id"]).data.params
    assert (len(params["prompt"]), params["lr"]) == (500, "0.1")


def test_files_that_have_no_place_to_go_are_said_and_sent_later(said: Said, client: Any) -> None:
    client.create_experiment("no room", artifact_location="file:///proc/no/such/place")
    made(Path("logs"), "unplaced", {"loss": [1.0]})
    status, _, errors = said("push", "unplaced", "--experiment", "no room")
    assert status == 2
    assert "sending the file 'run.json'" in errors


def test_earlier_versions_and_lost_contents_are_said(said: Said, client: Any) -> None:
    artifacts = {
        "model.pt": {
            "path": "model.pt",
            "kind": "checkpoint",
            "stored": "artifacts/0002/model.pt",
            "version": 2,
            "earlier": [{"stored": "artifacts/0001/model.pt"}],
        },
        "removed.txt": {"path": "removed.txt", "stored": "artifacts/0003/removed.txt"},
        "large.bin": {"path": "large.bin", "stored": None, "note": "too large"},
        "out.txt": {"path": "out.txt", "stored": "../../out.txt"},
        "linked": {"path": "linked", "stored": "artifacts/0004"},
    }
    folder = list_run(Path("logs"), "versions", artifacts=artifacts)
    for number in ("0001", "0002"):
        (folder / "artifacts" / number).mkdir(parents=True)
        (folder / "artifacts" / number / "model.pt").write_text(number)
    Path("out.txt").write_text("not of the run")
    (folder / "artifacts" / "0004").symlink_to(Path.cwd())
    found = sent(said, "versions", "--experiment", "versions")
    assert "1 earlier version of artifacts" in found["said"]
    assert "'large.bin' cannot be sent: its content was not kept (too large)" in found["said"]
    assert "'removed.txt' cannot be sent" in found["said"]
    assert "'linked' cannot be sent" in found["said"]
    listed = client.list_artifacts(found["run_id"], "traceml/artifacts")
    assert [each.path for each in listed] == ["traceml/artifacts/0002"]
    sent(said, "versions", "--experiment", "versions", "--all-versions")
    assert len(client.list_artifacts(found["run_id"], "traceml/artifacts")) == 2


def test_experiments_that_cannot_take_a_run(
    said: Said, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(Path("logs"), "homeless", {"loss": [1.0]})
    client.delete_experiment(client.create_experiment("deleted"))
    status, _, errors = said("push", "homeless", "--experiment", "deleted")
    assert (status, "was deleted" in errors) == (2, True)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "987654")
    status, _, errors = said("push", "homeless")
    assert (status, "there is no experiment with the id 987654" in errors) == (2, True), errors


@pytest.fixture
def refusing() -> Any:
    """A server that answers every request with one status."""
    statuses: list[int] = []

    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(statuses[0])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    answering = ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    Thread(target=answering.serve_forever, daemon=True).start()

    def at(status: int) -> str:
        statuses[:] = [status]
        return f"mlflow+http://127.0.0.1:{answering.server_port}"

    yield at
    answering.shutdown()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "does not know who asks (401)"),
        (403, "does not allow this (403)"),
        (404, "is no MLflow tracking server"),
    ],
)
def test_a_server_that_lets_nobody_in(
    said: Said, refusing: Callable[[int], str], status: int, words: str
) -> None:
    done, _, errors = said("runs", "--store", refusing(status))
    assert (done, words in errors) == (2, True), errors


def test_no_server_no_address_and_no_credentials_on_the_command_line(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(Path("logs"), "alone", {"loss": [1.0]})
    for store, words in (
        ("mlflow+http://127.0.0.1:9", "does not answer (nothing listens there)"),
        ("mlflow+http://ada:secret@127.0.0.1:9", "MLFLOW_TRACKING_PASSWORD"),
        ("wandb:here", "no store that runs can be sent to"),
    ):
        status, _, errors = said("push", "alone", "--to", store)
        assert (status, words in errors) == (2, True), errors
        assert "secret" not in errors
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    status, _, errors = said("push", "alone")
    assert (status, "MLFLOW_TRACKING_URI is not set" in errors) == (2, True)
