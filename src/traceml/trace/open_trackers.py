"""Finds the runs that the script has open in experiment trackers, for the processes that log there.

Nothing is imported for it: modules that the script has loaded are looked at, at most once in
`LOOK_EVERY_S`, and what is found is left in a small file. Only an open run of Weights & Biases can
be written by nobody but the process that has it: `WandbValues` does that, in a thread of its own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

from traceml.model.environment import LOG_TO
from traceml.model.errors import UsageError
from traceml.model.secrets import masked_message, without_credentials
from traceml.model.tracker import (
    DISABLED,
    LOG_TO_MARK,
    SCRIPT_RUN_MARK,
    STOPPED_MARK,
    WANDB_FILLED_MARK,
    WANDB_VALUES_MARK,
    parse_trackers,
)
from traceml.trace.ask_agent import end_values
from traceml.trace.forked import lock_for_forks
from traceml.trace.interruptions import is_interruption, variables_of
from traceml.trace.marks import read_mark, write_mark
from traceml.trace.script_objects import own_attributes
from traceml.trace.session import Session

LOOK_EVERY_S = 2.0
VALUES_EVERY_S = 2.0
"""How often it is asked whether there are new values for the open W&B run."""
MAX_FORK_WAIT_S = 0.05
"""How long a fork, such as that of a data loader's worker, waits for our call into W&B to end: such
a call takes less than a millisecond, and one that hangs must not hold up the workers."""
MAX_ERROR_LETTERS, MAX_REASON = 10_000, 300
"""Of an exception's text what is searched for secrets, and what is kept of it."""
_EVENT_THREADS = {
    "tensorboard.summary.writer.event_file_writer": ("_record_writer", "_writer"),
    "tensorboardX.event_file_writer": ("_record_writer",),
}
"""The modules of the threads that write event files, and the attributes, one in the other, that
lead from such a thread to the object which has its file's path."""
_EVENT_FILE = "tfevents"
_LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
"""The modules of Lightning's two trainers."""


def look_for_runs(session: Session) -> None:
    """Looks for open runs from now on, if `traceml run --log-to` asked for it.

    The agent of this machine is asked, too: it may be another than that of the command.
    """
    try:
        names = parse_trackers(os.environ[LOG_TO]) if os.environ.get(LOG_TO) else ()
    except UsageError as error:  # the variable was set by hand
        if is_interruption(error):
            raise
        names = ()
    if names:
        session.guard(ask_agent, any_thread=True)(session, names)


def ask_agent(session: Session, names: tuple[str, ...]) -> None:
    """Has the agent log the run to these trackers, besides those that it logs to already."""
    asked = (read_mark(session.run_folder, LOG_TO_MARK) or b"").decode(errors="replace")
    before = tuple(filter(None, asked.split(",")))
    if not set(names) <= set(before):
        wanted = ",".join(dict.fromkeys((*before, *names)))
        write_mark(session.run_folder, LOG_TO_MARK, wanted.encode())
    _trackers_of(session).add(names)


def _trackers_of(session: Session) -> OpenTrackers:
    if session.open_trackers is None:
        session.open_trackers = OpenTrackers(session)
    return session.open_trackers


