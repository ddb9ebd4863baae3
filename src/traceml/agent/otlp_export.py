"""Sends a run's metrics, and its findings as events, to an OpenTelemetry collector.

It is switched on by OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT` …). Everything
happens in one thread of the agent, which nobody waits for: what the collector does not take is
counted, and what waits for it is bounded.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http.client import responses
from pathlib import Path
from typing import Any, NamedTuple

from traceml import __version__
from traceml.agent.error_log import ErrorLog
from traceml.agent.otlp_settings import (
    INSTALL,
    LOGS,
    METRICS,
    grpc_port_hint,
    interval_s_in,
    names_service,
    shown_collector,
    wanted_signals,
    why_not_exported,
)
from traceml.model import exported_metric as catalogue
from traceml.model.finding import Severity
from traceml.model.run import Manifest
from traceml.store.metric_follower import LiveMetrics
from traceml.store.told_findings import COLLECTOR, END, ToldRecord
from traceml.summaries.exported_values import ExportedValue, exported_values
from traceml.summaries.live_record import (
    LiveIssue,
    LiveState,
    ToldFindings,
    final_findings,
    with_metrics,
)
from traceml.summaries.record import Summary, has_failed

MAX_INTERVAL_S = 60.0
"""Between two exports, while the collector takes nothing."""
DEFAULT_TIMEOUT_S = 3.0
"""Of one export, where `OTEL_EXPORTER_OTLP_TIMEOUT` says nothing."""
END_TIMEOUT_S = 5.0
"""How long the end of a run waits for its last export."""
MAX_EVENTS = 256
"""That wait for the collector; the oldest is dropped and counted."""

FINDING_EVENT, END_EVENT = "traceml.finding", "traceml.run.end"

_SEVERITIES = {"info": 9, "warn": 13, "crit": 17}
"""OpenTelemetry's numbers of INFO, WARN and ERROR."""


class ExportEvent(NamedTuple):
    """A finding that has appeared, or the end of the run."""

    name: str
    unix_s: float
    severity: str
    body: str
    attributes: Mapping[str, Any]
    told_as: str
    """What is written down once it was taken: the kind of a finding, or `END`."""


