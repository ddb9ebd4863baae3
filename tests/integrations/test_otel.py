"""Metrics and events at a real OTLP receiver, by the official SDK."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from factories import make_run
from failing import failed, report
from processes import STEPS, TRACEML, started, wait_until
from receivers import ReceivedRequest, Receiver, receiving
from traceml.agent import otlp_export
from traceml.agent.otlp_export import MAX_EVENTS, OtlpExport
from traceml.agent.otlp_settings import why_not_exported
from traceml.model.exported_metric import BY_NAME
from traceml.store.told_findings import COLLECTOR, ToldRecord
from traceml.summaries.build import build
from traceml.summaries.exported_values import exported_values
from traceml.summaries.live_record import LiveIssue, LiveState
from traceml.summaries.record import Summary

SECRET = "very-secret-key"
NO_FOLDER = Path("/no/such/run")
"""Of a run whose script logs nothing."""
MANIFEST = make_run().manifest
SUMMARY = build(make_run(2), 0.0, "1")
SCRIPT = (
    STEPS
    + """
import os, time
take_steps(20)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
)


def parsed(request: ReceivedRequest) -> Any:
    is_zipped = request.headers.get("content-encoding") == "gzip"
    body = gzip.decompress(request.body) if is_zipped else request.body
    kinds = {"/v1/metrics": ExportMetricsServiceRequest, "/v1/logs": ExportLogsServiceRequest}
    return kinds[request.path].FromString(body)


def attributes(found: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in found}


def metrics_in(request: ReceivedRequest) -> dict[tuple[str, ...], float]:
    """By name and labels, the run left out."""
    (resource,) = parsed(request).resource_metrics
    (scope,) = resource.scope_metrics
    return {
        (metric.name, *_labels(point)): float(getattr(point, point.WhichOneof("value")))
        for metric in scope.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    }


def _labels(point: Any) -> list[str]:
    return [text for name, text in attributes(point.attributes).items() if name != "run"]


def events_in(receiver: Receiver) -> list[Any]:
    return [
        record
        for request in receiver.received
        if request.path == "/v1/logs"
        for resource in parsed(request).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def last_metrics(receiver: Receiver) -> ReceivedRequest:
    return next(each for each in reversed(receiver.received) if each.path == "/v1/metrics")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Receiver, str]:
    """One run with a collector; what the collector got, and what the user was told."""
    cwd = tmp_path_factory.mktemp("otel")
    with receiving() as collector:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
            "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRET}",
            "OTEL_RESOURCE_ATTRIBUTES": "team=vision",
            "OTEL_SERVICE_NAME": "nightly",
        }
        command = [TRACEML, "run", "--run-name", "a", "train.py"]
        with started(command, cwd, SCRIPT, env) as running:
            collector.wait_for(1)  # the SDK is imported: that takes long on a busy machine
            (cwd / "go").touch()
            done = running.finish()
    assert done.status == 0, done.stderr
    return collector, done.stderr


def test_the_final_numbers_arrive_with_headers_and_resource(collected):
    collector, said = collected
    request = last_metrics(collector)
    assert request.headers["api-key"] == SECRET and SECRET not in said
    (resource,) = parsed(request).resource_metrics
    named = attributes(resource.resource.attributes)
    assert (named["service.name"], named["team"], named["traceml.run.name"]) == (
        "nightly",
        "vision",
        "a",
    )
    found = metrics_in(request)
    assert found["traceml.steps",] == 20
    assert found["traceml.run.state", "finished"] == 1
    assert found["traceml.step.duration",] > 0
    assert found["traceml.export.dropped", "metrics"] == 0
    assert {key[0] for key in found} <= BY_NAME.keys()
    assert "collector" not in said


def test_the_end_is_an_event(collected):
    collector, _ = collected
    last = events_in(collector)[-1]
    assert last.event_name == "traceml.run.end"
    found = attributes(last.attributes)
    assert (found["run"], found["traceml.run.state"], found["traceml.run.exit_status"]) == (
        "a",
        "finished",
        0,
    )


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        monkeypatch.setattr(otlp_export, "END_TIMEOUT_S", 60.0)  # a busy machine imports slowly
        monkeypatch.setattr(otlp_export, "DEFAULT_TIMEOUT_S", 60.0)
        yield receiver


