"""`traceml.init()`: a run and its agent for a script under plain python, or for a notebook."""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from traceml.model.environment import (
    AGENT,
    CLOSING_MARK,
    DEEP,
    DISABLED,
    ENDING,
    ESSENTIAL,
    HEAD,
    KINETO,
    LEAVING_MARK,
    MARKS,
    MAX_KINETO_STEPS,
    MAX_STEPS,
    PROFILE,
    PROFILES,
    RING_FOLDER,
    RUN_FOLDER,
    SUMMARY_MARK,
)
from traceml.model.errors import UsageError
from traceml.model.launcher_place import (
    has_rank,
    is_elastic,
    may_restart,
    place_in_environment,
    restart_count,
    slurm_restarts,
)
from traceml.model.printable import shell_word
from traceml.model.tracker import closing_messages
from traceml.trace import current
from traceml.trace.inject import sitecustomize
from traceml.trace.interruptions import is_interruption
from traceml.trace.marks import read_agent_mark
from traceml.trace.rank_meeting import RankMeeting, is_alive

STARTING_S = 30.0
"""How long a new agent may take to say where the run is."""
CLOSING_S = 60.0
"""How long the end of the process may wait for the agent to write the summary: it may have to wait
for the last records of other machines."""
OTHER_RANKS_S = 15.0
"""How long it may wait before that for the other ranks of this machine, which share the agent. It
goes on following those that end later, such as rank 0 while it evaluates the trained model."""

_POLL_S = 0.05

_close_run: Callable[[], None] | None = None
"""Ends this process's part in closing the run; `None` where it has none."""
_has_made_run = False


def init(
    run_name: str | None = None,
    logs_dir: str | Path = "logs",
    overwrite: bool = False,
    trace_max_steps: int | None = None,
    kineto: int | None = None,
    profile: str = ESSENTIAL,
) -> None:
    """Start a run in this process; it is closed when the process ends.

    Under torchrun and other launchers all ranks are one run, with one agent on each machine.
    Under `traceml run`, and when called again, this does nothing. `kineto` is of how many steps
    each rank keeps a trace of torch's profiler, as `--kineto`; `profile` is `essential` or `deep`,
    as `--profile`.
    Raises UsageError where the run's name cannot be had, `kineto` is no such number, or there is no
    such profile; whatever else goes wrong is said on stderr, and the script runs untraced.
    """
    if os.environ.get(DISABLED):
        return
    _require_kineto(kineto)
    _require_profile(profile)
    if current.current() is None:
        options = _options(run_name, logs_dir, overwrite)
        if profile == DEEP:
            options["profile"] = DEEP
        if not _start_run(options, trace_max_steps):
            return
        if profile == DEEP:
            os.environ[PROFILE] = DEEP  # for the hooks here, and in ranks that this process starts
        if kineto is not None:
            os.environ[KINETO] = str(kineto)
    _begin_with_torch()


def init_in_callback(
    run_name: str | None, logs_dir: str | Path, trace_max_steps: int | None = None
) -> None:
    """Do what `init` does, for the callback of a framework that starts its workers again, with the
    name that their run had: where it is taken the run is called NAME-restart-1, and so on."""
    if os.environ.get(DISABLED):
        return
    if current.current() is None:
        options = {**_options(run_name, logs_dir, overwrite=False), "is_never_refused": True}
        if not _start_run(options, trace_max_steps):
            return
        name = Path(os.environ[RUN_FOLDER]).name
        if run_name not in (None, name) and _has_made_run:
            _say(f"the run is called {name}: there is one named {run_name}, or none can be")
    _begin_with_torch()


def close() -> None:
    """End this process's part in the run, and the run where this process made it: for processes
    that end without Python's own clean-up."""
    global _close_run
    if _close_run is None:
        current.end()
        return
    atexit.unregister(_close_run)
    _close_run()
    _close_run = None


def _require_kineto(kineto: object) -> None:
    is_number = isinstance(kineto, int) and not isinstance(kineto, bool)
    if kineto is not None and not (is_number and 1 <= int(str(kineto)) <= MAX_KINETO_STEPS):
        raise UsageError(
            f"kineto={kineto!r} is not a number of steps; expected a whole number from 1 to "
            f"{MAX_KINETO_STEPS}, or None to record no step (argument of traceml.init)"
        )