class OtlpExport:
    """The export of one run; does nothing where no collector is named."""

    def __init__(self, folder: Path, manifest: Manifest, tell: Callable[[str], None]) -> None:
        """`tell` is given what could not be sent, in words for people."""
        self._manifest, self._tell = manifest, tell
        self._logged = LiveMetrics(folder)
        self._signals = () if why_not_exported(os.environ) else wanted_signals(os.environ)
        self._changed = threading.Condition()
        self._latest: tuple[Summary, str] | None = None
        """The current numbers, and the state of the run."""
        self._events: deque[ExportEvent] = deque(maxlen=MAX_EVENTS)
        self._told = ToldFindings()
        self._taken = ToldRecord(folder, COLLECTOR)
        """The findings whose events the collector took, by an agent before us or by us."""
        self._told.restore(self._taken.findings, time.monotonic())
        self._dropped = dict.fromkeys((METRICS, LOGS), 0)
        self._exported = 0
        self._is_over = False
        self._end_sent_s: float | None = None
        self._errors = ErrorLog()
        self._latest_trouble = ""
        """What is wrong with the export that is being made, in words for people: the SDK may make
        its request again, and then it is taken."""
        self._trouble = ""
        """Why the collector did not take the last export that failed."""
        self._thread: threading.Thread | None = None

    def export_state(self, state: LiveState | None) -> None:
        """Has the current numbers sent, and the findings that are new."""
        if state is None or not self._signals:
            return
        now_s = time.monotonic()
        with self._changed:
            self._latest = state.summary, "live"
            for issue in self._told.find_new(state.findings, now_s):
                self._told.add(issue.kind or "", now_s, issue.severity)
                self._add(_finding_event(issue, state.unix_s, state.step))
        self._begin()

    def finish(self, summary: Summary, exit_status: int | None) -> None:
        """Has the final numbers sent, waits a bounded time, and says what could not be."""
        self.send_end(summary, exit_status)
        self.wait()

    def send_end(self, summary: Summary, exit_status: int | None) -> None:
        """Begins to send the final numbers, once for a run."""
        if not self._signals or END in self._taken.findings:
            return
        state = "failed" if has_failed(summary, exit_status) else "finished"
        with self._changed:
            self._latest = summary, state
            self._add_final_findings(summary)
            self._add(_end_event(summary, state, exit_status))
            self._is_over = True
            self._changed.notify_all()
        self._end_sent_s = time.monotonic()
        self._begin()

    def wait(self, until_s: float = math.inf) -> None:
        """Waits for the last export, for `END_TIMEOUT_S` and until this time (monotonic) at most,
        and says what could not be sent."""
        if self._end_sent_s is None:
            return
        assert self._thread is not None
        until_s = min(until_s, self._end_sent_s + END_TIMEOUT_S)
        self._thread.join(max(0.0, until_s - time.monotonic()))
        self._report()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="traceml-otlp", daemon=True)
            self._thread.start()

    def _add(self, event: ExportEvent) -> None:
        if LOGS not in self._signals:
            return
        self._dropped[LOGS] += len(self._events) == MAX_EVENTS
        self._events.append(event)

    def _add_final_findings(self, summary: Summary) -> None:
        """Adds what only the whole run shows: what ended it, and what a short run did not last
        long enough for."""
        found = [each for each in final_findings(summary) if each.severity != Severity.INFO.value]
        steps = None if summary.step_time is None else summary.step_time.metadata
        last = None if steps is None else steps.training_total_steps
        for issue in self._told.find_new(found, time.monotonic()):
            self._add(_finding_event(issue, time.time(), last))

    def _report(self) -> None:
        assert self._thread is not None
        is_late = self._thread.is_alive()
        failed, where = self._dropped[METRICS], shown_collector(os.environ, self._signals)
        lost = self._dropped[LOGS] + len(self._events)
        if failed or lost or is_late:
            last = "; the last one did not end in time" if is_late else ""
            trouble = (is_late and self._latest_trouble) or self._trouble
            why = f" ({trouble})" if trouble else ""
            hint = "" if self._exported else grpc_port_hint(os.environ, self._signals)
            self._tell(
                f"the collector at {where} did not take {failed} of {failed + self._exported} "
                f"exports of metrics and {lost} events{why}{last}{hint}"
            )
        if self._errors.count:
            self._tell(
                f"{self._errors.count} exports to {where} failed by an error of the OpenTelemetry "
                f"SDK or of TraceML (see agent.log); an older SDK is one reason: {INSTALL}"
            )
            self._errors.raise_next()  # the agent's loop keeps its traceback

    # In the thread

    def _run(self) -> None:
        with self._errors:
            sender = _OtlpSender(self._manifest, self._signals, self._note_trouble)
            interval_s = usual_s = interval_s_in(os.environ)
            while True:
                with self._changed:
                    is_last = self._is_over
                with self._errors:
                    is_taken = self._export(sender)
                    interval_s = usual_s if is_taken else min(2 * interval_s, MAX_INTERVAL_S)
                if is_last:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._is_over, interval_s)

    def _note_trouble(self, words: str) -> None:
        self._latest_trouble = words

    def _has_sent(self, send: Callable[[], bool]) -> bool:
        """Makes one export; returns whether it was taken, and keeps the reason where it was not."""
        self._latest_trouble = ""
        is_taken = send()
        if not is_taken:
            self._trouble = self._latest_trouble
        return is_taken

    def _export(self, sender: _OtlpSender) -> bool:
        """Sends the current numbers and the events that wait; returns whether all was taken."""
        with self._changed:
            latest, events = self._latest, list(self._events)
        assert latest is not None, "the thread begins with the first numbers"
        has_all = True
        if METRICS in self._signals:
            values = self._values(*latest)
            is_taken = self._has_sent(lambda: sender.send_metrics(values))
            self._exported += is_taken
            self._dropped[METRICS] += not is_taken
            has_all = is_taken
        if events:
            is_taken = self._has_sent(lambda: sender.send_events(events))
            if is_taken:
                with self._changed:
                    while self._events and self._events[0] in events:
                        self._events.popleft()
                for event in events:
                    self._taken.add(event.told_as, event.severity)
            has_all = has_all and is_taken
        return has_all

    def _values(self, summary: Summary, state: str) -> list[ExportedValue]:
        """Returns what is exported, with what could not be so far."""
        run = self._manifest.run_name
        if state == "live":  # of what the script logs that summary has the losses alone
            summary = with_metrics(summary, self._logged.refresh())
        dropped = [
            ExportedValue(
                catalogue.NOT_EXPORTED, count, ((catalogue.RUN_LABEL, run), ("signal", signal))
            )
            for signal, count in self._dropped.items()
        ]
        return [*exported_values(summary, run, state), *dropped]


def _finding_event(issue: LiveIssue, unix_s: float, step: int | None) -> ExportEvent:
    attributes = {
        "traceml.finding.kind": issue.kind,
        "traceml.finding.section": issue.section or "",
        "traceml.finding.severity": issue.severity,
        "traceml.finding.action": issue.action,
        "traceml.finding.ranks": list(issue.ranks),
        "traceml.finding.since_step": issue.since_step,
        "traceml.finding.until_step": issue.until_step,
        "traceml.step": step,
    }
    return ExportEvent(
        name=FINDING_EVENT,
        unix_s=unix_s,
        severity=issue.severity or "info",
        body=issue.summary or "",
        attributes=attributes,
        told_as=issue.kind or "",
    )


