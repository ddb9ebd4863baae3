"""Runs a training command with tracing."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from traceml import __version__
from traceml.agent.otlp_settings import why_not_exported
from traceml.launch import command as commands
from traceml.launch import supervise
from traceml.launch.messages import say
from traceml.launch.tasks_on_machine import TaskRun, TasksOnMachine
from traceml.launch.views import open_view
from traceml.model.environment import NOTIFY, TOKEN
from traceml.model.errors import TraceMLError, UsageError
from traceml.model.launcher_place import (
    has_rank,
    place_in_environment,
    slurm_restarts,
    spans_machines,
)
from traceml.model.run import Manifest
from traceml.model.secrets import masked
from traceml.model.tracker import LOG_TO_MARK, closing_messages
from traceml.store import folder as folders
from traceml.store.node_folders import closing_words, leave_head, node_name, parse_head

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
    kineto: int | None = None
    """Of how many steps each rank keeps a trace of torch's profiler; `None`: of none."""
    log_to: tuple[str, ...] = ()
    """The trackers that the run is logged to, by their names."""
    max_steps: int | None = None
    save_output: bool = False
    overwrite: bool = False
    is_never_refused: bool = False
    """Whether a name that is taken, or is none, gets the run another one instead of an error: a
    framework starts its workers again with the name that they had before."""
    world_size: int | None = None
    nodes: int = 1
    node_rank: int = 0
    """Which of the job's machines this is, as far as the launcher knows."""
    head: str | None = None
    """`HOST:PORT` of the machine that gets the records of all; `None`: the ranks find out."""
    working_folder: str | None = None
    """Where the command runs; `None` means here."""
    notify: tuple[str, ...] = ()
    """Webhooks and commands that are told of critical findings and of the end."""


def run(command: list[str], subject: str, options: RunOptions) -> tuple[int, Path | None]:
    """Runs a command under the tracer; returns its status and the run folder.

    The folder is `None` where the command is part of a run that another task on this machine made,
    and where no folder can be created: then training runs anyway. Raises UsageError where the run's
    name is invalid or taken.
    """
    head = None if options.head is None else parse_head(options.head, os.environ.get(TOKEN, ""))
    tasks = TasksOnMachine.of_launcher()
    try:
        found = None if tasks is None else tasks.find_run()
        if found is not None:
            environment = _environment(found, options)
            return supervise.run_untraced(command, environment), None
        folder = new_run(subject, command, options)
        if head is not None:
            leave_head(folder, head)
    except OSError as error:
        if tasks is not None:
            tasks.tell(None)
        say(f"the run cannot be recorded ({error}): training runs without tracing")
        return supervise.run_untraced(command, dict(os.environ)), None
    agents = _agent_environment(options)
    to = supervise.TracedRun(folder, folders.read_manifest(folder), _rebuild, agents, tasks)
    made = TaskRun(folder, to.manifest.ring_folder)
    if tasks is not None:
        tasks.tell(made)
    _say_what_is_missing(command)
    view = open_view(options.mode, folder)
    shown = supervise.RunDisplay(view, options.save_output or options.mode in LIVE_MODES)
    status = supervise.run(command, _environment(made, options), to, shown)
    folder = folders.moved_to(to.manifest) or folders.settle(folder)
    words = closing_words(folder)
    if words is None:
        _notify_of_end(folder, status, agents)
    else:
        say(words)
    with suppress(OSError):  # the folder was removed: that is said already
        for line in closing_messages(folder):
            say(line)
    return status, folder


def _say_what_is_missing(command: list[str]) -> None:
    """Says beforehand what will not be recorded, or not be sent."""
    trouble = why_not_exported(os.environ)
    if trouble is not None:
        say(trouble)
    option = commands.isolated_python(command)
    if option is not None:
        say(f"python {option} keeps the tracer out: the script runs untraced")


def _agent_environment(options: RunOptions) -> dict[str, str]:
    """Returns the environment of the run's agent: it alone knows whom `--notify` names."""
    targets = [*os.environ.get(NOTIFY, "").splitlines(), *options.notify]
    return {**os.environ, NOTIFY: "\n".join(targets)} if targets else dict(os.environ)


def _notify_of_end(folder: Path, status: int, environment: Mapping[str, str]) -> None:
    """Notifies of the end where there was no agent to do so."""
    if environment.get(NOTIFY) and folder.is_dir():
        from traceml.agent.notifications import notify_of_end

        try:
            notify_of_end(folder, status, say, environment)
        except (OSError, TraceMLError) as error:
            say(f"nobody could be notified of the end ({error})")


