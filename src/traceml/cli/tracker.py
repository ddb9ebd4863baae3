"""A tracker's process; started by the agent, not by people."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from traceml.api.log_to_tracker import RunLogger
from traceml.cli.agent import JOB_SIGNALS
from traceml.model.errors import TraceMLError, UsageError
from traceml.model.secrets import masked_message
from traceml.web.report import FILE_NAME, write_report
from traceml.web.report_pages import reported

_STANDARD_INPUT, _STANDARD_OUTPUT, _STANDARD_ERROR = 0, 1, 2
_LAST_OUTPUT_S = 1.0
"""How long the end waits for what was printed: a process that a package started may hold the pipe
open."""
_MAX_LINE_BYTES = 1 << 20
"""A longer line is written in pieces."""
NICENESS = 5
"""What a tracker's package computes gives way to the training."""


def main(words: list[str]) -> int:
    """Logs the run of a folder to a tracker: the words are the tracker's name and the folder.

    The end of the standard input ends it; what the agent has written there before says whether the
    run is over. What a tracker's package prints goes to the agent's log, without secrets.
    """
    if len(words) != 2:
        raise UsageError("this is a command of the agent; people say `traceml run --log-to`")
    _prepare_process()
    mask_output()
    RunLogger(words[0], Path(words[1]), _make_report).run(_STANDARD_INPUT)
    return 0


def _prepare_process() -> None:
    """Makes this process one that outlives a job's signals and gives way to the training."""
    for job_signal in JOB_SIGNALS:
        signal.signal(job_signal, lambda number, frame: None)
    # Not blocked, as the agent has them: what a tracker's package starts would inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, JOB_SIGNALS)
    os.nice(NICENESS)
    os.umask(0o077)  # as the agent: what a run records is its owner's to show
    # Some trackers are told where to write from the script's folder on: nothing is imported there.
    sys.path[:] = [place for place in sys.path if place]


def mask_output() -> None:
    """From now on masks secrets in whatever this process, and what it starts, prints: a package may
    print the address of its server with a password in it."""
    log = os.dup(_STANDARD_ERROR)
    reader, writer = os.pipe()
    for stream in (_STANDARD_OUTPUT, _STANDARD_ERROR):
        os.dup2(writer, stream)
    os.close(writer)
    thread = threading.Thread(
        target=_copy_masked, args=(reader, log), name="traceml-masked-output", daemon=True
    )
    thread.start()
    atexit.register(_finish_output, thread, log)  # the first one registered runs last


def _copy_masked(reader: int, log: int) -> None:
    """Copies whole lines from a pipe to the log, without secrets, until the pipe ends."""
    held = b""
    while piece := os.read(reader, 1 << 16):
        held += piece
        if b"\n" in piece or len(held) > _MAX_LINE_BYTES:
            end = held.rfind(b"\n") + 1 or len(held)
            _write_masked(log, held[:end])
            held = held[end:]
    _write_masked(log, held)


def _write_masked(log: int, content: bytes) -> None:
    with suppress(OSError):  # a full disk: what follows may fit again
        os.write(log, masked_message(content.decode(errors="replace")).encode())


def _finish_output(thread: threading.Thread, log: int) -> None:
    """Closes this process's ends of the pipe and waits for the thread that empties it."""
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (_STANDARD_OUTPUT, _STANDARD_ERROR):
        os.dup2(log, stream)
    thread.join(_LAST_OUTPUT_S)


def _make_report(folder: Path) -> Path | None:
    """Writes the run's report into its folder; `None` where that is not possible."""
    path = folder / FILE_NAME
    try:
        write_report(reported([str(folder)], folder.parent).pages, path)
    except (TraceMLError, OSError) as error:
        print(f"the report could not be written: {error}", file=sys.stderr)
        return None
    return path
