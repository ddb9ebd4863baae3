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
from traceml.launch.messages import say
from traceml.launch.views import open_view
from traceml.model.run import Manifest
from traceml.model.secrets import masked
from traceml.store import folder as folders

LIVE_MODES = ("cli", "dashboard")
"""Modes that show the output, and therefore store it."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is recorded and shown."""

    run_name: str | None = None
    logs_dir: Path = Path("logs")
    mode: str = "summary"
    profile: str = "essential"
    oom_snapshot: bool = False
    """Whether a process whose GPU memory runs out saves its allocator's snapshot."""
    max_steps: int | None = None
    save_output: bool = False
    overwrite: bool = False
    world_size: int | None = None
    nodes: int = 1
    working_folder: str | None = None
    """Where the command runs; `None` means here."""


def run(command: list[str], subject: str, options: RunOptions) -> tuple[int, Path | None]:
    """Runs a command under the tracer; returns its status and the run folder.

    If no folder can be created, training runs anyway and the folder is `None`. Raises UsageError
    where the run's name is invalid or taken.
    """
    try:
        folder = new_run(subject, command, options)
    except OSError as error:
        say(f"the run cannot be recorded ({error}): training runs without tracing")
        return supervise.run_untraced(command, dict(os.environ)), None
    to = supervise.TracedRun(folder, folders.read_manifest(folder), _rebuild)
    environment = commands.environment_for(
        os.environ,
        folder,
        to.manifest.ring_folder,
        options.max_steps,
        options.profile,
        options.oom_snapshot,
    )
    option = commands.isolated_python(command)
    if option is not None:
        say(f"python {option} keeps the tracer out: the script runs untraced")
    view = open_view(options.mode, folder)
    shown = supervise.RunDisplay(view, options.save_output or options.mode in LIVE_MODES)
    return supervise.run(command, environment, to, shown), folder


def new_run(subject: str, command: list[str], options: RunOptions) -> Path:
    """Creates the folder of a new run and writes its manifest.

    Raises UsageError where the name is invalid or taken, OSError where nothing can be written.
    """
    if options.run_name is None:
        folder = folders.create_unique(options.logs_dir, subject)
    else:
        folder = folders.create(options.logs_dir, options.run_name, options.overwrite)
    manifest = Manifest(
        run_name=folder.name,
        started_unix_s=time.time(),
        command=masked(command),
        working_folder=options.working_folder or str(Path.cwd()),
        traceml_version=__version__,
        mode=options.mode,
        profile=options.profile,
        hostname=socket.gethostname(),
        user=folders.user_name(),
        ring_folder=folders.make_ring_folder(),
        expected_world_size=options.world_size,
        nodes=options.nodes,
    )
    try:
        folders.write_manifest(folder, manifest)
    except OSError:
        folders.discard(folder, manifest)
        raise
    return folder


def _rebuild(folder: Path) -> None:
    from traceml.agent.close import recover

    recover(folder)
