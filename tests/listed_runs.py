"""Makes folders of finished runs with parameters, metrics and lineage, as agents leave them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from traceml.model.run import Ending, Manifest
from traceml.store.folder import write_ending, write_manifest


@cache
def now_unix_s(logs: Path) -> float:
    """The time at which the first run of this folder was listed: now, for all runs in it.

    At another time for each, runs that started equally long ago would have an order.
    """
    return time.time()


def metric(
    last: float | None, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """A metric of one value, or of several with these extremes."""
    if low is None:
        return {"count": 1, "last": last}
    return {"count": 10, "last": last, "min": low, "max": high, "mean": 1.0}


def list_run(
    logs: Path,
    name: str,
    params: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    step_ms: float = 20.0,
    exit_status: int | None = 0,
    ago_s: float = 3600.0,
    arguments: Sequence[str] = (),
    **more: Any,
) -> Path:
    """Write a run that started so long ago; its files are as old."""
    folder = logs / name
    folder.mkdir(parents=True)
    started = now_unix_s(logs) - ago_s
    manifest = Manifest(name, started, ("python", "train.py"), "/work", user="ada", hostname="node")
    write_manifest(folder, manifest)
    summary = {
        "schema_version": 1.9,
        "duration_s": 60.0,
        "meta": {"run_name": name, "world_size": 2, "gpus_observed": 2},
        "primary_diagnosis": {"kind": "INPUT_BOUND", "status": "INPUT-BOUND", "severity": "warn"},
        "step_time": {
            "metadata": {"training_total_steps": 100},
            "global": {"average": {"step_time_ms": step_ms, "samples_per_s": 640.0}},
        },
        "step_memory": {
            "global": {
                "average": {"peak_allocated_bytes": 1 << 30},
                "worst": {"peak_allocated_bytes": {"value": 2 << 30, "idx": "1"}},
            }
        },
        "lineage": {
            "code": {"commit": "c" * 40, "branch": "main", "dirty": False},
            "command": {"script": "train.py", "arguments": list(arguments)},
            "hardware": {"hostname": "node", "gpus": [{"name": "H200"}, {"name": "H200"}]},
        },
        "params": dict(params or {}),
        "metrics": dict(metrics or {}),
        **more,
    }
    (folder / "final_summary.json").write_text(json.dumps(summary))
    if exit_status is not None:
        write_ending(folder, Ending(started + 60, exit_status))
    for path in (*folder.iterdir(), folder):
        os.utime(path, (started + 60, started + 60))
    return folder


def list_sweep(logs: Path) -> Path:
    """Two learning rates, two optimizers, three seeds; the loss is better with the smaller rate."""
    number = 0
    for lr in (0.01, 0.1):
        for optimizer in ("adam", "sgd"):
            for seed in range(3):
                loss = 10 * lr + 0.01 * seed
                list_run(
                    logs,
                    f"sweep-{number:02}",
                    {"lr": lr, "optimizer": optimizer, "seed": seed, "model": {"layers": 4}},
                    {"val/loss": metric(loss, loss / 2, 2.0), "accuracy": metric(1 - lr)},
                    step_ms=20.0 + 5 * (optimizer == "sgd") + 0.1 * seed,
                    exit_status=1 if number == 11 else 0,
                    ago_s=3600.0 * (number + 1),
                )
                number += 1
    return logs