def state(*kinds: str, severity: str = "warn") -> LiveState:
    issues = tuple(
        LiveIssue(kind=kind, severity=severity, summary="words", section="step_time", ranks=(1,))
        for kind in kinds
    )
    return LiveState(unix_s=1.0, step=50, findings=issues, summary=SUMMARY)


def test_the_collector_is_given_the_values_of_the_catalogue(collector):
    export = OtlpExport(NO_FOLDER, MANIFEST, pytest.fail)
    export.finish(SUMMARY, 0)
    sent = metrics_in(last_metrics(collector))
    expected = {
        (each.metric.name, *(text for _, text in each.labels[1:])): each.value
        for each in exported_values(SUMMARY, MANIFEST.run_name, "finished")
    }
    assert {key: sent[key] for key in expected} == pytest.approx(expected)


def test_an_endless_interval_sends_the_end_alone(collector, monkeypatch):
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "9" * 18)
    export = OtlpExport(NO_FOLDER, MANIFEST, pytest.fail)
    export.export_state(state())
    collector.wait_for(1)
    export.finish(SUMMARY, 0)
    assert metrics_in(last_metrics(collector))["traceml.run.state", "finished"] == 1


def test_what_the_script_logs_is_sent_while_the_run_goes_on(collector, tmp_path):
    values = {"accuracy": 0.75}
    said = {"number": 1, "kind": "metrics", "step": 1, "unix_ns": 1, "values": values}
    (tmp_path / "rank-0-1.messages").write_text(json.dumps(said) + "\n")
    export = OtlpExport(tmp_path, MANIFEST, pytest.fail)
    export.export_state(state())
    collector.wait_for(1)
    export.finish(SUMMARY, 0)
    live = metrics_in(collector.received[0])
    assert live["traceml.run.state", "live"] == 1
    assert live["traceml.logged", "accuracy"] == 0.75


def test_a_finding_is_an_event_when_it_appears(collector):
    export = OtlpExport(NO_FOLDER, MANIFEST, pytest.fail)
    for kinds in (("A",), ("A", "B"), ("A",), ("A", "B")):
        export.export_state(state(*kinds))
    collector.wait_for(1)
    export.finish(SUMMARY, 0)
    found = events_in(collector)
    kinds = [attributes(each.attributes).get("traceml.finding.kind") for each in found]
    assert kinds[:3] == ["A", "B", "B"]
    assert (found[0].body.string_value, found[0].severity_number) == ("words", 13)
    assert metrics_in(collector.received[0])["traceml.run.state", "live"] == 1


def test_an_agent_that_takes_over_sends_no_event_again(collector, tmp_path):
    """It finds nothing at first, and then what holds."""
    first = OtlpExport(tmp_path, MANIFEST, pytest.fail)
    first.export_state(state("A"))
    wait_until(lambda: ToldRecord(tmp_path, COLLECTOR).findings, "the event was taken")
    second = OtlpExport(tmp_path, MANIFEST, pytest.fail)
    for kinds in ((), ("A",), ("A", "B")):
        second.export_state(state(*kinds))
    second.finish(Summary(), 0)
    OtlpExport(tmp_path, MANIFEST, pytest.fail).finish(Summary(), 0)
    found = events_in(collector)
    kinds = [attributes(each.attributes).get("traceml.finding.kind") for each in found[:-1]]
    assert (kinds, found[-1].event_name) == (["A", "B"], "traceml.run.end")


def test_an_event_that_nobody_took_is_sent_by_the_agent_that_takes_over(collector, tmp_path):
    collector.statuses += [400] * 2
    OtlpExport(tmp_path, MANIFEST, lambda words: None).export_state(state("A"))
    wait_until(lambda: not collector.statuses, "it was refused")
    assert not ToldRecord(tmp_path, COLLECTOR).findings
    second = OtlpExport(tmp_path, MANIFEST, pytest.fail)
    assert second._told.find_new(state("A").findings, 0.0)


def test_what_only_the_whole_run_shows_is_an_event_too(collector):
    """What ended it, and what a short run did not last long enough for; each once."""
    slow = build(failed(report(step=40, message="boom"), input_ms=90.0), 0.0, "1")
    export = OtlpExport(NO_FOLDER, MANIFEST, pytest.fail)
    export.export_state(state("INPUT_BOUND", severity="crit"))
    export.finish(slow, 1)
    found = [
        (each.event_name, attributes(each.attributes)["traceml.finding.kind"], each.severity_number)
        for each in events_in(collector)
    ]
    assert found[:1] == [("traceml.finding", "INPUT_BOUND", 17)]
    assert ("traceml.finding", "EXCEPTION", 17) in found[1:-1]
    assert "INPUT_BOUND" not in [kind for _, kind, _ in found[1:]]
    assert found[-1][0] == "traceml.run.end"


