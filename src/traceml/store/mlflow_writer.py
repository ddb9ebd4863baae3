"""Logs a run to MLflow: into the run that the script has open, which a server lets anybody write
who knows its id, also after its end; or into one of our own, which `traceml push` completes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from traceml.model.secrets import without_credentials
from traceml.store.mlflow_names import MAX_TAG_CHARS, sent_name, shortened
from traceml.store.mlflow_runs import FOLDER, MlflowRuns
from traceml.store.mlflow_server import SCHEME
from traceml.store.mlflow_upload import MAX_METRICS_PER_REQUEST, begin_run
from traceml.store.tracker_writer import FINDING_PREFIX, LoggedEnd, LoggedFinding, LoggedRun

_ADDRESS = "MLFLOW_TRACKING_URI"


class MlflowWriter:
    """Logs to a run by its id."""

    def __init__(self, run: LoggedRun, push: Callable[[MlflowRuns], object]) -> None:
        """`push` sends the whole run, when it is over, to the run of our own."""
        self._push = push
        self._is_own = not run.script_run
        run.enter_home()  # a local store is named from there
        if run.script_run:
            self._store = MlflowRuns(_store_word(run.script_run["uri"]))
            self._id = run.script_run["id"]
            self._experiment = run.script_run["experiment"]
        else:
            self._store = MlflowRuns(_default_store_word())
            started_ms = int(run.started_unix_s * 1000)
            there = begin_run(self._store, run.traceml_id, run.name, started_ms)
            self._id, self._experiment = there.info.run_id, there.info.experiment_id

    @property
    def where(self) -> str:
        """The address of the run."""
        return self._store.server.link(self._experiment, self._id)

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        """Logs metrics at a step."""
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        found = [Metric(sent_name(name), value, now_ms, step) for name, value in values.items()]
        for place in range(0, len(found), MAX_METRICS_PER_REQUEST):
            self._send(metrics=found[place : place + MAX_METRICS_PER_REQUEST])

    def log_finding(self, finding: LoggedFinding) -> None:
        """Sets a tag: MLflow has no texts at steps."""
        self._set_tags({f"{FINDING_PREFIX}{finding.kind}": finding.text})

    def finish(self, end: LoggedEnd) -> None:
        """Logs the summary and its files; the status of the script's run stays the script's."""
        if self._is_own:
            self._push(self._store)
            return
        self.log_values(end.numbers, end.step)
        self._set_tags(end.texts)
        for path in end.files:
            with self._store.server.said_plainly(f"sending {path.name}"):
                self._store.server.client.log_artifact(self._id, str(path), FOLDER)

    def close(self) -> None:
        """Does nothing: no connection is kept."""

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        found = [
            RunTag(name.replace("/", "."), shortened(text, MAX_TAG_CHARS))
            for name, text in tags.items()
        ]
        self._send(tags=found)

    def _send(self, **what: Any) -> None:
        with self._store.server.said_plainly("logging to the open run"):
            self._store.server.client.log_batch(self._id, **what)


def _store_word(uri: str) -> str:
    """Returns the store of an address, which the training process has left without its user: where
    the environment has the same one, that is taken, with the user."""
    ours = os.environ.get(_ADDRESS)
    return SCHEME if ours and without_credentials(ours) == uri else f"{SCHEME}+{uri}"


def _default_store_word() -> str:
    """Returns the store that MLflow itself would use, were the script to log to it."""
    if os.environ.get(_ADDRESS):
        return SCHEME
    import mlflow

    return f"{SCHEME}+{mlflow.get_tracking_uri()}"