def _end_event(summary: Summary, state: str, exit_status: int | None) -> ExportEvent:
    verdict, failure = summary.primary_diagnosis, summary.failure
    attributes = {
        "traceml.run.state": state,
        "traceml.run.exit_status": exit_status,
        "traceml.run.duration": summary.duration_s,
        "traceml.finding.kind": verdict.kind,
        "traceml.finding.severity": verdict.severity,
        "traceml.finding.action": verdict.action,
    }
    words = verdict.summary if failure is None else failure.summary
    severity = "crit" if state == "failed" else "info"
    return ExportEvent(END_EVENT, time.time(), severity, words or "", attributes, told_as=END)


class _OtlpSender:
    """The exporters of the OpenTelemetry SDK; made in the thread, because importing it takes a
    while."""

    def __init__(
        self, manifest: Manifest, signals: Sequence[str], note_trouble: Callable[[str], None]
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        # Each failed export would be a traceback in the agent's log: they are counted instead.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self._run = manifest.run_name
        self._began_ns = int(manifest.started_unix_s * 1e9)
        attributes = {"traceml.run.name": manifest.run_name, "host.name": manifest.hostname}
        if not names_service(os.environ):
            attributes["service.name"] = "traceml"
        self._resource = Resource.create(attributes)
        self._scope = InstrumentationScope("traceml", __version__)
        has_own_timeout = any("OTLP" in name and "TIMEOUT" in name for name in os.environ)
        timeout_s = None if has_own_timeout else DEFAULT_TIMEOUT_S
        if METRICS in signals:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            session = _noting_session(note_trouble)
            self._metric_exporter = OTLPMetricExporter(timeout=timeout_s, session=session)
        if LOGS in signals:
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

            session = _noting_session(note_trouble)
            self._log_exporter = OTLPLogExporter(timeout=timeout_s, session=session)

    def send_metrics(self, values: Sequence[ExportedValue]) -> bool:
        """Returns whether the collector took them."""
        from opentelemetry.sdk.metrics import export as sdk

        now_ns = time.time_ns()
        families: dict[str, list[ExportedValue]] = {}
        for each in values:
            families.setdefault(each.metric.name, []).append(each)
        metrics = []
        for series in families.values():
            metric = series[0].metric
            points = [
                sdk.NumberDataPoint(dict(each.labels), self._began_ns, now_ns, each.value)
                for each in series
            ]
            cumulative = sdk.AggregationTemporality.CUMULATIVE
            data = sdk.Sum(points, cumulative, True) if metric.is_counter else sdk.Gauge(points)
            metrics.append(sdk.Metric(metric.name, metric.doc, metric.unit, data))
        scope = sdk.ScopeMetrics(self._scope, metrics, "")
        data = sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope], "")])
        return bool(self._metric_exporter.export(data) is sdk.MetricExportResult.SUCCESS)

    def send_events(self, events: Sequence[ExportEvent]) -> bool:
        """Returns whether the collector took them."""
        from opentelemetry._logs import LogRecord, SeverityNumber
        from opentelemetry.sdk._logs import ReadableLogRecord
        from opentelemetry.sdk._logs.export import LogRecordExportResult

        records = [
            ReadableLogRecord(
                LogRecord(
                    timestamp=int(event.unix_s * 1e9),
                    observed_timestamp=time.time_ns(),
                    severity_text=event.severity,
                    severity_number=SeverityNumber(_SEVERITIES.get(event.severity, 9)),
                    body=event.body,
                    attributes={
                        catalogue.RUN_LABEL: self._run,
                        **{
                            name: value
                            for name, value in event.attributes.items()
                            if _is_known(value)
                        },
                    },
                    event_name=event.name,
                ),
                self._resource,
                self._scope,
            )
            for event in events
        ]
        return bool(self._log_exporter.export(records) is LogRecordExportResult.SUCCESS)


def _noting_session(note: Callable[[str], None]) -> Any:
    """Returns a session for the SDK's exporters that notes why a request failed. The words hold
    nothing of the address or the answer, where secrets may be."""
    import requests  # the SDK's exporters are made of it

    class NotingSession(requests.Session):  # type: ignore[misc]  # taken as untyped
        def request(self, *arguments: Any, **options: Any) -> Any:
            try:
                answer = super().request(*arguments, **options)
            except requests.RequestException as error:
                note(_why_not_reached(error, isinstance(error, requests.Timeout)))
                raise
            if not answer.ok:
                known = responses.get(answer.status_code, "")
                note(f"it answered with status {answer.status_code} {known}".rstrip())
            return answer

    return NotingSession()


def _why_not_reached(error: BaseException, is_timeout: bool) -> str:
    """Returns why a collector could not be reached: what the system said, which is the innermost of
    an exception's causes."""
    if is_timeout:
        return "it did not answer in time"
    words, cause = type(error).__name__, error.__cause__ or error.__context__
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            words = cause.strerror
        cause = cause.__cause__ or cause.__context__
    return words


def _is_known(value: object) -> bool:
    return value is not None and value != []
