"""Logs a run to trackio: into the script's own run, which trackio lets several processes write."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from traceml.model.secrets import without_credentials
from traceml.store.tracker_writer import (
    OWN_PROJECT,
    REPORT_TYPE,
    LoggedEnd,
    LoggedFinding,
    LoggedRun,
)

_FOLDER = "TRACKIO_DIR"
_LEVELS = {"crit": "ERROR", "warn": "WARN", "info": "INFO"}


class TrackioWriter:
    """Logs to a run of trackio, local, in a Space, or on a server, as the script's is."""

    def __init__(self, run: LoggedRun) -> None:
        theirs = run.script_run
        run.enter_home()  # its folder may be named from there
        if "store" in theirs:
            os.environ[_FOLDER] = theirs["store"]
        import trackio  # it reads the variable only now

        self._trackio: Any = trackio
        self._artifact = f"traceml-{run.traceml_id[:16]}"
        self._run: Any = trackio.init(
            project=theirs.get("project", OWN_PROJECT),
            name=theirs.get("name", run.name),
            space_id=theirs.get("space"),
            server_url=_with_credentials(theirs.get("server")),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        # What was resumed is the newest run of that name that has values: an earlier one, perhaps.
        identity = theirs.get("id") if theirs else run.traceml_id
        if identity is not None and hasattr(self._run, "id"):
            self._run.id = identity
        if theirs:
            self._run.config = {}  # else ours would replace that of the script's run

    @property
    def where(self) -> str:
        """Project and run."""
        return f"{self._run.project}/{self._run.name}"

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        """Logs numbers at a step."""
        self._run.log(metrics=dict(values), step=step)

    def log_finding(self, finding: LoggedFinding) -> None:
        """Raises an alert, which trackio lists with the run."""
        level = getattr(self._trackio.AlertLevel, _LEVELS[finding.severity])
        self._run.alert(finding.kind, finding.text, level, finding.step)

    def finish(self, end: LoggedEnd) -> None:
        """Logs the summary, and the files as one artifact."""
        self._run.log(metrics={**end.numbers, **end.texts}, step=end.step)
        artifact = self._trackio.Artifact(self._artifact, type=REPORT_TYPE)
        for path in end.files:
            artifact.add_file(str(path), name=path.name)
        self._trackio.log_artifact(artifact)
        self.close()

    def close(self) -> None:
        """Waits until everything is written."""
        self._run.finish()


def _with_credentials(server: str | None) -> str | None:
    """Returns the address of the script's server, which was left without password and token, with
    those that the environment has for it."""
    ours = os.environ.get("TRACKIO_SERVER_URL")
    if not ours or server is None:
        return server
    address = without_credentials(ours).partition("?")[0]
    return ours if address.rstrip("/") == server.rstrip("/") else server
