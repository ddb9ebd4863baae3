"""Logs a run that is going on to one tracker, and its summary and report at the end.

It runs in a process of its own that the agent starts: whatever a tracker's package does, hanging
included, holds up neither the training nor the agent. Nothing is lost to the run by it; what could
not be logged is said at the end.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path

from traceml.api.push import push_run, traceml_id
from traceml.model.environment import MARKS
from traceml.model.finding import Section, Severity
from traceml.model.printable import printable, shorten
from traceml.model.secrets import masked_message
from traceml.model.tracker import (
    DIAGNOSIS,
    NEXT,
    OVER_MESSAGE,
    SAID_MARK,
    SCRIPT_RUN_MARK,
    STOPPED_MARK,
    TRACKERS,
    VERDICT,
)
from traceml.store import folder as folders
from traceml.store.descriptors import wait_until_readable
from traceml.store.line_files import LIVE_CHANGES, LIVE_STATE, LineFollower
from traceml.store.mlflow_runs import MlflowRuns
from traceml.store.mlflow_server import RefusedByServer
from traceml.store.regular_files import read_regular
from traceml.store.told_findings import ToldRecord
from traceml.store.tracker_writer import (
    LoggedEnd,
    LoggedFinding,
    LoggedRun,
    SwitchedOffWriter,
    TrackerWriter,
)
from traceml.summaries.build import flat_numbers, live_numbers
from traceml.summaries.live_record import (
    LiveState,
    ToldFindings,
    final_findings,
    read_change,
    read_live,
)
from traceml.summaries.read import read_summary
from traceml.summaries.record import Summary, has_failed

SEND_EVERY_S = 5.0
FIND_WITHIN_S = 10.0
"""How long the script may take, from its first steps on, to open its run before one of our own is
opened."""
LOOK_EVERY_S = 0.5
FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 120.0
"""After an attempt that failed nothing is sent for a while, which doubles each time."""
MAX_PENDING = 1000
"""Findings that wait for a tracker which fails; of more the oldest are dropped."""

MakeReport = Callable[[Path], Path | None]


class RunLogger:
    """Logs one run to one tracker until the agent says that it is over."""

    def __init__(self, tracker: str, folder: Path, make_report: MakeReport) -> None:
        self._tracker = tracker
        self._folder = folder
        self._make_report = make_report
        self._writer: TrackerWriter | None = None
        self._theirs: dict[str, str] = {}
        """The script's run that the writer was opened for."""
        self._changes = LineFollower(folder / LIVE_CHANGES)
        self._read_until_unix_s = -math.inf
        """When the newest change that was read was written."""
        self._findings: deque[LoggedFinding] = deque(maxlen=MAX_PENDING)
        self._record = ToldRecord(folder, tracker)
        """What the tracker was sent, by the processes of earlier agents, too."""
        self._told = ToldFindings()
        self._told.restore(self._record.findings, time.monotonic())
        self._last_step: int | None = self._record.step
        self._rests_until_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._failures = 0
        self._last_error = ""

    def run(self, control: int) -> None:
        """Logs until the pipe from the agent ends."""
        deadline = _Deadline(FIND_WITHIN_S)
        is_over = _wait(control, lambda: self._script_run() or deadline.has_passed())
        while is_over is None:
            self._send_live()
            is_over = _wait(control, _Deadline(SEND_EVERY_S).has_passed)
        if is_over:
            is_whole = self._attempt(self._finish)
            self._say(self._words(is_whole))
        elif self._writer is not None:
            self._attempt(self._writer.close)

    # Live

    def _send_live(self) -> None:
        self._read_findings()
        if time.monotonic() < self._rests_until_s:
            return
        if self._attempt(self._send_new):
            self._pause_s = FIRST_PAUSE_S
        else:
            self._rests_until_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def _send_new(self) -> None:
        writer = self._open()
        live = _read_live_state(self._folder)
        if live is not None and live.step is not None and live.step != self._last_step:
            writer.log_values(live_numbers(live.summary), live.step)
            self._last_step = live.step
            self._record.set_step(live.step)
        self._send_findings(writer)

    def _read_findings(self) -> None:
        lines, is_anew = self._changes.read_new()
        read_until_unix_s = self._read_until_unix_s
        for change in filter(None, map(read_change, lines)):
            if is_anew and change.unix_s <= read_until_unix_s:
                continue  # the older half of the file was dropped, and this was read before
            self._read_until_unix_s = max(self._read_until_unix_s, change.unix_s)
            if not _is_worth_logging(change.severity, change.section):
                continue
            if self._told.was_told_before_us(change.kind, change.severity, time.monotonic()):
                continue
            self._told.add(change.kind, time.monotonic(), change.severity)
            text = _text(change.summary, change.action, change.since_step, change.until_step)
            step = change.step or change.since_step
            self._findings.append(LoggedFinding(change.kind, change.severity, text, step))

    def _add_final_findings(self, summary: Summary, step: int) -> None:
        """Adds the leading findings of the whole run that live views did not come to show: what
        ended it, and what a short run did not last long enough for."""
        leads = {issue.section: issue for issue in reversed(final_findings(summary))}
        worth = [lead for lead in leads.values() if _is_worth_logging(lead.severity, lead.section)]
        for lead in self._told.find_new(worth, time.monotonic()):
            text = _text(lead.summary, lead.action, lead.since_step, lead.until_step)
            severity = lead.severity or Severity.INFO.value
            self._findings.append(LoggedFinding(str(lead.kind), severity, text, step))

    def _send_findings(self, writer: TrackerWriter) -> None:
        while self._findings:
            finding = self._findings[0]
            writer.log_finding(finding)
            self._findings.popleft()
            self._record.add(finding.kind, finding.severity)

    # The tracker

    def _open(self) -> TrackerWriter:
        """Returns the writer for the run that the script has open; once that is another, a new one.
        A run of our own is kept, whatever the script opens later."""
        theirs = self._script_run()
        if self._writer is not None and (not self._theirs or theirs == self._theirs):
            return self._writer
        if self._writer is not None:
            self._attempt(self._writer.close)
        self._writer = _open_writer(self._tracker, self._logged_run(theirs))
        self._theirs = theirs
        return self._writer

    def _logged_run(self, theirs: dict[str, str]) -> LoggedRun:
        manifest = folders.read_manifest(self._folder)
        return LoggedRun(
            name=manifest.run_name,
            traceml_id=traceml_id(self._folder / folders.SUMMARY),
            folder=self._folder,
            started_unix_s=manifest.started_unix_s,
            working_folder=manifest.working_folder,
            script_run=theirs,
        )

    def _script_run(self) -> dict[str, str]:
        """Returns what the training process has found; empty where there is nothing yet."""
        try:
            content = read_regular(self._folder / MARKS / f"{SCRIPT_RUN_MARK}{self._tracker}")
            found: dict[str, str] = json.loads(content)
        except (OSError, ValueError):
            return {}
        return found

    def _attempt(self, what: Callable[[], None]) -> bool:
        """Does something with the tracker; whatever goes wrong is counted, kept and logged."""
        try:
            what()
        except Exception as error:  # noqa: BLE001 - a package of somebody else's, said at the end
            self._failures += 1
            said = masked_message(" ".join(str(error).split()))
            self._last_error = shorten(printable(f"{type(error).__name__}: {said}"), 300)
            print(masked_message(traceback.format_exc()), file=sys.stderr)
            return False
        return True

    # The end

    def _finish(self) -> None:
        writer = self._open()
        summary = read_summary(self._folder / folders.SUMMARY)
        steps = None if summary.step_time is None else summary.step_time.metadata
        step = int((steps and steps.training_total_steps) or self._last_step or 0)
        self._read_findings()
        self._add_final_findings(summary, step)
        self._send_findings(writer)
        report = self._make_report(self._folder)
        files = [report, self._folder / folders.SUMMARY, self._folder / folders.TEXT]
        found = summary.primary_diagnosis
        texts = {VERDICT: found.status, DIAGNOSIS: found.summary, NEXT: found.action}
        writer.finish(
            LoggedEnd(
                step=step,
                numbers=flat_numbers(summary),
                texts={name: text for name, text in texts.items() if text},
                summary_text=summary.text or "",
                files=tuple(path for path in files if path is not None and path.is_file()),
                has_failed=has_failed(summary, summary.exit_status),
            )
        )

    def _words(self, is_whole: bool) -> str:
        """Returns the line for the user."""
        if isinstance(self._writer, SwitchedOffWriter):
            return self._writer.where
        warning = TRACKERS[self._tracker].version_warning()
        where = "" if self._writer is None else f": {self._writer.where}"
        parts = [
            f"logged to {self._tracker}{where}"
            if is_whole
            else f"not logged to {self._tracker}{where} ({self._last_error}); the summary is in "
            f"{self._folder}"
        ]
        if is_whole and self._failures:
            times = "once" if self._failures == 1 else f"{self._failures} times"
            parts.append(f"live values could not be sent {times} ({self._last_error})")
        stopped = folders.read_mark(self._folder, f"{STOPPED_MARK}{self._tracker}")
        if stopped is not None:
            parts.append(f"live values stopped: {stopped}")
        return printable("; ".join([*parts, *([warning] if warning else [])]))

    def _say(self, words: str) -> None:
        try:
            folders.write_mark(self._folder, f"{SAID_MARK}{self._tracker}", words)
        except OSError as error:
            print(f"{words} ({error})", file=sys.stderr)


