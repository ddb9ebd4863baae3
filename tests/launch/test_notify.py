"""`traceml run --notify` as people use it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from processes import PYTHON, STEPS, run, run_traceml
from receivers import closed_port, receiving
from traceml.api.run import RunOptions
from traceml.api.run import run as run_training
from traceml.launch import supervise
from traceml.model.environment import NOTIFY

SECRET = "very-secret-hook"
SCRIPT = f"""{STEPS}
import os
assert {NOTIFY!r} not in os.environ
take_steps(20)
raise SystemExit(3)
"""


def test_the_end_is_told_to_all_and_what_cannot_be_reached_changes_nothing(tmp_path: Path):
    with receiving() as hook:
        done = run_traceml(
            [
                *("run", "--run-name", "a"),
                *("--notify", f"{hook.url}/{SECRET}", "--notify", "cat > told.json"),
                *("--notify", f"{closed_port()}/{SECRET}", "train.py"),
            ],
            tmp_path,
            SCRIPT,
        )
    assert done.status == 3, done.stderr
    (request,) = hook.received
    sent = request.json
    assert request.path == f"/{SECRET}"
    assert (sent["event"], sent["is_over"], sent["exit_status"]) == ("failure", True, 3)
    assert (sent["run"]["name"], sent["run"]["step"]) == ("a", 20)
    assert "exit status 3" in sent["text"]
    assert json.loads((tmp_path / "told.json").read_text()) == sent
    assert "1 of 1 notifications to http://127.0.0.1/… could not be delivered" in done.stderr
    assert SECRET not in done.stderr
    files = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.slow
def test_a_run_notifies_its_own_targets_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two runs of one process, without agents: the launcher notifies of their ends."""
    monkeypatch.setattr(supervise, "run", lambda *arguments: 0)
    monkeypatch.setenv(NOTIFY, "true")
    monkeypatch.chdir(tmp_path)
    for name in ("first", "second"):
        targets = (f"cat > {name}.json",)
        options = RunOptions(run_name=name, logs_dir=tmp_path / "logs", notify=targets)
        run_training(["train.py"], "train.py", options)
    for name in ("first", "second"):
        assert json.loads((tmp_path / f"{name}.json").read_text())["run"]["name"] == name
    assert os.environ[NOTIFY] == "true"


def test_traceml_init_says_what_could_not_be_delivered_or_exported(tmp_path: Path):
    (tmp_path / "train.py").write_text(f"import traceml\ntraceml.init()\n{STEPS}\ntake_steps(5)\n")
    done = run(
        [PYTHON, "train.py"],
        tmp_path,
        env={
            NOTIFY: "exit 7",
            "OTEL_EXPORTER_OTLP_ENDPOINT": closed_port(),
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        },
    )
    assert done.status == 0, done.stderr
    assert "could not be delivered: ended with status 7" in done.stderr
    assert done.stderr.count("no metrics are sent to http://127.0.0.1") == 1


def test_a_target_that_cannot_be_used_is_refused_before_training(tmp_path: Path):
    done = run_traceml(["run", "--notify", f"slack://{SECRET}", "train.py"], tmp_path, SCRIPT)
    assert done.status == 2
    assert "expected http://HOST/" in done.stderr and SECRET not in done.stderr
    assert not (tmp_path / "logs").exists()
