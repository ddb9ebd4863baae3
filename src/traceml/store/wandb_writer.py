"""Logs a run to Weights & Biases.

An open run can be written by the process alone that has it. So live values are left in a file, from
which the training process logs them (`WandbValues` in `trace/open_trackers.py`), and the end, when
that process is gone, goes to a run of our own in the script's project and group; what is known of
it when the script's run is closed is in that run's summary. Where the script
has no run, everything goes to one of our own.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping
from typing import Any

from traceml.model.tracker import DISABLED, WANDB_FILLED_MARK, WANDB_VALUES_MARK
from traceml.store.folder import read_mark, write_mark
from traceml.store.json_lines import UNDECODABLE, load_json
from traceml.store.tracker_writer import (
    FINDING_PREFIX,
    OWN_PROJECT,
    REPORT_TYPE,
    LoggedEnd,
    LoggedFinding,
    LoggedRun,
)

INIT_TIMEOUT_S = 20
STEP = "traceml/live/step"
_OF_THE_SCRIPT = ("RUN_ID", "NAME", "RESUME", "NOTES", "RUN_GROUP", "JOB_TYPE", "SWEEP_ID", "TAGS")
"""Settings in the environment that mean the script's own run, and would make ours the same one."""
_TRUE = ("1", "true", "yes", "on")
"""How `WANDB_DISABLED`, which transformers and older W&B know, is said to hold."""
_SERVICES = ("WANDB_SERVICE", "_WANDB_SERVICE")
"""Where a `wandb-core` of another process listens, which may be gone by now."""


def why_disabled(run: LoggedRun, environment: Mapping[str, str]) -> str | None:
    """Returns the user's setting that switches W&B off; `None` where none does.

    As in W&B, what the script asked for goes before the environment, and that before the settings
    files.
    """
    if run.script_run.get("mode") == DISABLED:
        return f"the script's run has mode={DISABLED}"
    if run.script_run:
        return None
    if environment.get("WANDB_MODE") == DISABLED:
        return f"WANDB_MODE={DISABLED}"
    word = environment.get("WANDB_DISABLED", "").lower()
    if word in _TRUE:
        return f"WANDB_DISABLED={word}"
    if _users_settings(run).mode == DISABLED:
        return f"its settings have mode={DISABLED}, as after `wandb {DISABLED}`"
    return None


def _users_settings(run: LoggedRun) -> Any:
    """Returns the settings that W&B itself reads from the environment and from its files.

    One of these files may be in the script's folder. W&B looks there only once in a process, when
    it is set up, so this enters the folder first.
    """
    for name in (*(f"WANDB_{name}" for name in _OF_THE_SCRIPT), *_SERVICES):
        os.environ.pop(name, None)
    import wandb

    run.enter_home()  # W&B takes no other folder than the current one
    return wandb.setup().settings


class WandbWriter:
    """Logs beside the run that the script has open, or to one of our own."""

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._live: dict[str, float | str] = _left_values(run)
        self._own: Any = None
        if not run.script_run:
            self._open()

    @property
    def where(self) -> str:
        """The runs, as W&B names them; of one that is not sent yet, how it is."""
        theirs = self._run.script_run
        live = f"{theirs.get('project', '')}/{theirs['id']} and " if theirs else ""
        if self._own is None:
            return live.removesuffix(" and ")
        ours = self._own_folder if self._own.offline else None
        filled = read_mark(self._run.folder, WANDB_FILLED_MARK)
        folders = shlex.join(filter(None, (ours, filled)))
        sync = f" (offline: wandb sync {folders})" if folders else ""
        return f"{live}{self._own.project}/{self._own.id}{sync}"

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        """Logs numbers, with the training's step as their axis."""
        self._log({**values, STEP: step})

    def log_finding(self, finding: LoggedFinding) -> None:
        """Logs a text."""
        self._log({f"{FINDING_PREFIX}{finding.kind}": finding.text})

    def finish(self, end: LoggedEnd) -> None:
        """Logs the summary and the files to our own run, and closes that."""
        if self._own is None:
            self._open()
        findings = {name: text for name, text in self._live.items() if isinstance(text, str)}
        self._own.summary.update({**findings, **end.numbers, **end.texts})
        artifact = self._wandb.Artifact(f"traceml-{self._run.traceml_id[:16]}", type=REPORT_TYPE)
        for path in end.files:
            artifact.add_file(str(path), name=path.name)
        self._own.log_artifact(artifact)
        self._own.finish(exit_code=1 if end.has_failed else 0)

    def close(self) -> None:
        """Closes our own run, where there is one."""
        if self._own is not None:
            self._own.finish()

    def _log(self, values: Mapping[str, float | str]) -> None:
        self._live |= values
        if self._own is not None:
            self._own.log(dict(values))
            return
        # A number that also grows from one process of ours to the next.
        left = {"number": time.time_ns(), "run": self._run.script_run["id"], "values": self._live}
        content = json.dumps(left)
        write_mark(self._run.folder, WANDB_VALUES_MARK, content)

    def _open(self) -> None:
        """Opens a run of our own; offline where W&B cannot be reached, or does not know us."""
        import wandb

        self._wandb: Any = wandb
        mode = self._run.script_run.get("mode") or _users_settings(self._run).mode
        try:
            self._own = self._init(mode)
        except wandb.errors.Error:
            if mode != "online":
                raise
            wandb.teardown()  # its service would refuse the id of the run that it could not open
            self._own = self._init("offline")
        files = os.path.abspath(self._own.dir)  # noqa: PTH100 - as W&B names it
        self._own_folder = os.path.dirname(files)  # noqa: PTH120
        self._own.define_metric("traceml/live/*", step_metric=STEP)

    def _init(self, mode: str) -> Any:
        theirs, users = self._run.script_run, _users_settings(self._run)
        known = getattr(self._wandb.Settings, "model_fields", {})
        quiet = {"x_disable_stats": True} if "x_disable_stats" in known else {}
        server = {"base_url": theirs["server"]} if "server" in theirs else {}
        name = f"{theirs.get('name') or theirs['id']}-traceml" if theirs else self._run.name
        script_run = "/".join(
            filter(None, (theirs.get("entity"), theirs.get("project"), theirs.get("id")))
        )
        return self._wandb.init(
            id=f"traceml-{self._run.traceml_id[:16]}",
            name=name,
            entity=theirs.get("entity"),
            project=theirs.get("project") or users.project or OWN_PROJECT,
            group=theirs.get("group") or theirs.get("id"),
            job_type="traceml",
            tags=["traceml"],
            config={"traceml_run": self._run.name, "script_run": script_run or None},
            dir=os.environ.get("WANDB_DIR") or self._run.enter_home(),
            resume="allow" if mode == "online" else None,
            settings=self._wandb.Settings(
                mode=mode,
                silent=True,
                console="off",
                init_timeout=INIT_TIMEOUT_S,
                **quiet,
                **server,
            ),
        )


def _left_values(run: LoggedRun) -> dict[str, float | str]:
    """Returns what a process of ours before this one left for the script's open run."""
    try:
        left = load_json((read_mark(run.folder, WANDB_VALUES_MARK) or "{}").encode())
        is_of_this_run = bool(run.script_run) and left.get("run") == run.script_run.get("id")
        return dict(left["values"]) if is_of_this_run else {}
    except (*UNDECODABLE, AttributeError, KeyError, TypeError):
        return {}
