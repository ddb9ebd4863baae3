"""The agent's process; started by `traceml run` and `traceml.init`, not by people."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from traceml.model.environment import AGENT_LACKED_ROOM
from traceml.model.errors import TraceMLError, UsageError

_STANDARD_INPUT = 0
_NOT_OURS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
"""Signals that we ignore: a batch system sends them to every process of a job, and we end when the
training has."""


def main(words: list[str]) -> int:
    """Follows an existing run, or (`--new`) creates one first and prints its folder."""
    if not words:
        raise UsageError("this is the agent's own command; people say `traceml run`")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.Signals[name] for name in _NOT_OURS])
    owner = None
    if words[0] == "--new":
        options = json.loads(words[1])
        owner = options["pid"]
        try:
            folder = _new_run(options)
        except (TraceMLError, OSError) as error:
            blame = "error" if isinstance(error, TraceMLError) else "trouble"
            print(json.dumps({blame: str(error)}), flush=True)
            return 2
    else:
        folder = Path(words[0])
    os.umask(0o077)  # what a run records is its owner's to show
    from traceml.agent.loop import Agent

    agent = Agent(folder, _STANDARD_INPUT, owner)
    if agent.run():
        return 0
    return AGENT_LACKED_ROOM if agent.lacks_room else 1


def _new_run(options: dict[str, Any]) -> Path:
    """Creates the run that `traceml.init` asks for, and stops using the user's output."""
    from traceml.api.run import RunOptions, new_run
    from traceml.store import folder as folders

    wanted = RunOptions(
        run_name=options["run_name"],
        logs_dir=Path(options["logs_dir"]),
        overwrite=options["overwrite"],
        mode="init",
        working_folder=options["working_folder"],
    )
    folder = new_run(options["subject"], options["command"], wanted)
    folders.hold(folder)  # until we end
    ring_folder = folders.read_manifest(folder).ring_folder
    print(json.dumps({"folder": str(folder), "ring_folder": ring_folder}), flush=True)
    _leave_output(folder / folders.AGENT_LOG)
    return folder


def _leave_output(log: Path) -> None:
    """Redirects our output to the log."""
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY)
    sys.stdout.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
