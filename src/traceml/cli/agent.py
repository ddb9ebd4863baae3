"""The agent's process; started by `traceml run` and `traceml.init`, not by people."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from traceml.model.errors import TraceMLError

_STANDARD_INPUT = 0


def main(words: list[str]) -> int:
    """Follow a run that exists, or (`--new`) make one first and say where it is."""
    owner = None
    if words[0] == "--new":
        options = json.loads(words[1])
        owner = options["pid"]
        try:
            folder = _new_run(options)
        except TraceMLError as error:
            print(json.dumps({"error": str(error)}), flush=True)
            return 2
    else:
        folder = Path(words[0])
    from traceml.agent.loop import Agent

    Agent(folder, _STANDARD_INPUT, owner).run()
    return 0


def _new_run(options: dict[str, Any]) -> Path:
    """Make the run that `traceml.init` asks for, and leave its output behind."""
    from traceml.api.run import RunOptions, new_run
    from traceml.store import folder as folders

    command = options["command"]
    name = options["run_name"] or folders.unique_name(Path(command[-1]).name or "notebook")
    wanted = RunOptions(
        logs_dir=Path(options["logs_dir"]), overwrite=options["overwrite"], mode="init"
    )
    folder = new_run(name, command, wanted)
    ring_folder = folders.read_manifest(folder).ring_folder
    print(json.dumps({"folder": str(folder), "ring_folder": ring_folder}), flush=True)
    log = os.open(folder / folders.AGENT_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir("/")
    return folder