def _require_profile(profile: object) -> None:
    if profile not in PROFILES:
        raise UsageError(
            f"profile={profile!r} is no profile; expected {' or '.join(map(repr, PROFILES))} "
            "(argument of traceml.init)"
        )


def join_run_of_other_machine() -> None:
    """Start an agent here for a run that a command on another machine began; the ranks of this one
    share it. Whatever goes wrong is said, and the script runs untraced."""
    begun = Path(os.environ.pop(RUN_FOLDER))
    rings = os.environ.pop(RING_FOLDER, "")
    limit = os.environ.get(MAX_STEPS, "")
    options = {
        **_options(None, _logs_folder_beside(begun), False),
        "subject": begun.name,
        "origin": str(begun),
        "joins_head": HEAD in os.environ,  # the agent reads it there: it holds the run's token
        "is_detached": HEAD in os.environ,  # by Ray, whose workers kill their children at their end
    }
    try:
        meeting = RankMeeting.of_run(begun, rings)
        _start_or_find(options, int(limit) if limit.isdigit() else None, meeting)
    except UsageError as error:
        if is_interruption(error):
            raise
        _say(f"the run cannot be recorded: {error}")


def _logs_folder_beside(begun: Path) -> Path:
    """The logs folder of a run of another machine, if it can be made here; else a temporary one."""
    try:
        begun.parent.mkdir(parents=True, exist_ok=True)
        if os.access(begun.parent, os.W_OK):
            return begun.parent
    except OSError as error:
        if is_interruption(error):
            raise
    return Path(tempfile.mkdtemp(prefix="traceml-logs-"))


def _start_run(options: dict[str, Any], max_steps: int | None) -> bool:
    return _start_or_find(options, max_steps, RankMeeting.of_launcher())


def _options(run_name: str | None, logs_dir: str | Path, overwrite: bool) -> dict[str, Any]:
    """What a new agent is told about the run that it has to make."""
    return {
        "run_name": run_name,
        "logs_dir": str(Path(logs_dir).absolute()),
        "overwrite": overwrite,
        "subject": _subject(),
        "command": [sys.executable, *sys.argv],
        "profile": DEEP if os.environ.get(PROFILE) == DEEP else ESSENTIAL,
        "working_folder": str(Path.cwd()),
        "pid": os.getpid(),
    }


def _start_or_find(
    options: dict[str, Any], max_steps: int | None, meeting: RankMeeting | None
) -> bool:
    """Have a run made, or find the one that another rank of this machine has had made."""
    if meeting is None or meeting.is_first():
        return _start_agent(options, max_steps, meeting)
    found = meeting.wait_for_run(STARTING_S)
    if found is None:
        _say("the run cannot be recorded: the rank that was first started no agent")
        return False
    _attach(found, max_steps)
    if place_in_environment().local_rank == 0:
        maker = found.get("maker")
        _register(functools.partial(_close_for, maker, found["folder"], os.getpid(), meeting))
    return True


def _register(close_run: Callable[[], None]) -> None:
    """Have this process close the run at its end."""
    global _close_run
    _close_run = close_run
    atexit.register(close_run)


def _start_agent(
    options: dict[str, Any], max_steps: int | None, meeting: RankMeeting | None
) -> bool:
    """Have a new agent make the run; the other ranks of this machine find it at the meeting."""
    agent: _StartedAgent | None = None
    answer: dict[str, Any] = {}
    if meeting is not None and is_elastic():
        options = {**options, "launcher": os.getppid(), "meeting": meeting.path}
    try:
        agent, answer = _ask_for_run(options)
    except OSError as error:
        if is_interruption(error):
            raise
        answer = {"trouble": f"no agent ({error})"}
    finally:
        if meeting is not None:
            meeting.tell({**answer, "maker": os.getpid()})
            if "folder" not in answer:
                atexit.register(meeting.end)
    if "error" in answer:
        raise UsageError(_in_python(answer["error"]))
    if agent is None or "folder" not in answer:
        _say(f"the run cannot be recorded: {answer.get('trouble', 'the agent did not start')}")
        return False
    _attach(answer, max_steps)
    global _has_made_run
    _has_made_run = True
    _register(functools.partial(_close, agent, answer["folder"], os.getpid(), meeting))
    return True


