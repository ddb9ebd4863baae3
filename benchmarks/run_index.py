"""How long the index of runs takes to list, filter and sort many runs.

Folders and an index of made-up runs are written: 10,000 runs of 100 parameters and 200 metrics, and
75,000 runs of 1,500 metrics, each with its last value and extremes, 30 % of them missing. The same
question is asked of each: two metrics and a parameter filtered, sorted by a third, twenty columns
of the first fifty. Where MLflow can be imported, its SQLite store is asked the same of runs like
the first ones, without extremes; of as many as the larger size has, it would fill 79 million rows
and ten gigabytes before the first question.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.compare_speed import document
from benchmarks.figure import Figure
from benchmarks.stats import median_interval
from traceml import __version__
from traceml.api.query_runs import RunQuery, Runs, RunSearch
from traceml.figures.run_columns import VERSION
from traceml.model.run import Ending, Manifest
from traceml.store.folder import SUMMARY, write_ending, write_manifest
from traceml.store.folder_versions import scan_runs
from traceml.store.index_columns import MISSING_BITS, CodedColumn, Column, NumberColumn
from traceml.store.index_segments import MAX_ROWS, MemorySegment, write_segment
from traceml.store.run_index import FORMAT, HEAD, RunIndex, index_folder

REPEATS = 15
COMMAND_REPEATS = 5
"""Of what takes a second."""
BUILT_RUNS = 500
OPTIMIZERS = ("adam", "adamw", "sgd")
FILTER = 'm3 > 0.2 and m7 < 0.9 and params.p0 in ("adam", "adamw") and status = "finished"'
SORT = "-m5"
LIMIT = 50
QUESTION = "filter, sort, 50 × 20"
COLUMNS = ["name", "status", "step_time_ms", *(f"params.p{i}" for i in range(7))]
COLUMNS += [f"metrics.m{i}" for i in range(10)]


@dataclass(frozen=True)
class Size:
    """How many runs, and how much each has."""

    runs: int
    params: int
    metrics: int
    target: str

    @property
    def words(self) -> str:
        return f"{self.runs:,} runs × {self.params} params × {self.metrics:,} metrics"


SMALL = Size(10_000, 100, 200, "≤ 50 ms")
LARGE = Size(75_000, 100, 1500, "≤ 300 ms")


MLFLOW = "MLflow"
"""The peer; its figures begin with this word."""


def run(sizes: Sequence[Size] = (SMALL, LARGE), built_runs: int = BUILT_RUNS) -> list[Figure]:
    """Measures all sizes, and MLflow beside the first."""
    figures = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            logs = Path(place) / "logs"
            make_index(logs, size)
            figures += list(_measured(logs, size))
    with tempfile.TemporaryDirectory() as place:
        figures.append(_built(Path(place) / "logs", built_runs))
    figures += _of_mlflow(sizes[0])
    return figures


def breakdown(figures: Sequence[Figure]) -> str:
    """Returns how MLflow compares at the same question, or why that is not known."""
    peer = next((each for each in figures if each.what.startswith(MLFLOW)), None)
    if peer is None:
        return f"{MLFLOW} is left out: {_missing_peer()}; pip install mlflow measures it as well"
    ours = next(each for each in figures if QUESTION in each.what)
    return f"{MLFLOW} takes {peer.measured / ours.measured:,.0f} times as long: {peer.note}"


def _missing_peer() -> str | None:
    """Returns which package MLflow's store lacks here; `None` where it can be measured."""
    for package in ("mlflow", "sqlalchemy", "alembic"):
        if importlib.util.find_spec(package) is None:
            return f"there is no package {package}"
    return None


def make_index(logs: Path, size: Size) -> None:
    """Writes folders with an empty summary each, and the index that full ones would give."""
    logs.mkdir()
    names = [f"run-{number:06}" for number in range(size.runs)]
    then = time.time() - 1000
    for name in names:
        folder = logs / name
        folder.mkdir()
        path = folder / SUMMARY
        path.write_bytes(b"{}")
        os.utime(path, (then, then))
        os.utime(folder, (then, then))
    versions = scan_runs(logs).versions
    place = index_folder(logs)
    place.mkdir(0o700)
    files = []
    for first in range(0, size.runs, MAX_ROWS):
        own = names[first : first + MAX_ROWS]
        columns = dict(_columns(size, first, len(own)))
        segment = MemorySegment(own, [versions[name] for name in own], columns)
        files.append(f"made-{first}.runs")
        write_segment(place / files[-1], segment)
    head = {"format": FORMAT, "schema": f"{__version__}/{VERSION}", "segments": files}
    (place / HEAD).write_bytes(msgspec.json.encode(head))


def _never(folder: Path) -> Any:
    raise RuntimeError(f"{folder} was read, though it is in the index")


