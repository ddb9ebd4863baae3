"""Runs a training command with tracing."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from traceml import __version__
from traceml.launch import command as commands
from traceml.launch import supervise
from traceml.model.run import Manifest
from traceml.store import folder as folders


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is to be recorded."""

    run_name: str | None = None
    logs_dir: Path = Path("logs")
    mode: str = "summary"
    profile: str = "essential"
    max_steps: int | None = None
    save_output: bool = False
    overwrite: bool = False
    world_size: int | None = None
    nodes: int = 1


def run(command: list[str], subject: str, options: RunOptions) -> tuple[int, Path]:
    """Run a command under the tracer; its status and the run folder."""
    name = options.run_name
    if name is None:
        name = folders.unique_name(subject)
    folder = new_run(name, command, options)
    environment = commands.environment_for(
        os.environ,
        folder,
        folders.read_manifest(folder).ring_folder,
        options.profile,
        options.max_steps,
    )
    option = commands.isolated_python(command)
    if option is not None:
        supervise.say(f"python {option} keeps the tracer out: the script runs untraced")
    status = supervise.run(command, environment, folder, options.save_output, _rebuild)
    return status, folder


def new_run(name: str, command: list[str], options: RunOptions) -> Path:
    """Make the folder of a new run and write down what is known about it."""
    folder = folders.create(options.logs_dir, name, options.overwrite)
    manifest = Manifest(
        run_name=name,
        started_unix_s=time.time(),
        command=tuple(command),
        traceml_version=__version__,
        mode=options.mode,
        profile=options.profile,
        hostname=socket.gethostname(),
        ring_folder=folders.make_ring_folder(),
        expected_world_size=options.world_size,
        nodes=options.nodes,
    )
    folders.write_manifest(folder, manifest)
    return folder


def _rebuild(folder: Path) -> None:
    from traceml.agent.close import recover

    recover(folder)