def _environment(run: TaskRun, options: RunOptions) -> dict[str, str]:
    return commands.environment_for(
        os.environ,
        run.folder,
        run.ring_folder,
        options.max_steps,
        options.profile,
        options.oom_snapshot,
        options.kineto,
        options.log_to,
    )


def new_run(subject: str, command: list[str], options: RunOptions) -> Path:
    """Creates the folder of a new run and writes its manifest.

    Raises UsageError where the name is invalid or taken, OSError where nothing can be written.
    """
    folder = _create(subject, options, _may_have_others(command, options))
    manifest = Manifest(
        run_name=folder.name,
        started_unix_s=time.time(),
        command=masked(command),
        working_folder=options.working_folder or str(Path.cwd()),
        traceml_version=__version__,
        mode=options.mode,
        profile=options.profile,
        hostname=socket.gethostname(),
        boot_id=folders.boot_id(),
        user=folders.user_name(),
        ring_folder=folders.make_ring_folder(),
        expected_world_size=options.world_size,
        nodes=options.nodes,
    )
    try:
        folders.write_manifest(folder, manifest)
        if options.log_to:
            folders.write_mark(folder, LOG_TO_MARK, ",".join(options.log_to))
    except OSError:
        folders.discard(folder, manifest)
        raise
    return folder


_MACHINES = ("GROUP_WORLD_SIZE", "SLURM_NNODES", "PET_NNODES")
"""What torch's launcher, Slurm and Kubernetes' operator set to the number of a job's machines."""


def _may_have_others(command: list[str], options: RunOptions) -> bool:
    """Returns whether the job has, or may have, further machines or tasks that create runs."""
    said = (os.environ.get(name, "1") for name in _MACHINES)
    asks = any(word.replace("_", "-").startswith("--nnodes") for word in command)
    is_task = has_rank() and place_in_environment().local_world > 1
    return (
        options.nodes > 1
        or asks
        or is_task
        or spans_machines()
        or any(each != "1" for each in said)
    )


def _create(subject: str, options: RunOptions, may_have_others: bool) -> Path:
    """Creates the run's folder; on a machine that is not the job's first one, under a name of its
    own: they may share a logs folder. A job of several machines or tasks is never refused because
    of a run that may be its own."""
    name, logs, overwrite = options.run_name, options.logs_dir, options.overwrite
    if name is None:
        return folders.create_unique(logs, subject)
    spared_s = folders.FRESH_S if may_have_others else 0.0
    names = [name]
    if slurm_restarts():  # what was recorded before the job was put back into the queue stays
        names.append(f"{name}.restart-{slurm_restarts()}")
    for each in names:
        of_this_machine = f"{each}.{node_name(socket.gethostname())}"
        wanted = of_this_machine if options.node_rank else each
        try:
            return folders.create(logs, wanted, overwrite, spared_s)
        except UsageError:
            # Another machine of the same job may have been first, or a task whose run is over: only
            # their ranks know which is which, and containers often have one hostname.
            is_last = each is names[-1]
            is_valid = folders.is_run_name(f"{of_this_machine}-999")
            is_of_this_job = (may_have_others and is_valid) and (
                folders.began_within(folders.YOUNG_S, logs / wanted)
                if is_last
                else folders.is_going_on_elsewhere(logs / wanted)
            )
            if is_of_this_job:
                further = (f"{of_this_machine}-{number}" for number in itertools.count(2))
                free = itertools.chain([of_this_machine], further)
                return _create_first_free(logs, free, overwrite, spared_s)
            if is_last and not options.is_never_refused:
                raise
    if not folders.is_run_name(f"{name}-restart-1"):
        return folders.create_unique(logs, subject)
    restarts = (f"{name}-restart-{number}" for number in itertools.count(1))
    return _create_first_free(logs, restarts, overwrite, spared_s)


def _create_first_free(logs: Path, names: Iterable[str], overwrite: bool, spared_s: float) -> Path:
    """Creates a run's folder under the first name that is not taken, of names without end."""
    for each in names:
        try:
            return folders.create(logs, each, overwrite, spared_s)
        except UsageError:
            if not folders.is_run_name(each):  # too long: a number does not help
                raise
    raise AssertionError("the names have no end")


def _rebuild(folder: Path) -> None:
    from traceml.agent.close import recover

    recover(folder)
