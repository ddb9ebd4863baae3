"""`traceml.init()`: a run and its agent for a script under plain python, or for a notebook."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from traceml.model.environment import MAX_STEPS, RING_FOLDER, RUN_FOLDER
from traceml.model.errors import UsageError
from traceml.trace import current
from traceml.trace.session import Session

CLOSING_S = 30.0
"""How long the end of the process may wait for the agent to write the summary."""


def init(
    run_name: str | None = None,
    logs_dir: str | Path = "logs",
    overwrite: bool = False,
    trace_max_steps: int | None = None,
) -> None:
    """Start a run in this process; it is closed when the process ends.

    Under `traceml run`, and when called again, this does nothing.
    Raises UsageError where the run folder cannot be made as asked.
    """
    if current.current() is not None:
        return
    options = {
        "run_name": run_name,
        "logs_dir": str(Path(logs_dir).absolute()),
        "overwrite": overwrite,
        "command": [sys.executable, *sys.argv],
        "pid": os.getpid(),
    }
    agent = _start_agent(options)
    assert agent.stdout is not None
    answer: dict[str, Any] = json.loads(agent.stdout.readline() or b"{}")
    if "folder" not in answer:
        agent.wait()
        raise UsageError(answer.get("error", "the TraceML agent did not start; see above"))
    os.environ[RUN_FOLDER] = answer["folder"]
    os.environ[RING_FOLDER] = answer["ring_folder"]
    if trace_max_steps is not None:
        os.environ[MAX_STEPS] = str(trace_max_steps)
    session = current.current()
    assert session is not None
    atexit.register(_close, agent, session)
    _begin_with_torch()


def _start_agent(options: dict[str, Any]) -> subprocess.Popen[bytes]:
    package = Path(__file__).parents[2]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(package), *filter(None, [environment.get("PYTHONPATH")])]
    )
    return subprocess.Popen(
        [sys.executable, "-m", "traceml", "agent", "--new", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=environment,
    )


def _begin_with_torch() -> None:
    """Set the hooks now, or as soon as the script imports torch."""
    if "torch" in sys.modules:
        from traceml.trace.begin import begin

        begin()
        return
    from traceml.trace.inject import sitecustomize

    sys.meta_path.insert(0, sitecustomize.AfterTorch())


def _close(agent: subprocess.Popen[bytes], session: Session) -> None:
    """The process ends: finish the records, tell the agent, wait for the summary."""
    if os.getpid() != session.pid:
        return  # a forked child ends; the run goes on
    session.finish()
    assert agent.stdin is not None
    try:
        agent.stdin.write(b'{"ended": {"exit_status": null}}\n')
        agent.stdin.close()
        agent.wait(CLOSING_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        session.say(f"the summary is not on disk yet: {error}")
