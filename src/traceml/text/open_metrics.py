"""Exported values as text that Prometheus reads: its own format, and OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from traceml.model.exported_metric import ExportedMetric
from traceml.summaries.exported_values import ExportedValue

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_FamilyName = Callable[[ExportedMetric], str]


def wants_open_metrics(accept: str) -> bool:
    """Returns whether whoever asks with this `Accept` header reads OpenMetrics."""
    return "application/openmetrics-text" in accept


def prometheus_text(values: Iterable[ExportedValue]) -> str:
    """Returns the values in Prometheus' own text format."""
    return "".join(_families(values, lambda metric: metric.prometheus_name))


def open_metrics_text(values: Iterable[ExportedValue]) -> str:
    """Returns the values as OpenMetrics, where a counter's family has not the ending of its
    series."""
    return "".join(_families(values, lambda metric: metric.family)) + "# EOF\n"


def _families(values: Iterable[ExportedValue], named: _FamilyName) -> Iterator[str]:
    """Yields each metric with all its series, as both formats demand."""
    families: dict[str, list[ExportedValue]] = {}
    for each in values:
        families.setdefault(each.metric.name, []).append(each)
    for series in families.values():
        metric = series[0].metric
        kind = "counter" if metric.is_counter else "gauge"
        yield f"# HELP {named(metric)} {_escaped(metric.doc)}\n# TYPE {named(metric)} {kind}\n"
        for each in series:
            yield f"{metric.prometheus_name}{{{_labels(each)}}} {each.value!r}\n"


def _labels(value: ExportedValue) -> str:
    """Returns the labels of a series as they stand between its braces."""
    quoted = ((name, _escaped(text).replace('"', '\\"')) for name, text in value.labels)
    return ",".join(f'{name}="{text}"' for name, text in quoted)


def _escaped(text: str) -> str:
    """Returns a text as one line."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")
