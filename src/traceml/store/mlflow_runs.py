"""Reads runs from an MLflow tracking server: those of others, and those that TraceML sent there."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from traceml.model.errors import RunNotFound, UsageError, did_you_mean
from traceml.model.printable import printable
from traceml.model.quantities import memory
from traceml.model.run_values import RunValue
from traceml.model.tracked_run import MetricPoint, TrackedRun, moment_of, typed_value
from traceml.store.mlflow_names import read_name
from traceml.store.mlflow_server import SCHEME, MlflowServer, NotAtServer, split_address

RUN_ID_TAG = "traceml.run_id"
STATE_TAG = "traceml.push"
COMPLETE = "complete"
"""How the state of a push that was not interrupted begins."""
ROW_TAG = "traceml.row"
"""The number of tags `traceml.row.0`, `.1`, …: the run's facts and the extremes of its metrics as
pieces of JSON."""
FOLDER = "traceml"
"""The folder of the run's artifacts that holds the files of the run folder."""
METRIC_PREFIX = "traceml/"
"""Facts that are metrics at the server, so that its own pages can show and sort by them."""

PAGE_RUNS = 500
MAX_HISTORIES = 200
"""Metrics whose whole history is asked for: each is a request."""
MAX_FETCHED_BYTES = 1 << 30
"""Of one logged file; a larger one is compared by its hash alone."""
_STATES = {"RUNNING": "live", "SCHEDULED": "live", "FINISHED": "finished"}
_INFINITE = sys.float_info.max
"""What MLflow's databases keep for infinity."""
_FACT_TAGS = {
    "mlflow.user": "user",
    "mlflow.source.git.commit": "commit",
    "mlflow.source.git.branch": "branch",
    "mlflow.source.name": "script",
    "mlflow.note.content": "note",
}


class MlflowRuns:
    """The runs of a server, or of some of its experiments."""

    def __init__(self, word: str, experiments: Sequence[str] = ()) -> None:
        """Connects to the server of a user's word; `experiments` are names, none means all."""
        uri, self._wanted = split_address(word)
        self.server = MlflowServer(uri)
        self._experiments = experiments

    @property
    def address(self) -> str:
        """Returns the server as users write it."""
        return f"{SCHEME}+{self.server.shown}"

    def list_runs(self) -> Iterator[TrackedRun]:
        """Yields every run, the newest first in each experiment."""
        ids = self.experiment_ids()
        if ids:
            yield from map(_tracked, self._search(ids))

    def find_runs(self) -> list[TrackedRun]:
        """Returns the run that the address names by id or by name, with the histories of its
        metrics. Raises RunNotFound."""
        run = self.find(self._wanted)
        state = run.data.tags.get(STATE_TAG, COMPLETE)
        if RUN_ID_TAG in run.data.tags and state.startswith(COMPLETE):
            return [_tracked(run)]  # its files say more, and are fetched
        names = [name for name in run.data.metrics if not name.startswith(METRIC_PREFIX)]
        histories = {
            read_name(name): self._history(run.info.run_id, name) for name in names[:MAX_HISTORIES]
        }
        notes: tuple[str, ...] = ()
        if not state.startswith(COMPLETE):
            notes += ("its push broke off: what had not arrived is missing; push it again",)
        if len(names) > MAX_HISTORIES:
            notes += (
                f"of {len(names):,} metrics the history of {MAX_HISTORIES} was read, of the others "
                "the last value alone",
            )
        return [_tracked(run, histories, notes)]

    def find(self, word: str) -> Any:
        """Returns the server's own record of a run, by id or by name; raises RunNotFound."""
        if not word:
            raise RunNotFound(
                f"{self.address} names a server and no run; write mlflow:RUN_ID, or "
                "mlflow+http://HOST:PORT#RUN_ID"
            )
        run = self._by_id(word) or self._by_name(word)
        if run.info.lifecycle_stage == "deleted":
            raise RunNotFound(
                f"the run {printable(word)} was deleted at {self.server.shown}; restore it there "
                f"(mlflow runs restore --run-id {run.info.run_id}), or name another one"
            )
        return run

    def _by_id(self, word: str) -> Any | None:
        if not word.replace("-", "").replace("_", "").isalnum():
            return None
        try:
            with self.server.said_plainly(f"reading the run {printable(word)}"):
                return self.server.client.get_run(word)
        except NotAtServer:
            return None

    def _by_name(self, word: str) -> Any:
        if "'" not in word or '"' not in word:
            quote = '"' if "'" in word else "'"
            query = f"attributes.run_name = {quote}{word}{quote}"
            found = list(self._search(self.experiment_ids(), query))
            if len(found) == 1:
                return found[0]
            if found:
                shown = ", ".join(f"mlflow:{run.info.run_id}" for run in found[:5])
                raise RunNotFound(
                    f"{len(found)} runs at {self.server.shown} are called {printable(word)}: "
                    f"{shown}; name one by its id"
                )
        raise RunNotFound(
            f"there is no run {printable(word)} at {self.server.shown}, neither by id nor by name; "
            f"list them with: traceml runs --store {self.address}"
        )

    def experiment_ids(self) -> list[str]:
        """Returns the ids of the experiments; raises UsageError for one that is not there."""
        with self.server.said_plainly("listing its experiments"):
            known = list(_pages(self.server.client.search_experiments))
        by_name = {each.name: each.experiment_id for each in known}
        for name in self._experiments:
            if name not in by_name:
                raise UsageError(
                    f"there is no experiment {printable(name)!r} at {self.server.shown}"
                    f"{did_you_mean(name, by_name)}; there are: "
                    f"{printable(', '.join(list(by_name)[:10])) or 'none'}"
                )
        return [by_name[name] for name in self._experiments or by_name]

    def _search(self, ids: Sequence[str], query: str = "") -> Iterator[Any]:
        with self.server.said_plainly("listing its runs"):
            yield from _pages(
                self.server.client.search_runs,
                experiment_ids=list(ids),
                filter_string=query,
                max_results=PAGE_RUNS,
            )

    def find_sent(self, experiment_id: str, traceml_id: str) -> Any | None:
        """Returns the server's record of a run of TraceML's that was sent there; `None` without
        one."""
        query = f"tags.`{RUN_ID_TAG}` = '{traceml_id}'"
        found = list(self._search([experiment_id], query))
        return min(found, key=lambda run: run.info.run_id, default=None)

    def _history(self, run_id: str, name: str) -> tuple[MetricPoint, ...]:
        with self.server.said_plainly(f"reading the metric {printable(name)}"):
            points = self.server.client.get_metric_history(run_id, name)
        found = [
            MetricPoint(_value(each), each.step, moment_of(each.timestamp / 1000))
            for each in points
        ]
        return tuple(sorted(found, key=lambda point: (point.unix_s or 0.0, point.step)))

    def fetch_files(self, run: TrackedRun, folder: Path) -> bool:
        """Writes the files that `traceml push` sent into a folder; returns whether there were
        such. Raises UsageError where the server's artifact store cannot be read."""
        if not run.was_pushed:
            return False
        try:
            paths = list(self._small_files(run.run_id, FOLDER))
            for path in paths:
                self._fetch(run.run_id, path, folder)
        except NotAtServer:
            return False
        return bool(paths)

    def _small_files(self, run_id: str, path: str) -> Iterator[str]:
        """Yields the files under a path, but for very large ones."""
        with self.server.said_plainly("listing the run's files"):
            found = self.server.client.list_artifacts(run_id, path)
        for each in found:
            if each.is_dir:
                yield from self._small_files(run_id, each.path)
            elif (each.file_size or 0) <= MAX_FETCHED_BYTES:
                yield each.path
            else:
                print(
                    f"traceml: {printable(each.path)} was not fetched: it has "
                    f"{memory(each.file_size)}; it is compared by its hash alone",
                    file=sys.stderr,
                )

    def _fetch(self, run_id: str, path: str, folder: Path) -> None:
        listed = PurePosixPath(path)
        if not listed.is_relative_to(FOLDER) or ".." in listed.parts:
            return  # a server may list anything
        target = folder / listed.relative_to(FOLDER)
        target.parent.mkdir(0o700, parents=True, exist_ok=True)
        place = folder / ".fetched"
        place.mkdir(0o700, exist_ok=True)
        with self.server.said_plainly(f"fetching {printable(path)}"):
            got = Path(self.server.client.download_artifacts(run_id, path, str(place)))
            got.replace(target)
        shutil.rmtree(place, ignore_errors=True)


