"""Decides when people are notified of a run (`traceml run --notify`): of critical findings, a hang
and a failure while it goes on, once each, and of its end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from traceml.agent import notify_targets
from traceml.agent.notify_targets import Delivery, targets_in
from traceml.model.environment import UI_URL
from traceml.model.errors import UsageError
from traceml.model.run import Manifest
from traceml.store import folder as folders
from traceml.store.told_findings import END, NOTIFIED, ToldRecord
from traceml.summaries.live_record import LiveState, ToldFindings
from traceml.summaries.notification import (
    FAILURE,
    Notification,
    NotifiedPlace,
    critical_findings,
    event_of,
    of_end,
    of_finding,
)
from traceml.summaries.record import Summary

DEBOUNCE_S = 600.0
"""A kind of finding that went away and came back is not told again before."""
FAILURE_GRACE_S = 5.0
"""A run whose rank has died usually ends at once, and its end says it all."""


class Notifier:
    """Notifies all targets of one run; does nothing where there is none."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        tell: Callable[[str], None],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """`tell` is given what could not be delivered, in words for people; `environment` says who
        is notified."""
        self._folder, self._tell = folder, tell
        self._place = NotifiedPlace(manifest, str(folder), environment.get(UI_URL) or None)
        try:
            targets = targets_in(environment)
        except UsageError as error:
            targets = ()
            tell(f"nobody is notified of this run: {error}")
        self._deliveries = [Delivery(target, manifest.working_folder) for target in targets]
        self._told = ToldFindings(again_after_s=DEBOUNCE_S)
        self._record = ToldRecord(folder, NOTIFIED)
        self._told.restore(self._record.findings, time.monotonic())
        self._failed_since_s: dict[str, float] = {}
        self._end_sent_s: float | None = None

    def notify_of_new(self, state: LiveState | None, now_s: float) -> None:
        """Notifies of critical findings that are new."""
        if state is None or not self._deliveries:
            return
        for issue in self._told.find_new(critical_findings(state), now_s):
            kind = issue.kind or ""
            if self._may_end_the_run(kind, now_s):
                continue
            self._told.add(kind, now_s, issue.severity)
            self._send(of_finding(self._place, state, issue))
            self._record.add(kind, issue.severity or "")

    def _may_end_the_run(self, kind: str, now_s: float) -> bool:
        """Returns whether a failure is so recent that the end of the run may be about to tell it.

        One that is back was told before: that the run goes on is known.
        """
        if event_of(kind) != FAILURE or kind in self._told.kinds:
            return False
        return now_s - self._failed_since_s.setdefault(kind, now_s) < FAILURE_GRACE_S

    def finish(self, summary: Summary | None, exit_status: int | None) -> None:
        """Notifies of the end, waits a bounded time, and says what could not be delivered."""
        self.send_end(summary, exit_status)
        self.wait()

    def send_end(self, summary: Summary | None, exit_status: int | None) -> None:
        """Begins to notify of the end, once for a run."""
        if not self._deliveries or END in self._told.kinds:
            return
        self._end_sent_s = time.monotonic()
        self._told.add(END, self._end_sent_s)
        self._send(of_end(self._place, summary, exit_status, time.time()), is_last=True)

    def wait(self, until_s: float = math.inf) -> None:
        """Waits until everyone was notified of the end, for `END_TIMEOUT_S` and until this time
        (monotonic) at most, and says what could not be delivered."""
        if self._end_sent_s is None:
            return
        until_s = min(until_s, self._end_sent_s + notify_targets.END_TIMEOUT_S)
        for delivery in self._deliveries:
            delivery.wait(until_s)
        self._record.add(END, "")
        for delivery in self._deliveries:
            if (words := delivery.report()) is not None:
                self._tell(words)

    def _send(self, notification: Notification, is_last: bool = False) -> None:
        body = msgspec.json.encode(notification)
        for delivery in self._deliveries:
            delivery.put(body, is_last)


def notify_of_end(
    folder: Path,
    exit_status: int | None,
    tell: Callable[[str], None],
    environment: Mapping[str, str],
) -> None:
    """Notifies of the end of a run whose agent did not live to do so; `environment` is the
    agent's."""
    from traceml.summaries.read import read_summary

    if END in ToldRecord(folder, NOTIFIED).findings or not targets_in(environment):
        return
    has_summary = (folder / folders.SUMMARY).is_file()
    summary = read_summary(folder / folders.SUMMARY) if has_summary else None
    notifier = Notifier(folder, folders.read_manifest(folder), tell, environment)
    notifier.finish(summary, exit_status)
