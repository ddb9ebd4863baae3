"""What OpenTelemetry's variables say, also where its packages are missing."""

from __future__ import annotations

import pytest

from traceml.agent import otlp_settings
from traceml.agent.otlp_settings import (
    LOGS,
    METRICS,
    grpc_port_hint,
    interval_s_in,
    shown_collector,
    wanted_signals,
    why_not_exported,
)

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:secret@collector:4318/secret"}


@pytest.mark.parametrize(
    ("environment", "signals"),
    [
        ({}, ()),
        (ENDPOINT, (METRICS, LOGS)),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c/v1/logs"}, (LOGS,)),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, (LOGS,)),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, ()),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "prometheus"}, (LOGS,)),
        ({**ENDPOINT, "OTEL_LOGS_EXPORTER": "console"}, (METRICS,)),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "console, OTLP"}, (METRICS, LOGS)),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": ""}, (METRICS, LOGS)),
    ],
)
def test_the_variables_choose_what_is_sent(environment: dict[str, str], signals: tuple[str, ...]):
    assert wanted_signals(environment) == signals


def test_missing_packages_are_said_where_a_collector_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(otlp_settings, "find_spec", lambda name: None)
    assert why_not_exported({}) is None
    said = why_not_exported(ENDPOINT)
    assert said == (
        "no metrics are sent to https://collector:4318: this Python has no OpenTelemetry exporter; "
        "pip install 'traceml-insight[otel]'"
    )


@pytest.mark.parametrize(("port", "is_hinted"), [(4317, True), (4318, False), (43170, False)])
def test_the_port_for_grpc_is_taken_for_a_slip(port: int, is_hinted: bool):
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://collector:{port}"}
    assert ("try 4318" in grpc_port_hint(endpoint, (METRICS,))) == is_hinted


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2500", 2.5),
        ("0", 0.1),
        ("soon", 10.0),
        ("nan", 0.1),
        ("1e18", 86_400.0),
        ("inf", 86_400.0),
    ],
)
def test_the_interval_is_opentelemetrys(text: str, seconds: float):
    assert interval_s_in({"OTEL_METRIC_EXPORT_INTERVAL": text}) == seconds


@pytest.mark.parametrize(
    "address",
    [
        pytest.param("http://me:secret@[fe80::1:4318", id="brackets that do not close"),
        pytest.param("localhost:4318/secret", id="without a scheme"),
        pytest.param("not a secret url", id="words"),
        pytest.param("https:///secret", id="without a host"),
        pytest.param("grpc://collector:4317/secret", id="another scheme"),
        pytest.param("http://collector:99999/secret", id="a port that there is not"),
        pytest.param("http://not a secret host", id="a host of words"),
    ],
)
@pytest.mark.parametrize("signal", ["", "METRICS_", "LOGS_"])
def test_an_address_that_is_no_url_is_said_without_it_and_ends_nothing(signal: str, address: str):
    """Also where the address of one signal alone is wrong, beside a right one for all."""
    name = f"OTEL_EXPORTER_OTLP_{signal}ENDPOINT"
    said = why_not_exported({**ENDPOINT, name: address})
    assert said is not None and "secret" not in said
    assert "no metrics are sent to an address that cannot be read" in said
    assert f": {name} is no URL of a collector; expected one such as http://HOST:4318" in said


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("HTTP://Collector:4318/v1", "http://collector:4318"),
        ("https://me:secret@[fe80::1]:4318", "https://[fe80::1]:4318"),
    ],
)
def test_the_collector_is_shown_by_its_host(address: str, shown: str):
    assert shown_collector({"OTEL_EXPORTER_OTLP_ENDPOINT": address}, (METRICS,)) == shown
