"""What OpenTelemetry's own variables say about the collector that a run is sent to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from traceml.agent.web_address import parse_web_address, shown_address

METRICS, LOGS = "metrics", "logs"
"""OpenTelemetry's signals that are sent."""
DEFAULT_INTERVAL_S = 10.0
"""Between two exports, where `OTEL_METRIC_EXPORT_INTERVAL` says nothing."""
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 86_400.0
"""Seconds between exports. A huge setting means that only the end is to be sent; it is cut to what
a wait can take."""
_GRPC_PORT = 4317
INSTALL = "pip install 'traceml-insight[otel]'"
UNREADABLE = "an address that cannot be read"
"""What a collector's address is called that is no URL: it may hold secrets."""


def wanted_signals(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the signals for which OpenTelemetry's variables name a collector."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ()
    return tuple(
        signal
        for signal in (METRICS, LOGS)
        if _endpoint(environment, signal) and _is_for_otlp(environment, signal)
    )


def _is_for_otlp(environment: Mapping[str, str], signal: str) -> bool:
    """Returns whether OTLP is among the exporters that a signal goes to: `console,otlp`."""
    named = environment.get(f"OTEL_{signal.upper()}_EXPORTER", "") or "otlp"
    return "otlp" in (each.strip().lower() for each in named.split(","))


def why_not_exported(environment: Mapping[str, str]) -> str | None:
    """Returns why nothing can be sent though a collector is named, in words for people."""
    wanted = wanted_signals(environment)
    if not wanted:
        return None
    for signal in wanted:
        name, endpoint = _find_setting(environment, "ENDPOINT", signal)
        if parse_web_address(endpoint) is None:
            return (
                f"no metrics are sent to {UNREADABLE}: {name} is no URL of a collector; expected "
                "one such as http://HOST:4318"
            )
    shown = shown_collector(environment, wanted)
    if not _is_installed():
        return (
            f"no metrics are sent to {shown}: this Python has no OpenTelemetry exporter; {INSTALL}"
        )
    protocols = {_variable(environment, "PROTOCOL", signal) for signal in wanted}
    if "grpc" in protocols:
        return (
            f"no metrics are sent to {shown}: its protocol is grpc, and http/protobuf is spoken "
            "here; name the collector's port for HTTP (4318) and set "
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        )
    return None


def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def _find_setting(environment: Mapping[str, str], name: str, signal: str) -> tuple[str, str]:
    """Returns the name and the value of a setting's environment variable: the variable for this
    signal if it is set, else the one for all signals."""
    own, every = f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}", f"OTEL_EXPORTER_OTLP_{name}"
    found = own if environment.get(own) else every
    return found, environment.get(found, "")


def _variable(environment: Mapping[str, str], name: str, signal: str) -> str:
    return _find_setting(environment, name, signal)[1]


def _endpoint(environment: Mapping[str, str], signal: str) -> str:
    return _variable(environment, "ENDPOINT", signal)


def shown_collector(environment: Mapping[str, str], signals: Sequence[str]) -> str:
    """Returns the collector's address without what may be secret in it; `UNREADABLE` where it is no
    URL."""
    parts = parse_web_address(_endpoint(environment, signals[0]))
    return UNREADABLE if parts is None else shown_address(parts)


def grpc_port_hint(environment: Mapping[str, str], signals: Sequence[str]) -> str:
    """Returns what to say where a collector that took nothing is named by its usual port for
    gRPC; empty for any other port."""
    parts = parse_web_address(_endpoint(environment, signals[0]))
    if parts is None or parts.port != _GRPC_PORT:
        return ""
    return f"; {_GRPC_PORT} is usually its port for gRPC, and HTTP is spoken here: try 4318"


def interval_s_in(environment: Mapping[str, str]) -> float:
    """Returns the seconds between two exports."""
    try:
        wanted_s = float(environment["OTEL_METRIC_EXPORT_INTERVAL"]) / 1e3
    except (KeyError, ValueError):
        return DEFAULT_INTERVAL_S
    return min(max(MIN_INTERVAL_S, wanted_s), MAX_INTERVAL_S)


def names_service(environment: Mapping[str, str]) -> bool:
    """Returns whether they say what the service is called."""
    named = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return "OTEL_SERVICE_NAME" in environment or "service.name=" in named
