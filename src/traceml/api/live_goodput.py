"""What the wall time of a run in progress went to so far, and its attempts, for the views that
follow it.

As with its layers, what a view wants to know costs the view, and neither the training nor the
agent, and takes a small share of a core.
"""

from __future__ import annotations

import time

from traceml.facts.attempts import find_attempts
from traceml.facts.goodput import goodput_of
from traceml.facts.stability import NOTHING_KNOWN
from traceml.model.errors import TraceMLError
from traceml.store.process_follower import SegmentGone
from traceml.store.run_follower import RunFollower
from traceml.store.run_so_far import run_so_far
from traceml.summaries.goodput import attempt_summaries, goodput_summary, with_goodput
from traceml.summaries.record import AttemptSummary, GoodputSummary, Summary

MAX_CORE_SHARE = 0.02


class LiveGoodput:
    """One run's goodput and attempts as they are written."""

    def __init__(self) -> None:
        self._goodput: GoodputSummary | None = None
        self._attempts: tuple[AttemptSummary, ...] = ()
        self._rests_until_s = 0.0

    def add_to(self, summary: Summary | None, follower: RunFollower) -> Summary | None:
        """Returns the summary of a run's last steps with what is known of its whole time."""
        if summary is None:
            return None
        if time.monotonic() >= self._rests_until_s:
            began_s = time.thread_time()
            self._update(follower)
            spent_s = time.thread_time() - began_s
            self._rests_until_s = time.monotonic() + spent_s / MAX_CORE_SHARE
        return with_goodput(summary, self._goodput, self._attempts)

    def _update(self, follower: RunFollower) -> None:
        try:
            records = run_so_far(follower.nodes())
        except (TraceMLError, OSError, SegmentGone):  # files that change: the next look finds them
            return
        attempts = find_attempts(records, NOTHING_KNOWN)
        self._goodput = goodput_summary(goodput_of(records, attempts), attempts)
        self._attempts = attempt_summaries(attempts, records.manifest.started_unix_s)
