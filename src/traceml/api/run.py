"""Runs a training command with tracing."""

from __future__ import annotations

import itertools
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from traceml import __version__
from traceml.agent.otlp_settings import why_not_exported
from traceml.launch import command as commands
from traceml.launch import supervise
from traceml.launch.messages import say
from traceml.launch.tasks_on_machine import TaskRun, TasksOnMachine
from traceml.launch.views import open_view
from traceml.model.environment import MOVED_MARK, NOTIFY, TOKEN
from traceml.model.errors import TraceMLError, UsageError
from traceml.model.launcher_place import (
    has_rank,
    place_in_environment,
    slurm_restarts,
    spans_machines,
)
from traceml.model.node import HeadAddress
from traceml.model.run import Manifest
from traceml.model.secrets import masked
from traceml.model.tracker import LOG_TO_MARK, closing_messages
from traceml.store import folder as folders
from traceml.store.node_folders import (
    closing_words,
    leave_head,
    node_name,
    parse_head,
    resolve,
)
from traceml.store.shared_names import note_wanted_name, settle

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
    head: HeadAddress | None = None
    """The machine that gets the records of all; `None`: the ranks find out."""
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
    tasks = TasksOnMachine.of_launcher()
    try:
        found = None if tasks is None else tasks.find_run()
        if found is not None:
            environment = _environment(found, options)
            return supervise.run_untraced(command, environment), None
        folder = new_run(subject, command, options)
        if options.head is not None:
            leave_head(folder, options.head)
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
    folder = folders.moved_to(to.manifest) or settle(folder)
    words = closing_words(folder)
    if words is None:
        _notify_of_end(folder, status, agents)
    else:
        say(words)
    with suppress(OSError):  # the folder was removed: that is said already
        for line in closing_messages(folder):
            say(line)
    return status, folder


def named_head(text: str, command: list[str]) -> HeadAddress:
    """Returns the head that `--head` names; raises UsageError, also for the port at which the ranks
    of the command meet: they could not if the head had it."""
    head = parse_head(text, os.environ.get(TOKEN, ""))
    host, port = commands.meeting_point(command, os.environ) or ("", 0)
    if port == head.port and (resolve(host) or host) == (resolve(head.host) or head.host):
        raise UsageError(
            f"--head {text} is where the ranks themselves meet, and only one of both can have that "
            f"port; expected another one that is free on {head.host}, the same on all machines"
        )
    return head


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
    """Creates the folder of a new run and writes its manifest; where its logs folder cannot be
    written, and the job has other machines that get the records, in a temporary one.

    Raises UsageError where the name is invalid or taken, OSError where nothing can be written.
    """
    try:
        return _make_folder(subject, command, options)
    except OSError as error:
        if not _may_have_machines(command, options):
            raise
        own = Path(tempfile.mkdtemp(prefix="traceml-logs-"))
        folder = _make_folder(subject, command, replace(options, logs_dir=own))
        trouble = (
            f"{options.logs_dir.absolute()} cannot be written here ({error.strerror}): this "
            f"machine's records are in {folder}"
        )
        folders.write_mark(folder, MOVED_MARK, trouble)
        say(trouble)
        return folder


def _make_folder(subject: str, command: list[str], options: RunOptions) -> Path:
    options = replace(options, node_rank=options.node_rank or commands.node_rank(command))
    folder, wanted = _create(subject, options, _may_have_others(command, options))
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
        note_wanted_name(folder, wanted)
        if options.log_to:
            folders.write_mark(folder, LOG_TO_MARK, ",".join(options.log_to))
    except OSError:
        folders.discard(folder, manifest)
        raise
    return folder


_MACHINES_OF_JOB = ("GROUP_WORLD_SIZE", "SLURM_NNODES", "PET_NNODES")
"""What torch's launcher, Slurm and Kubernetes' operator set to the number of a job's machines.

Slurm's is that of the whole allocation, which a batch script knows: `launcher_place` asks on how
many of them the ranks of one step are.
"""


def _may_have_others(command: list[str], options: RunOptions) -> bool:
    """Returns whether the job has, or may have, further machines or tasks that create runs."""
    is_task = has_rank() and place_in_environment().local_world > 1
    return is_task or _may_have_machines(command, options)


def _may_have_machines(command: list[str], options: RunOptions) -> bool:
    """Returns whether the job has, or may have, further machines, by its options, command and
    environment."""
    said = (os.environ.get(name, "1") for name in _MACHINES_OF_JOB)
    return (
        options.nodes > 1
        or commands.asks_for_machines(command)
        or spans_machines()
        or any(each != "1" for each in said)
    )


def _create(subject: str, options: RunOptions, may_have_others: bool) -> tuple[Path, str]:
    """Creates the run's folder; returns it and the name that the run is to have.

    On a machine that is not the job's first one, the folder gets a name of its own, because
    machines may share a logs folder. A job of several machines or tasks is never refused because of
    a run that may be its own.
    """
    name, logs = options.run_name, options.logs_dir
    if name is None:
        folder = folders.create_unique(logs, subject)
        return folder, folder.name
    spared_s = folders.FRESH_S if may_have_others else 0.0
    create = partial(folders.create, logs, overwrite=options.overwrite, spared_s=spared_s)
    names = [name]
    if slurm_restarts():  # what was recorded before the job was put back into the queue stays
        names.append(f"{name}.restart-{slurm_restarts()}")
    for each in names:
        of_this_machine = f"{each}.{node_name(socket.gethostname())}"
        wanted = of_this_machine if options.node_rank else each
        is_last = each is names[-1]
        try:
            return create(wanted), each
        except UsageError:
            may_be_own = may_have_others and folders.is_run_name(f"{of_this_machine}-999")
            if may_be_own and _is_of_this_job(logs / wanted, is_last):
                free = itertools.chain([of_this_machine], _numbered(of_this_machine, 2))
                return _create_first_free(create, free), each
            if is_last and not options.is_never_refused:
                raise
    if not folders.is_run_name(f"{name}-restart-1"):
        folder = folders.create_unique(logs, subject)
    else:
        folder = _create_first_free(create, _numbered(f"{name}-restart", 1))
    return folder, folder.name


def _is_of_this_job(folder: Path, is_last: bool) -> bool:
    """Returns whether the run that already has a name may belong to the job that asks for this
    name.

    Another machine of the job may have been faster, or another task that is already over. Nothing
    here tells them apart from other jobs: only their ranks know, and containers often have the same
    hostname. So for the last name to try, a run that began recently counts; for an earlier name,
    which is usually that of the run before the job was requeued, only one that is in progress on
    another machine.
    """
    if is_last:
        return folders.began_within(folders.YOUNG_S, folder)
    return folders.is_going_on_elsewhere(folder)


def _numbered(name: str, first: int) -> Iterator[str]:
    return (f"{name}-{number}" for number in itertools.count(first))


def _create_first_free(create: Callable[[str], Path], names: Iterable[str]) -> Path:
    """Creates a run's folder under the first name that is not taken; `names` is endless."""
    for each in names:
        try:
            return create(each)
        except UsageError:
            if not folders.is_run_name(each):  # too long: a number does not help
                raise
    raise AssertionError("the names have no end")


def _rebuild(folder: Path) -> None:
    from traceml.agent.close import recover

    recover(folder)
