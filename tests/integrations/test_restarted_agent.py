"""An agent that is killed while a run goes on: what was told is told once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from processes import TRACEML, kill, started, wait_until
from receivers import Receiver, receiving

event_files = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
logs_service = pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2")

WAITS_FOR_DATA = """
import os, time, torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, place):
        time.sleep(0.02)
        return torch.ones(4)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for batch in torch.utils.data.DataLoader(Slow()):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    if os.path.exists("go"):
        break
"""
KIND = "INPUT_BOUND"


def leads(folder: Path) -> int:
    """How often the finding became the leading one, as the agents wrote it down."""
    lines = (folder / "live.jsonl").read_text().splitlines()
    return sum(json.loads(line)["kind"] == KIND for line in lines)


def told(folder: Path, receiver: str) -> bool:
    mark = folder / "marks" / f"told-{receiver}"
    return mark.exists() and KIND in mark.read_text()


def texts(folder: Path) -> list[str]:
    return [
        value.tag
        for path in sorted((folder / "tensorboard").glob("*tfevents*"))
        for event in event_files.EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def kinds_at(collector: Receiver) -> list[str]:
    parse = logs_service.ExportLogsServiceRequest.FromString
    return [
        each.value.string_value
        for request in collector.received
        if request.path == "/v1/logs"
        for resource in parse(request.body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
        if record.event_name == "traceml.finding"
        for each in record.attributes
        if each.key == "traceml.finding.kind"
    ]


@pytest.mark.slow
def test_an_agent_that_takes_over_tells_nothing_twice(tmp_path: Path) -> None:
    with receiving() as collector, receiving() as hook:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }
        command = [TRACEML, "run", "--log-to", "tensorboard", "--notify", hook.url, "train.py"]
        with started(command, tmp_path, WAITS_FOR_DATA, env) as running:
            receivers = ("tensorboard", "notified", "otlp")
            wait_until(
                lambda: running.folders and all(told(running.folder, each) for each in receivers),
                "all are told",
            )
            before = leads(running.folder)
            kill(running.agent())
            wait_until(lambda: leads(running.folder) > before, "another agent finds it again")
            (tmp_path / "go").touch()
            done = running.finish()
        assert done.status == 0, done.stderr
    assert texts(done.folder).count(f"traceml/finding/{KIND}") == 1
    assert kinds_at(collector).count(KIND) == 1
    events = [request.json["event"] for request in hook.received]
    assert events == ["finding", "end"]
