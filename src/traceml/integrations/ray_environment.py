"""Takes a run into the workers of a Ray cluster, whose daemons were started without TraceML.

Ray calls `join_workers` in the driver, at `ray.init`, where `RAY_RUNTIME_ENV_HOOK` names it: below
`traceml run` it does so by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traceml.model.environment import (
    HEAD,
    KINETO,
    MARKS,
    MAX_STEPS,
    OOM_SNAPSHOT,
    PROFILE,
    RING_FOLDER,
    RUN_FOLDER,
)
from traceml.model.node import HEAD_MARK, HEAD_WANTED_MARK
from traceml.trace.init import init

HEAD_TIMEOUT_S = 5.0
"""How long `ray.init` may be held up until our agent can be reached from other machines."""
_POLL_S = 0.02
_PASSED_ON = (RUN_FOLDER, RING_FOLDER, MAX_STEPS, PROFILE, OOM_SNAPSHOT, KINETO)
_PYTHON_PATH = "PYTHONPATH"
_INJECT = str(Path(__file__).parents[1] / "trace" / "inject")


def join_workers(runtime_env: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns the job's runtime environment with what makes its workers part of this run.

    Where there is no run yet, it is begun here, as `traceml.init()` does. Everything that the user
    asked for stays.
    """
    if not os.environ.get(RUN_FOLDER):
        init()
    if not os.environ.get(RUN_FOLDER):
        return runtime_env  # tracing is off, or cannot be; that has been said
    asked = dict(runtime_env or {})
    variables = dict(asked.get("env_vars") or {})
    ours = {name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)}
    head = _head_address(Path(os.environ[RUN_FOLDER]))
    if head is not None:
        ours[HEAD] = head
    # Ray replaces ${…} by what the worker's machine has.
    path = variables.get(_PYTHON_PATH, f"${{{_PYTHON_PATH}}}")
    ours[_PYTHON_PATH] = os.pathsep.join([_INJECT, path])
    return {**asked, "env_vars": {**variables, **ours}}


def _head_address(folder: Path) -> str | None:
    """How workers on other machines reach our agent, as JSON; `None` where it does not say so."""
    marks = folder / MARKS
    try:
        marks.mkdir(exist_ok=True)
        wanted = marks / HEAD_WANTED_MARK
        if not wanted.exists():
            wanted.write_text("{}")
        deadline_s = time.monotonic() + HEAD_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if (marks / HEAD_MARK).exists():
                return (marks / HEAD_MARK).read_text()
            time.sleep(_POLL_S)
    except OSError:
        return None  # nowhere to write: workers of this machine are traced all the same
    return None