def test_a_collector_that_was_down_gets_the_events_later_and_what_was_lost_is_told(
    collector, monkeypatch
):
    collector.statuses += [400] * 4
    told: list[str] = []
    export = OtlpExport(NO_FOLDER, MANIFEST, told.append)
    export.export_state(state("A"))
    wait_until(lambda: any(m.path == "/v1/logs" for m in collector.received), "it was refused")
    wait_until(lambda: not collector.statuses, "it was refused again")
    export.finish(SUMMARY, 0)
    assert metrics_in(last_metrics(collector))["traceml.export.dropped", "metrics"] == 2
    assert attributes(events_in(collector)[-2].attributes)["traceml.finding.kind"] == "A"
    (words,) = told
    assert f"the collector at {collector.url} did not take 2 of " in words
    assert words.endswith("(it answered with status 400 Bad Request)")


def test_the_reason_that_is_told_is_that_of_an_export_that_failed(collector, monkeypatch):
    monkeypatch.setattr(otlp_export, "END_TIMEOUT_S", 60.0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    collector.statuses += [400, 503]  # the SDK makes the second one's request again
    told: list[str] = []
    export = OtlpExport(NO_FOLDER, MANIFEST, told.append)
    export.export_state(state())
    wait_until(lambda: not collector.statuses, "one was refused and one put off")
    export.finish(SUMMARY, 0)
    (words,) = told
    assert "did not take 1 of " in words
    assert words.endswith("(it answered with status 400 Bad Request)")


def test_why_a_collector_takes_nothing_is_told_without_what_is_secret(monkeypatch):
    with receiving() as gone:
        address = gone.url
    monkeypatch.setattr(otlp_export, "END_TIMEOUT_S", 60.0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{address}/{SECRET}")
    told: list[str] = []
    OtlpExport(NO_FOLDER, MANIFEST, told.append).finish(SUMMARY, 0)
    (words,) = told
    assert "did not take 1 of 1 exports" in words and "(Connection refused)" in words
    assert SECRET not in words


def test_a_collector_that_hangs_or_is_gone_costs_a_bounded_time_and_is_told_once(
    collector, monkeypatch
):
    monkeypatch.setattr(otlp_export, "END_TIMEOUT_S", 0.2)
    collector.answers.clear()
    told: list[str] = []
    export = OtlpExport(NO_FOLDER, MANIFEST, told.append)
    began_s = time.thread_time()
    for number in range(MAX_EVENTS + 10):
        export.export_state(state(f"KIND_{number}"))
    export.finish(SUMMARY, 0)
    assert len(told) == 1 and "did not end in time" in told[0]
    assert f"{MAX_EVENTS + 11} events" in told[0]
    assert time.thread_time() - began_s < 1.0  # CPU time of the agent's loop


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, None),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}, None),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "its protocol is grpc"),
    ],
)
def test_what_the_variables_switch_off_is_not_sent(collector, monkeypatch, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    OtlpExport(NO_FOLDER, MANIFEST, pytest.fail).finish(SUMMARY, 0)
    assert collector.received == []
    said = why_not_exported(os.environ)
    assert said is words is None or words in said


def test_events_that_are_switched_off_neither_wait_nor_count_as_lost(collector, monkeypatch):
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    export = OtlpExport(NO_FOLDER, MANIFEST, pytest.fail)
    for number in range(MAX_EVENTS + 10):
        export.export_state(state(f"KIND_{number}"))
    export.finish(SUMMARY, 0)
    assert metrics_in(last_metrics(collector))["traceml.export.dropped", "logs"] == 0
    assert events_in(collector) == []


def test_a_signal_can_have_a_collector_of_its_own(monkeypatch):
    for timeout in ("END_TIMEOUT_S", "DEFAULT_TIMEOUT_S"):
        monkeypatch.setattr(otlp_export, timeout, 60.0)
    with receiving() as own:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{own.url}/v1/metrics")
        OtlpExport(NO_FOLDER, MANIFEST, pytest.fail).finish(SUMMARY, 0)
        assert {request.path for request in own.received} == {"/v1/metrics"}