class OpenTrackers:
    """The runs that the script has open, as rank 0 sees them from its training thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._names: set[str] = set()
        self._due_s = 0.0
        self._known: dict[str, dict[str, str]] = {}
        self._wandb: WandbValues | None = None

    def add(self, names: tuple[str, ...]) -> None:
        """Looks for the runs of these trackers, too."""
        if not self._names:
            self._session.on_memory_reading.append(self._find_runs)
        self._names.update(names)

    def _find_runs(self) -> None:
        now_s = time.monotonic()
        if now_s < self._due_s or self._session.rank() != 0:
            return
        self._due_s = now_s + LOOK_EVERY_S
        for name in tuple(self._names):
            find = functools.partial(self._find_run, name)
            self._session.guard(find, any_thread=True, failed=self._disable(name))()

    def _disable(self, name: str) -> Callable[[BaseException], None]:
        """What is done where a tracker's package raises, or nothing can be written: that tracker is
        not looked at any more, training and tracing go on, and people are told at the end."""

        def stop(error: BaseException) -> None:
            self._names.discard(name)
            _leave_reason(self._session, name, error)

        return stop

    def _find_run(self, name: str) -> None:
        found = _FINDERS[name]()
        if _is_disabled(found) and name in self._known:
            return  # what was logged so far has its end where the rest is
        if found is not None and found != self._known.get(name):
            self._known[name] = found
            content = json.dumps(found).encode()
            write_mark(self._session.run_folder, f"{SCRIPT_RUN_MARK}{name}", content)
        if name == "wandb" and found is not None and not _is_disabled(found):
            self._log_to_open_run()

    def _log_to_open_run(self) -> None:
        run = sys.modules["wandb"].run
        if self._wandb is None or not self._wandb.is_of(run):
            self._wandb = WandbValues(self._session, run)
            self._wandb.start()


class WandbValues:
    """Logs what the tracker process has left for the script's open W&B run, until that is closed.

    In a thread of its own: whatever holds up W&B holds up no step. It never ends a row of the
    script's: its values join the row that is open, or the next one.
    """

    def __init__(self, session: Session, run: Any) -> None:
        self._session = session
        self._run = run
        files = getattr(run, "dir", None)
        # Absolute as soon as the run is found: the script may go to another folder.
        self._files = os.path.abspath(files) if isinstance(files, str) else None  # noqa: PTH100
        self._number = 0
        self._is_over = False
        self._has_end = False
        self._log = session.guard(self._log_new, any_thread=True, failed=self._end)
        self._thread = threading.Thread(
            target=self._follow, name="traceml-wandb", daemon=True
        )  # daemon: the end of the script waits for nothing of ours

    def start(self) -> None:
        """Begins to log; the run's end is seen to where the script closes it, and before W&B does
        at the end of the process."""
        self._thread.start()
        self._session.guard(self._watch_end, any_thread=True, failed=self._end)()

    def _watch_end(self) -> None:
        put = self._session.guard(self._put_end, any_thread=True, failed=self._end)
        atexit.register(put)  # after W&B's own, so called before it
        module: Any = sys.modules.get("wandb.sdk.wandb_run")
        hooks = getattr(self._run, "_teardown_hooks", None)
        if isinstance(hooks, list) and hasattr(module, "TeardownHook"):  # else a version without
            hooks.append(module.TeardownHook(put, module.TeardownStage.EARLY))

    def _put_end(self) -> None:
        """Puts the run's numbers and verdict so far into the summary of the script's run, once;
        waits only for our agent."""
        is_ours = os.getpid() == self._session.pid and not self._has_end
        if not is_ours or getattr(self._run, "_is_finished", False):
            return
        self._has_end = True
        values = end_values()
        if values:
            self._run.summary.update(values)
            self._note_filled()

    def _note_filled(self) -> None:
        if getattr(self._run, "offline", False) and self._files is not None:
            folder = os.path.dirname(self._files)  # noqa: PTH120 - as W&B names it
            write_mark(self._session.run_folder, WANDB_FILLED_MARK, folder.encode())

    def is_of(self, run: Any) -> bool:
        """Whether this logs to a run, or did until it was closed."""
        return self._run is run

    def _follow(self) -> None:
        while not self._is_over:
            time.sleep(VALUES_EVERY_S)
            self._log()

    def _log_new(self) -> None:
        if sys.modules["wandb"].run is not self._run:  # closed, or followed by another
            self._is_over = True
            return
        content = read_mark(self._session.run_folder, WANDB_VALUES_MARK)
        if content is None:
            return
        found = json.loads(content)
        # What was left for a run that the script has closed is nothing of this one.
        is_ours = found.get("run") in (None, self._run.id)
        if is_ours and found["number"] > self._number:
            with _no_fork():  # a child would inherit W&B's locks as they are in this moment
                if not self._number:  # charts of ours have the training's steps below them
                    self._run.define_metric("traceml/*", step_metric="traceml/live/step")
                    self._note_filled()
                self._number = found["number"]
                self._run.log(found["values"], commit=False)

    def _end(self, error: BaseException) -> None:
        """The run was closed while we logged, or W&B fails: then it is left alone."""
        self._is_over = True
        is_open = getattr(sys.modules.get("wandb"), "run", None) is self._run
        if is_open and not getattr(self._run, "_is_finished", False):
            _leave_reason(self._session, "wandb", error)


@functools.cache
def _no_fork() -> AbstractContextManager[bool]:
    """The one lock that keeps this process from forking; made when it is first needed, because
    nothing can be unregistered."""
    return lock_for_forks(MAX_FORK_WAIT_S)


def _find_wandb() -> dict[str, str] | None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    if run is None:
        return None
    if getattr(run, "disabled", False):
        return {"mode": DISABLED}
    names = ("id", "name", "project", "entity", "group")
    found = {name: getattr(run, name, None) for name in names}
    # Not by `run.settings`, which copies all of them: a tenth of a millisecond each time.
    server = getattr(getattr(run, "_settings", None), "base_url", None)
    found["server"] = without_credentials(str(server)) if server else None
    is_offline = bool(getattr(run, "offline", False))
    return {
        **_texts(found),
        "mode": "offline" if is_offline else "online",
        "folder": str(Path.cwd()),
    }


def _is_disabled(found: dict[str, str] | None) -> bool:
    """Whether the script has opened its run only so that nothing is logged."""
    return found is not None and found.get("mode") == DISABLED


def _find_mlflow() -> dict[str, str] | None:
    """The run that is active in the training thread: MLflow keeps one for each thread. Without one,
    that of Lightning's logger, which writes its run by the id alone."""
    module = sys.modules.get("mlflow")
    active_run = getattr(module, "active_run", None)
    run = active_run() if active_run is not None else None
    if module is None:
        return None
    if run is not None:
        place: Any = run.info.run_id, run.info.experiment_id, module.get_tracking_uri()
    else:
        place = _mlflow_run_of_lightning()
    if place is None:
        return None
    number, experiment, uri = place
    found = {"id": number, "experiment": experiment, "uri": without_credentials(str(uri))}
    return {**_texts(found), "folder": str(Path.cwd())}