def _ask_for_run(options: dict[str, Any]) -> tuple[_StartedAgent, dict[str, Any]]:
    """Have an agent make a run; returns where it is, too.

    A rank that was started again finds its own name taken where the attempt before has closed its
    run, as after `sys.exit(1)`, whose status nobody sees in time: that run is kept, and this one
    gets another name.
    """
    restarts, name = restart_count() or slurm_restarts(), options["run_name"]
    others: list[str | None] = []
    if restarts and name:
        options = {**options, "overwrite": False}
        others = [f"{name}-restart-{restarts}", None]
    agent = _StartedAgent(["--new", json.dumps(options)])
    answer = agent.first_words()
    while "error" in answer and others:
        agent = _StartedAgent(["--new", json.dumps({**options, "run_name": others.pop(0)})])
        answer = agent.first_words()
        if "folder" in answer:
            _say(f"the run {name} of an attempt before is closed: {answer['folder']} has this one")
    return agent, answer


def _attach(run: dict[str, Any], max_steps: int | None) -> None:
    os.environ[RUN_FOLDER] = run["folder"]
    os.environ[RING_FOLDER] = run["ring_folder"]
    if max_steps is not None:
        os.environ[MAX_STEPS] = str(max_steps)
    if has_rank():  # its launcher collects its exit status, and tells nobody
        sitecustomize.mark_start()  # type: ignore[no-untyped-call] # for any Python
    current.current()


_IN_PYTHON = {"--run-name": "run_name", "--overwrite": "overwrite=True"}


def _in_python(error: str) -> str:
    """An error message for the command line, with its flags replaced by arguments of `init`."""
    for flag, argument in _IN_PYTHON.items():
        error = error.replace(flag, argument)
    return f"{error} (arguments of traceml.init)"


def _subject() -> str:
    """What the run is named after."""
    if "ipykernel" in sys.modules:
        return "notebook"
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else None
    return script.name if script is not None and script.is_file() else "python"


class _StartedAgent:
    """An agent's process and the pipe that tells it that we are here."""

    def __init__(self, words: Sequence[str]) -> None:
        package = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(package), *words],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is not its business
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            cwd="/",  # a module of the user's must not stand in for one of ours
        )
        assert self._process.stdin is not None
        self._control = self._process.stdin
        self._control_is = _identity(self._control.fileno())

    def first_words(self) -> dict[str, Any]:
        """The agent's answer about the run it was asked to make; empty where it failed to start."""
        source = self._process.stdout
        assert source is not None
        received = b""
        poll = select.poll()  # unlike select(), it knows descriptors beyond 1023
        poll.register(source, select.POLLIN)
        while not received.endswith(b"\n"):
            piece = source.read(1 << 16) if poll.poll(STARTING_S * 1000) else b""
            if not piece:
                self._process.kill()
                self._process.wait()
                return {}
            received += piece
        source.close()
        answer: dict[str, Any] = json.loads(received)
        if "folder" not in answer:
            self._process.wait()
        return answer

    def tell_the_end(self, with_other_ranks: bool = False) -> bool:
        """Tell the agent that the run is over, for us or for the other ranks too; returns whether
        the pipe to it still works."""
        try:
            # A script that closes descriptors may have a file of its own at this number by now.
            if _identity(self._control.fileno()) != self._control_is:
                return False
            ended = (
                b'{"leaving": true}\n'
                if with_other_ranks
                else b'{"ended": {"exit_status": null}}\n'
            )
            self._control.write(ended)
        except (OSError, ValueError) as error:
            if is_interruption(error):
                raise
            return False
        return True

    def is_done(self) -> bool:
        """Wait until the agent has written the summary; returns whether it could."""
        return self._process.wait(CLOSING_S) == 0

    def is_alive(self) -> bool:
        return self._process.poll() is None


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _begin_with_torch() -> None:
    """Set the hooks now, or as soon as the script imports torch."""
    if "torch" in sys.modules:
        from traceml.trace.current import begin

        begin()
        return
    waiting = sitecustomize.AfterTorch.__name__  # by name: the injected one is another module's
    if not any(type(finder).__name__ == waiting for finder in sys.meta_path):
        sys.meta_path.insert(0, sitecustomize.AfterTorch())


