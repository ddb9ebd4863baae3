"""The agent's process; started by `traceml run` and `traceml.init`, not by people."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from traceml.model.environment import AGENT_LACKED_ROOM, ESSENTIAL, HEAD
from traceml.model.errors import TraceMLError, UsageError
from traceml.model.node import JOIN_MARK, ORIGIN_MARK

_STANDARD_INPUT = 0
JOB_SIGNALS = tuple(
    signal.Signals[name]
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
)
"""A batch system sends them to every process of a job: they end neither the agent, which ends after
the training, nor the processes that it starts."""


def main(words: list[str]) -> int:
    """Follows an existing run, or (`--new`) creates one first and prints its folder.

    After the folder comes what an agent knew that had to leave its own (`Agent.go_on_after_move`).
    """
    if not words:
        raise UsageError("this is the agent's own command; people say `traceml run`")
    signal.pthread_sigmask(signal.SIG_BLOCK, JOB_SIGNALS)
    owner, moved, is_detached, options = None, None, False, {}
    if words[0] == "--new":
        options = json.loads(words[1])
        owner = options["pid"]
        is_detached = options.get("is_detached", False)
        if is_detached and os.fork():
            os._exit(0)  # what whoever started us kills at its end are its children
        try:
            folder = _new_run(options)
        except (TraceMLError, OSError) as error:
            blame = "error" if isinstance(error, TraceMLError) else "trouble"
            print(json.dumps({blame: str(error)}), flush=True)
            return 2
    else:
        folder = Path(words[0])
        moved = json.loads(words[1]) if len(words) > 1 else None
        owner = None if moved is None else moved["owner"]
    os.umask(0o077)  # what a run records is its owner's to show
    from traceml.agent.loop import Agent

    agent = Agent(folder, _STANDARD_INPUT, owner, is_detached)
    if moved is not None:
        agent.go_on_after_move(moved)
    if options.get("launcher"):
        agent.stay_for_restarts(options["launcher"])
    is_on_disk = agent.run()
    if options.get("meeting"):  # that the ranks could not remove: the launcher was killed, say
        _remove_meeting(Path(options["meeting"]), folder)
    if is_on_disk:
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
        is_never_refused=options.get("is_never_refused", False),
        mode="init",
        profile=options.get("profile", ESSENTIAL),
        working_folder=options["working_folder"],
    )
    folder = new_run(options["subject"], options["command"], wanted)
    if options.get("origin"):
        folders.write_mark(folder, ORIGIN_MARK, options["origin"])
    if options.get("joins_head"):
        # Not on our command line, which every user of this machine can read.
        folders.write_mark(folder, JOIN_MARK, os.environ[HEAD])
    folders.hold(folder)  # until we end
    ring_folder = folders.read_manifest(folder).ring_folder
    print(json.dumps({"folder": str(folder), "ring_folder": ring_folder}), flush=True)
    _leave_output(folder / folders.AGENT_LOG)
    return folder


def _remove_meeting(path: Path, folder: Path) -> None:
    """Removes the file in which ranks find this run, unless they have begun another one since."""
    try:
        if json.loads(path.read_text()).get("folder") == str(folder):
            path.unlink()
    except (OSError, ValueError, AttributeError):
        pass  # it is gone, or of a run that is being made


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