def _mlflow_run_of_lightning() -> tuple[str, str, str] | None:
    """Run, experiment and address of the first `MLFlowLogger` that has made its run, of the trainer
    that is running. Its attributes are read: its properties would make one."""
    for logger in _loggers_of_lightning():
        own = own_attributes(logger)
        if type(logger).__name__ == "MLFlowLogger" and own.get("_run_id"):
            return own["_run_id"], own.get("_experiment_id", ""), own.get("_tracking_uri", "")
    return None


def _loggers_of_lightning() -> list[Any]:
    """The loggers of the trainer in whose call this is; empty outside one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and any(name in sys.modules for name in _LIGHTNING):
        if frame.f_globals.get("__name__") in _LIGHTNING:
            loggers = own_attributes(variables_of(frame).get("self")).get("_loggers")
            if isinstance(loggers, list):
                return loggers
        frame = frame.f_back
    return []


def _find_tensorboard() -> dict[str, str] | None:
    """The folder of the first `SummaryWriter` that is open, torch's or tensorboardX's: each has a
    thread that knows its file."""
    if not any(module in sys.modules for module in _EVENT_THREADS):
        return None
    files = sorted(filter(None, map(_event_file, threading.enumerate())))
    if not files:
        return None
    _, file = files[0]
    folder = os.path.dirname(file)  # noqa: PTH120 - it may be an address
    return {"folder": folder if "://" in folder else os.path.abspath(folder)}  # noqa: PTH100


def _event_file(thread: threading.Thread) -> tuple[str, str] | None:
    """The name and the path of the file that a thread writes, if it is an event file."""
    holder: Any = thread
    for attribute in _EVENT_THREADS.get(type(thread).__module__, ()):
        holder = own_attributes(holder).get(attribute)
    if holder is thread:
        return None
    for value in own_attributes(holder).values():
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        if isinstance(text, str) and _EVENT_FILE in text:
            return os.path.basename(text), text  # noqa: PTH119 - begins with the time
    return None


def _find_trackio() -> dict[str, str] | None:
    variables = sys.modules.get("trackio.context_vars")
    current = getattr(variables, "current_run", None)
    run = current.get() if current is not None else None
    if run is None:
        return None
    space, server = getattr(run, "_space_id", None), getattr(run, "_server_base_url", None)
    server = without_credentials(str(server)) if server else None
    found = {"project": run.project, "name": run.name, "space": space, "server": server}
    # Where its databases are, which only the script may have said.
    store = getattr(sys.modules.get("trackio.utils"), "TRACKIO_DIR", None)
    found["store"] = os.path.abspath(store) if store else None  # noqa: PTH100
    return _texts({**found, "id": getattr(run, "id", None)})


_FINDERS: dict[str, Callable[[], dict[str, str] | None]] = {
    "wandb": _find_wandb,
    "mlflow": _find_mlflow,
    "tensorboard": _find_tensorboard,
    "trackio": _find_trackio,
}


def _texts(values: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value}


def _leave_reason(session: Session, name: str, error: BaseException) -> None:
    """Leaves why no more is logged to a tracker from here, for the line that is said at the end."""

    def leave() -> None:
        text = f"{type(error).__name__}: {error}"[:MAX_ERROR_LETTERS]
        words = masked_message(" ".join(text.split()))
        try:
            reason = words[:MAX_REASON].encode(errors="replace")
            write_mark(session.run_folder, f"{STOPPED_MARK}{name}", reason)
        except OSError as trouble:
            if is_interruption(trouble):
                raise
            # the disk is full, and the agent says so

    session.guard(leave, any_thread=True)()  # the text of an exception is somebody else's code