def _close(
    agent: _StartedAgent, folder: str, owner: int, meeting: RankMeeting | None = None
) -> None:
    """The process ends: finish the records, tell the agent, wait for the summary."""
    if os.getpid() != owner:
        return  # a forked child ends; the run goes on
    current.end()
    if meeting is not None:
        if _goes_on():
            return
        meeting.end()
    try:
        if agent.tell_the_end(with_other_ranks=meeting is not None):
            if meeting is not None and not _have_others_ended(agent.is_alive, folder):
                return  # they go on
            written = agent.is_done()
        elif agent.is_alive():
            return  # it cannot hear us, but it sees us end
        else:
            written = False
        written = written or _close_with_successor(folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        if is_interruption(error):
            raise
        written = False
    _say_how_it_ended(folder, written)


def _close_with_successor(folder: str) -> bool:
    """The agent was killed, say: another one brings to disk what the rings hold."""
    successor = _StartedAgent([folder, json.dumps({"owner": os.getpid()})])
    successor.tell_the_end()
    return successor.is_done()


def _goes_on() -> bool:
    """Whether the launcher starts this rank again, because it fails: then the run goes on."""
    from traceml.trace.failure import unhandled

    return may_restart() and unhandled() is not None


def _close_for(maker: int | None, folder: str, owner: int, meeting: RankMeeting) -> None:
    """The first rank of this machine ends, which did not make the run: where the process is gone
    that made it (a rank of an earlier attempt, or one that ended sooner), tell its agent, to which
    there is no pipe, and wait for the summary."""
    if os.getpid() != owner:
        return  # a forked child ends; the run goes on
    current.end()
    if _goes_on() or is_alive(maker):
        return
    meeting.end()
    is_agent_alive = functools.partial(_is_agent_alive, Path(folder))
    try:
        if is_agent_alive():
            (Path(folder) / MARKS / LEAVING_MARK).touch()
            if not _have_others_ended(is_agent_alive, folder):
                return  # they go on
            until_s = time.monotonic() + CLOSING_S
            while is_agent_alive() and time.monotonic() < until_s:
                time.sleep(_POLL_S)
            written = not is_agent_alive()
        else:
            is_closed = (Path(folder) / MARKS / SUMMARY_MARK).exists()
            written = is_closed or _close_with_successor(folder)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        if is_interruption(error):
            raise
        written = False
    _say_how_it_ended(folder, written)


def _is_agent_alive(folder: Path) -> bool:
    """Whether the agent of a run still works; one that has not said yet who it is has only just
    begun."""
    try:
        agent, _ = read_agent_mark(folder)
    except FileNotFoundError as error:
        if is_interruption(error):
            raise
        return folder.is_dir()
    return is_alive(agent)


def _have_others_ended(is_agent_alive: Callable[[], bool], folder: str) -> bool:
    """Wait until the agent closes the run, because the other ranks of this machine have ended too;
    returns whether it does so in time."""
    until_s = time.monotonic() + OTHER_RANKS_S
    while is_agent_alive() and not (Path(folder) / ENDING).exists():
        if time.monotonic() > until_s:
            return False
        time.sleep(_POLL_S)
    return True


def _say_how_it_ended(folder: str, written: bool) -> None:
    if not written and not (Path(folder) / MARKS / SUMMARY_MARK).exists():
        _say(
            f"the summary is not on disk yet; `traceml recover {shell_word(folder)}` writes it, "
            "or says why"
        )
    _say_what_was_delivered(Path(folder))
    _say_where_summary_is(Path(folder))


def _say_what_was_delivered(folder: Path) -> None:
    """What was not sent to people and collectors, and where trackers have the run."""
    try:
        for line in closing_messages(folder):
            _say(line)
    except OSError as error:
        if is_interruption(error):
            raise
        # the folder is gone


def _say_where_summary_is(folder: Path) -> None:
    """On a machine whose records are part of a run elsewhere, the agent has left a line."""
    try:
        _say((folder / MARKS / CLOSING_MARK).read_text())
        if folder.is_symlink():  # its target is in the folder of that run
            folder.unlink()
    except OSError as error:
        if is_interruption(error):
            raise
        # none: the run is here


def _say(text: str) -> None:
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"traceml: {text}\n")
        except (OSError, ValueError) as error:
            if is_interruption(error):
                raise
            # stderr is closed: nobody is listening