def _pages(search: Any, **options: Any) -> Iterator[Any]:
    token: str | None = None
    while True:
        page = search(page_token=token, **options)
        yield from page
        token = page.token
        if not token:
            return


def _tracked(
    run: Any,
    histories: Mapping[str, Sequence[MetricPoint]] | None = None,
    notes: tuple[str, ...] = (),
) -> TrackedRun:
    """Returns a run as TraceML's own lists have it."""
    info, data = run.info, run.data
    row = _row(data.tags)
    facts: dict[str, RunValue] = {
        fact: data.tags[tag] for tag, fact in _FACT_TAGS.items() if data.tags.get(tag)
    }
    facts.setdefault("tags", _plain_tags(data.tags))
    facts.update(row.get("facts", {}))
    metrics = {
        read_name(name): _finite_or_infinite(value)
        for name, value in data.metrics.items()
        if not (row and name.startswith(METRIC_PREFIX))
    }
    return TrackedRun(
        source=SCHEME,
        run_id=info.run_id,
        name=info.run_name or info.run_id,
        status=_STATES.get(info.status, "failed"),
        started_unix_s=moment_of((info.start_time or 0) / 1000) or None,
        ended_unix_s=moment_of((info.end_time or 0) / 1000) or None,
        params={read_name(name): typed_value(value) for name, value in data.params.items()},
        last_values=metrics,
        histories=histories or {},
        facts=facts,
        statistics=row.get("statistics", {}),
        was_pushed=RUN_ID_TAG in data.tags,
        notes=notes,
    )


def _plain_tags(tags: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the tags that people set, as `key=value`."""
    own = {key: tags[key] for key in sorted(tags) if not key.startswith(("mlflow.", "traceml."))}
    return tuple(f"{key}={value}" if value else key for key, value in own.items())


def _row(tags: Mapping[str, str]) -> dict[str, Any]:
    """Returns what TraceML sent of a run for lists; empty where it sent nothing readable."""
    said = tags.get(ROW_TAG, "")
    count = int(said) if said.isdecimal() and len(said) < 4 else 0
    try:
        found = json.loads("".join(tags[f"{ROW_TAG}.{number}"] for number in range(count)) or "{}")
    except (KeyError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        part: {
            name: value for name, given in values.items() if (value := _plain(given)) is not None
        }
        for part, values in found.items()
        if isinstance(values, dict)
    }


def _plain(value: Any) -> RunValue | None:
    if isinstance(value, list):
        return tuple(str(each) for each in value)
    return value if isinstance(value, str | bool | int | float) else None


def _value(point: Any) -> float:
    return _finite_or_infinite(float(point.value))


def _finite_or_infinite(value: float) -> float:
    """Returns a value as it was logged: the largest number stands for infinity."""
    return math.copysign(math.inf, value) if abs(value) == _INFINITE else value
