"""A checkpoint in MLflow's registry, with the comparison as its evidence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from listed_runs import list_run

Said = Callable[..., tuple[int, str, str]]


def versions(client: Any, model: str) -> list[Any]:
    return sorted(client.search_model_versions(f"name = '{model}'"), key=lambda each: each.version)


def test_a_checkpoint_is_registered_with_its_comparison(
    logs: Path, said: Said, client: Any, tmp_path: Path
) -> None:
    words = ("promote", "again", "--logs-dir", str(logs), "--to", "mlflow:circle")
    status, out, errors = said(*words, "--against", "good", "--alias", "champion")
    assert status == 0, errors
    assert "again against good, by val/accuracy: " in out
    assert "model.pt (its only checkpoint, " in out and "is now version 1 (champion)" in out
    (version,) = versions(client, "circle")
    summary = json.loads((logs / "again" / "final_summary.json").read_bytes())
    tags = version.tags
    assert tags["traceml.sha256"] == summary["artifacts"]["model.pt"]["sha256"]
    assert (tags["traceml.baseline"], tags["traceml.forced"]) == ("good", "false")
    assert tags["traceml.verdict"] in ("INCONCLUSIVE", "NO CHANGE", "IMPROVEMENT")
    assert "Compared with good" in version.description
    place = Path(client.download_artifacts(version.run_id, tags["traceml.evidence"], str(tmp_path)))
    found = json.loads((place / "comparison.json").read_bytes())
    assert found["verdict"]["status"] == tags["traceml.verdict"]
    assert tags["traceml.verdict"] in (place / "comparison.txt").read_text()
    assert client.get_model_version_by_alias("circle", "champion").version == version.version
    import mlflow

    got = mlflow.artifacts.download_artifacts("models:/circle/1", dst_path=str(tmp_path / "got"))
    kept = logs / "again" / summary["artifacts"]["model.pt"]["stored"]
    assert (Path(got) / "model.pt").read_bytes() == kept.read_bytes()
    status, out, _ = said(*words, "--against", "poor")
    assert (status, "was already version 1" in out) == (0, True)
    (version,) = versions(client, "circle")
    assert version.tags["traceml.baseline"] == "poor"


def test_a_run_that_is_worse_is_registered_only_by_force(
    logs: Path, said: Said, client: Any
) -> None:
    words = ("promote", str(logs / "poor"), "--to", "mlflow:worse", "--against", str(logs / "good"))
    status, out, errors = said(*words)
    assert status == 1
    assert "REGRESSION" in out and "is worse than" in errors and "--force" in errors
    assert versions(client, "worse") == []
    status, _, errors = said(*words, "--force")
    assert status == 0, errors
    (version,) = versions(client, "worse")
    assert (version.tags["traceml.verdict"], version.tags["traceml.forced"]) == (
        "REGRESSION",
        "true",
    )


def test_a_run_at_the_server_is_promoted_as_it_is(
    logs: Path, said: Said, client: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said("push", str(logs / "good"), "--experiment", "elsewhere")[0] == 0
    experiment = client.get_experiment_by_name("elsewhere").experiment_id
    (run,) = client.search_runs([experiment])
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    words = ["--to", f"mlflow+{server}#there", "--against", str(logs / "poor")]
    status, out, errors = said("promote", f"mlflow:{run.info.run_id}", *words)
    assert (status, "IMPROVEMENT" in out) == (0, True), errors
    (version,) = versions(client, "there")
    assert (version.run_id, version.tags["traceml.run"]) == (run.info.run_id, "good")


def test_a_run_of_others_is_promoted_by_its_own_files(
    said: Said, client: Any, tmp_path: Path
) -> None:
    run_id = client.create_run("0", run_name="not ours").info.run_id
    client.log_text(run_id, "weights", "checkpoints/model.safetensors")
    client.log_text(run_id, "words", "notes.txt")
    assert said("promote", f"mlflow:{run_id}", "--to", "mlflow:others")[0] == 0
    (version,) = versions(client, "others")
    assert version.source.endswith("/checkpoints/model.safetensors")
    status, _, errors = said("promote", f"mlflow:{run_id}", "--to", "mlflow:o", "--artifact", "x")
    assert (status, "kept no artifact 'x'" in errors) == (2, True)


def checkpoint(folder: Path, number: str, name: str) -> dict[str, Any]:
    (folder / "artifacts" / number).mkdir(parents=True)
    (folder / "artifacts" / number / name).write_text(name)
    stored = f"artifacts/{number}/{name}"
    return {"path": name, "kind": "checkpoint", "stored": stored, "size_bytes": len(name)}


def test_which_checkpoint_is_meant_has_to_be_clear(said: Said, client: Any) -> None:
    folder = Path("logs") / "several"
    artifacts = {
        name: checkpoint(Path("made"), number, name)
        for number, name in (("0001", "first.pt"), ("0002", "best.pt"))
    }
    list_run(Path("logs"), "several", artifacts=artifacts)
    Path("made/artifacts").rename(folder / "artifacts")
    words = ("promote", "several", "--to", "mlflow:several")
    status, _, errors = said(*words)
    assert (status, "has 2 checkpoints: first.pt, best.pt" in errors) == (2, True), errors
    status, _, errors = said(*words, "--artifact", "bset.pt")
    assert (status, "did you mean best.pt?" in errors) == (2, True), errors
    status, out, errors = said(*words, "--artifact", "best.pt")
    assert (status, "best.pt (as asked, " in out) == (0, True), errors
    (folder / "artifacts" / "0001" / "first.pt").unlink()
    status, _, errors = said(*words, "--artifact", "first.pt")
    assert (status, "was removed or changed" in errors) == (2, True), errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--to", "mlflow:a/b"), "no slash and no colon"),
        (("--to", "mlflow:"), "names no model"),
        (("--to", "wandb:model"), "names no model"),
        (("--to", "mlflow:m", "--force"), "--against"),
        (("--to", "mlflow:m", "--against", "nope"), "no run 'nope'"),
    ],
)
def test_what_cannot_be_promoted_is_said(
    logs: Path, said: Said, words: tuple[str, ...], expected: str
) -> None:
    status, _, errors = said("promote", "good", "--logs-dir", str(logs), *words)
    assert (status, expected in errors) == (2, True), errors


def test_a_checkpoint_that_did_not_arrive_is_not_registered(
    logs: Path, said: Said, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    from mlflow.exceptions import RestException

    whole = mlflow.MlflowClient.log_artifact

    def refuses(self: Any, run_id: str, path: str, place: str) -> None:
        if path.endswith("model.pt"):
            raise RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "no room"})
        whole(self, run_id, path, place)

    monkeypatch.setattr("mlflow.MlflowClient.log_artifact", refuses)
    words = ["--to", "mlflow:unsent", "--experiment", "unsent"]
    status, _, errors = said("promote", "good", "--logs-dir", str(logs), *words)
    assert (status, "model.pt could not be sent" in errors) == (2, True), errors
    assert versions(client, "unsent") == []
    status, _, errors = said("push", "good", "--logs-dir", str(logs), "--experiment", "unsent")
    assert (status, "not sent: the file 'artifacts/0001/model.pt'" in errors) == (1, True), errors


def test_runs_of_other_tools_have_nothing_to_register(said: Said) -> None:
    status, _, errors = said("promote", "tensorboard:.", "--to", "mlflow:m")
    assert (status, "expected a run on this machine" in errors) == (2, True), errors


def test_a_run_without_a_checkpoint(said: Said) -> None:
    list_run(Path("logs"), "plain")
    status, _, errors = said("promote", "plain", "--to", "mlflow:m")
    assert (status, "kept no checkpoint" in errors) == (2, True), errors
