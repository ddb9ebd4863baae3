"""Writes a run that TraceML did not see as a run folder: what was logged, and nothing measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traceml.compare.record import to_json
from traceml.model.run import Ending, Manifest
from traceml.model.tracked_run import MetricPoint, TrackedRun
from traceml.store.folder import (
    MANIFEST,
    SUMMARY,
    write_atomically,
    write_ending,
    write_manifest,
)
from traceml.store.logged import reduce_metrics
from traceml.summaries.live_record import metric_summaries
from traceml.summaries.record import SCHEMA_VERSION, Meta, Producer, SectionSummary, Summary

_MESSAGES = "rank-0.messages"


def write_tracked(run: TrackedRun, folder: Path) -> int:
    """Writes the files of a run folder: manifest, ending, summary and logged metrics.

    Returns how many metrics had no room: a summary has some thousands.
    """
    messages = list(metric_messages(run))
    lines = [json.dumps(each, ensure_ascii=False).encode("utf-8", "replace") for each in messages]
    (folder / _MESSAGES).write_bytes(b"".join(line + b"\n" for line in lines))
    started = run.started_unix_s or 0.0
    facts = run.facts
    if not (folder / MANIFEST).is_file():
        manifest = Manifest(
            run_name=run.name,
            started_unix_s=started,
            hostname=str(facts.get("host", "")),
            user=str(facts.get("user", "")),
        )
        write_manifest(folder, manifest)
    if run.status in ("finished", "failed"):
        status = facts.get("exit_status", 0 if run.status == "finished" else None)
        known = status if isinstance(status, int) else None
        write_ending(folder, Ending(run.ended_unix_s or started, known))
    summary = Summary(
        schema_version=SCHEMA_VERSION,
        duration_s=run.duration_s,
        producer=Producer(name=run.source),
        meta=Meta(run_name=run.name),
        step_time=SectionSummary(),
        params=dict(run.params),
        metrics=metric_summaries(reduce_metrics(messages)),
    )
    write_atomically(folder / SUMMARY, to_json(summary))
    return len({*run.histories, *run.last_values}) - len(summary.metrics)


def metric_messages(run: TrackedRun) -> Iterator[dict[str, Any]]:
    """Yields the metrics as a run's own record of them has them."""
    only_last = {
        name: (MetricPoint(value, None, run.ended_unix_s),)
        for name, value in run.last_values.items()
        if name not in run.histories
    }
    points = [
        (point.unix_s or run.started_unix_s or 0.0, name, point)
        for name, history in {**run.histories, **only_last}.items()
        for point in history
    ]
    for number, (unix_s, name, point) in enumerate(sorted(points, key=lambda each: each[0])):
        value: object = point.value if abs(point.value) < float("inf") else str(point.value)
        yield {
            "number": number,
            "kind": "metrics",
            "step": point.step,
            "unix_ns": int(unix_s * 1e9),
            "values": {name: value},
        }