def _open_writer(tracker: str, run: LoggedRun) -> TrackerWriter:
    """Returns the writer of a tracker; it imports the tracker's package and may raise anything."""
    if tracker == "wandb":
        from traceml.store.wandb_writer import WandbWriter, why_disabled

        if (why := why_disabled(run, os.environ)) is not None:
            return SwitchedOffWriter(f"W&B is disabled ({why}), nothing was logged")
        return WandbWriter(run)
    if tracker == "tensorboard":
        from traceml.store.tensorboard_writer import TensorboardWriter

        return TensorboardWriter(run)
    if tracker == "trackio":
        from traceml.store.trackio_writer import TrackioWriter

        return TrackioWriter(run)
    from traceml.store.mlflow_writer import MlflowWriter

    return MlflowWriter(run, lambda store: _push(store, run.folder / folders.SUMMARY))


def _push(store: MlflowRuns, summary: Path) -> None:
    """Sends a run as `traceml push` does; raises RefusedByServer where something was not taken."""
    sent = push_run(store, summary)
    if sent.problems:
        raise RefusedByServer(f"not sent: {'; '.join(sent.problems)}")


def _wait(control: int, is_due: Callable[[], object]) -> bool | None:
    """Waits until something is due (`None`), or the pipe has ended: whether the run is over."""
    while not is_due():
        if wait_until_readable([control], LOOK_EVERY_S):
            return os.read(control, len(OVER_MESSAGE)) == OVER_MESSAGE
    return None


def _is_worth_logging(severity: str | None, section: str | None) -> bool:
    """Whether a finding says more than that nothing was found."""
    is_severe = severity not in (None, Severity.INFO.value)
    return is_severe or section == Section.STEP_TIME.value


def _text(summary: str | None, action: str | None, since: int | None, until: int | None) -> str:
    """Returns a finding in words: at which step or since which one, what, and what to do."""
    when = "" if since is None else f"{'at' if until == since else 'from'} step {since}: "
    return f"{when}{summary or ''} {action or ''}".strip()


class _Deadline:
    """A moment some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._at_s = time.monotonic() + seconds

    def has_passed(self) -> bool:
        return time.monotonic() >= self._at_s


def _read_live_state(folder: Path) -> LiveState | None:
    try:
        return read_live(read_regular(folder / LIVE_STATE))
    except OSError:
        return None
