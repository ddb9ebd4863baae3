"""`--log-to mlflow` with a real server: what arrives in the script's run, and in one of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from processes import PATIENCE_S, TRACEML, Finished, run_traceml, started, wait_until
from traceml.store.mlflow_runs import RUN_ID_TAG
from traceml.store.mlflow_writer import MlflowWriter
from traceml.store.tracker_writer import LoggedRun

LIVE, FINAL = "traceml/live/step_time_ms", "traceml/step_time_ms"
FILES = {"traceml/report.html", "traceml/final_summary.json", "traceml/final_summary.txt"}
TRAIN = f"""
import time
from pathlib import Path
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(count):
    deadline = time.monotonic() + {PATIENCE_S}
    while count or not Path("stop").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # a step that sleeps waits for something outside the model: a finding
        model(torch.randn(32, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if count == 1:
            break
        count -= bool(count)
"""
WITH_RUN = f"""{TRAIN}
import mlflow
with mlflow.start_run(run_name="theirs"):
    train(0)
train(20)  # without a run
"""

WITH_LIGHTNING = f"""
import sys
import time
from pathlib import Path
import lightning.pytorch as lightning
import torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)
        self.deadline = time.monotonic() + {PATIENCE_S}
    def training_step(self, batch, index):
        assert time.monotonic() < self.deadline
        time.sleep(0.01)
        self.trainer.should_stop = Path("stop").exists()
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
logger = lightning.loggers.MLFlowLogger("Default", "of-lightning", tracking_uri=sys.argv[1])
trainer = lightning.Trainer(
    max_epochs=-1, min_epochs=0, logger=logger, accelerator="cpu", enable_checkpointing=False
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(64, 8), 8))
"""


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, server: str, client_of_module: Any
) -> Finished:
    """A script whose run is open while it trains, and closed before the end."""
    place = tmp_path_factory.mktemp("theirs")
    command = [TRACEML, "run", "--mode=summary", "--run-name", "mine", "--log-to", "mlflow"]
    settings = {"MLFLOW_TRACKING_URI": server, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with started([*command, "train.py"], place, WITH_RUN, settings) as running:
        wait_until(lambda: has_finding(client_of_module), "a live finding arrives")
        (place / "stop").touch()
        done = running.finish()
    assert done.status == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def client_of_module(server: str) -> Any:
    import mlflow

    return mlflow.MlflowClient(server)


def find(client: Any, name: str) -> Any:
    query = f"tags.mlflow.runName = '{name}'"
    found = client.search_runs(["0"], query)
    return found[0] if found else None


def has_finding(client: Any) -> bool:
    run = find(client, "theirs")
    return run is not None and any(tag.startswith("traceml.finding.") for tag in run.data.tags)


def has_live_value(client: Any, name: str) -> bool:
    run = find(client, name)
    return run is not None and LIVE in run.data.metrics


def files_of(client: Any, run: Any) -> set[str]:
    return {each.path for each in client.list_artifacts(run.info.run_id, "traceml")}


def test_live_values_and_findings_are_in_the_scripts_run(finished: Finished, client: Any) -> None:
    theirs = find(client, "theirs")
    history = client.get_metric_history(theirs.info.run_id, LIVE)
    assert history and all(point.value > 0 for point in history)
    assert [point.step for point in history] == sorted({point.step for point in history})
    assert "traceml/live/steps_per_s" in theirs.data.metrics


def test_summary_and_report_reach_it_after_its_end(finished: Finished, client: Any) -> None:
    theirs, summary = find(client, "theirs"), finished.summary
    average = summary["step_time"]["global"]["average"]
    assert theirs.data.metrics[FINAL] == pytest.approx(average["step_time_ms"])
    assert theirs.data.tags["traceml.verdict"] == summary["primary_diagnosis"]["status"]
    assert files_of(client, theirs) >= FILES
    assert theirs.info.status == "FINISHED"  # as the script left it
    assert RUN_ID_TAG not in theirs.data.tags, "it is the script's run, not one that was pushed"
    assert find(client, "mine") is None


def test_the_run_of_lightnings_logger_is_found_though_it_is_active_nowhere(
    tmp_path: Path, server: str, client: Any
) -> None:
    pytest.importorskip("lightning")
    words = ["run", "--mode=summary", "--run-name", "mine-too", "--log-to", "mlflow", "train.py"]
    command = [TRACEML, *words, "--args", server]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "SLURM_JOB_ID": None}
    with started(command, tmp_path, WITH_LIGHTNING, settings) as running:
        wait_until(lambda: has_live_value(client, "of-lightning"), "live values arrive")
        (tmp_path / "stop").touch()
        done = running.finish()
    assert done.status == 0, done.stderr
    theirs, average = find(client, "of-lightning"), done.summary["step_time"]["global"]["average"]
    assert theirs.data.metrics[FINAL] == pytest.approx(average["step_time_ms"])
    assert files_of(client, theirs) >= FILES
    assert find(client, "mine-too") is None


def test_without_a_run_of_the_scripts_the_run_is_pushed_as_one_of_ours(
    tmp_path: Path, client: Any
) -> None:
    words = ["run", "--mode=summary", "--run-name", "ours", "--log-to", "mlflow", "train.py"]
    with started([TRACEML, *words], tmp_path, f"{TRAIN}\ntrain(0)") as running:
        wait_until(lambda: has_live_value(client, "ours"), "the run is open")
        (tmp_path / "stop").touch()
        done = running.finish()
    assert done.status == 0, done.stderr
    ours = find(client, "ours")
    assert RUN_ID_TAG in ours.data.tags and FINAL in ours.data.metrics
    assert files_of(client, ours) >= FILES
    assert any(ours.info.run_id in line for line in done.lines_of_ours())


def test_a_server_that_is_gone_is_said_and_harms_nothing(tmp_path: Path) -> None:
    words = ["run", "--mode=summary", "--log-to", "mlflow", "train.py"]
    gone = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    done = run_traceml(words, tmp_path, f"{TRAIN}\ntrain(50)", env=gone)
    assert done.status == 0 and done.steps == 50
    (line,) = [line for line in done.lines_of_ours() if "mlflow" in line]
    # On a machine that is very busy it may be ended before it has found that out.
    assert "not logged to mlflow" in line or "not all was logged to mlflow" in line
    assert str(done.folder) in line


def test_the_scripts_run_is_reached_where_its_folder_is_gone(
    server: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and back, at the end: the writer enters a folder
    theirs = client.create_run("0", run_name="moved")
    found = {"id": theirs.info.run_id, "experiment": "0", "uri": server}
    script_run = {**found, "folder": str(tmp_path / "gone")}
    logged = LoggedRun("mine", "0" * 32, tmp_path, 0.0, "", script_run)
    MlflowWriter(logged, lambda store: None).log_values({"traceml/steps": 7.0}, 1)
    assert client.get_run(theirs.info.run_id).data.metrics == {"traceml/steps": 7}
