"""A tracking store of MLflow on SQLite, filled with made-up runs, for comparison.

Logging ten thousand runs through MLflow takes half an hour, so that its tables are filled directly;
they are asked through MLflow's own client.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_METRIC = "sample"


def make_store(
    folder: Path, runs: int, params: int, metrics: int, texts: Sequence[str]
) -> Callable[[], Any]:
    """Fills a store; returns a function that asks it."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    path = folder / "mlflow.db"
    client = mlflow.MlflowClient(f"sqlite:///{path}")
    experiment = client.create_experiment("made", artifact_location=str(folder))
    example = client.create_run(experiment)  # the tables and the form of a row, from MLflow itself
    client.log_param(example.info.run_id, SAMPLE_METRIC, "1")
    client.log_metric(example.info.run_id, SAMPLE_METRIC, 1.0)
    client.set_terminated(example.info.run_id)
    _fill(path, example.info.run_id, runs, params, metrics, texts)

    def search() -> Any:
        return client.search_runs(
            [experiment],
            "metrics.m3 > 0.2 and metrics.m7 < 0.9 and params.p0 = 'adam' "
            "and attributes.status = 'FINISHED'",
            max_results=50,
            order_by=["metrics.m5 DESC"],
        )

    return search


def _fill(
    path: Path, example: str, runs: int, params: int, metrics: int, texts: Sequence[str]
) -> None:
    with sqlite3.connect(path) as base:
        base.row_factory = sqlite3.Row
        names = [uuid.uuid4().hex for _ in range(runs)]
        for table, rows in (
            ("runs", _runs(names)),
            ("params", _params(names, params, texts)),
            ("latest_metrics", _metrics(names, metrics)),
        ):
            one = base.execute(f"select * from {table} where run_uuid = ?", [example]).fetchone()
            marks = ", ".join("?" * len(one.keys()))
            statement = f"insert into {table} ({', '.join(one.keys())}) values ({marks})"
            like = dict(one)
            base.executemany(statement, ([*{**like, **row}.values()] for row in rows))


def _runs(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(names):
        yield {"run_uuid": name, "name": f"run-{number}", "start_time": 1_800_000_000_000 + number}


def _params(names: Sequence[str], count: int, texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    chance = np.random.default_rng(1)
    for name in names:
        values = chance.random(count)
        for place, value in enumerate(values.tolist()):
            shown = texts[int(value * len(texts))] if place % 10 == 0 else f"{value:.2f}"
            yield {"run_uuid": name, "key": f"p{place}", "value": shown}


def _metrics(names: Sequence[str], count: int) -> Iterator[dict[str, Any]]:
    chance = np.random.default_rng(2)
    for name in names:
        values, missing = chance.random(count), chance.random(count) < 0.3
        for place, value in enumerate(values.tolist()):
            if not missing[place]:
                yield {"run_uuid": name, "key": f"m{place}", "value": value}