def _columns(size: Size, first: int, rows: int) -> Iterator[tuple[str, Column]]:
    chance = np.random.default_rng(first)
    numbers = np.arange(first, first + rows, dtype=float)
    yield (
        "facts.name",
        CodedColumn(
            np.arange(rows, dtype=np.int32), [f"run-{first + row:06}" for row in range(rows)]
        ),
    )
    status = (chance.random(rows) < 0.1).astype(np.int32)
    yield "facts.status", CodedColumn(status, ["finished", "failed"])
    yield "facts.started", NumberColumn(1.8e9 + numbers, False)
    yield "facts.step_time_ms", NumberColumn(20 + 10 * chance.random(rows), False)
    for place in range(size.params):
        if place % 10 == 0:
            codes = chance.integers(0, len(OPTIMIZERS), rows).astype(np.int32)
            yield f"params.p{place}", CodedColumn(codes, OPTIMIZERS)
        else:
            yield f"params.p{place}", NumberColumn(chance.random(rows).round(2), False)
    for place in range(size.metrics):
        values = chance.random(rows)
        missing = chance.random(rows) < 0.3
        for section, factor in (("metrics", 1.0), ("min", 0.5), ("max", 2.0), ("mean", 0.9)):
            column = values * factor
            column.view(np.uint64)[missing] = MISSING_BITS
            yield f"{section}.m{place}", NumberColumn(column, False)


def _measured(logs: Path, size: Size) -> Iterator[Figure]:
    index_bytes = sum(path.stat().st_size for path in index_folder(logs).iterdir())
    search = RunSearch(logs, max_age_s=1e9)
    first_s = _seconds(lambda: ask(search))
    note = f"{index_bytes / 1e6:,.0f} MB of index; opened in {first_s:.2f} s"
    yield _figure(f"{size.words}: {QUESTION}", size.target, lambda: ask(search), note)
    newest = RunQuery(limit=LIMIT)
    yield _figure("the same: the newest 50", size.target, lambda: shown(search.search(newest)))
    index = RunIndex(logs, _never, f"{__version__}/{VERSION}")
    index.refresh()
    yield _figure("the same: look for changes in all folders", "–", index.refresh)
    words = ["runs", "--logs-dir", str(logs), "--filter", FILTER, "--sort", SORT]
    words += ["--columns", ",".join(COLUMNS), "--limit", str(LIMIT)]
    command = [sys.executable, "-m", "traceml", *words]
    call = lambda: subprocess.run(command, check=True, capture_output=True)  # noqa: E731
    what = "the same: `traceml runs` from start to end"
    yield _figure(what, "–", call, repeats=COMMAND_REPEATS)


def ask(search: RunSearch) -> int:
    """The question: filter, sort, and read what is shown."""
    return shown(search.search(RunQuery(FILTER, SORT, LIMIT)))


def shown(found: Runs) -> int:
    """Reads the columns of a table."""
    keys = found.choose_columns(",".join(COLUMNS))
    return sum(len(found.column(key)) for key in keys)


def _built(logs: Path, runs: int) -> Figure:
    """Reads run folders with real summaries into a new index."""
    for number in range(runs):
        folder = logs / f"run-{number:06}"
        folder.mkdir(parents=True)
        made = document(20.0, folder.name)
        made["params"] = {f"p{place}": number * place for place in range(SMALL.params)}
        metric = {"count": 100, "last": 0.5, "min": 0.1, "max": 0.9, "mean": 0.4}
        made["metrics"] = {f"m{place}": metric for place in range(SMALL.metrics)}
        (folder / SUMMARY).write_text(json.dumps(made))
        write_manifest(folder, Manifest(folder.name, time.time(), ("python", "train.py")))
        write_ending(folder, Ending(time.time(), 0))
    per_run_s = _seconds(lambda: RunSearch(logs).search(RunQuery())) / runs
    return Figure(
        f"read a run of {SMALL.params} params × {SMALL.metrics} metrics into the index",
        "–",
        per_run_s * 1e3,
        "ms",
        note=f"{runs} runs",
    )


def _figure(
    what: str, target: str, call: Callable[[], object], note: str = "", repeats: int = REPEATS
) -> Figure:
    call()
    times_ms = [_seconds(call) * 1e3 for _ in range(repeats)]
    middle, low, high = median_interval(times_ms)
    return Figure(what, target, middle, "ms", low, high, "(95 %)", note)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _of_mlflow(size: Size) -> list[Figure]:
    """Returns MLflow's figure; none where it is not installed, which `breakdown` says."""
    if _missing_peer() is not None:
        return []
    from benchmarks.mlflow_store import make_store

    with tempfile.TemporaryDirectory() as place:
        search = make_store(Path(place), size.runs, size.params, size.metrics, OPTIMIZERS)
        what = f"{MLFLOW} on SQLite, {size.words}: filter, sort, 50"
        note = "one optimizer instead of two, one value per metric"
        return [_figure(what, "–", search, note, repeats=COMMAND_REPEATS)]
