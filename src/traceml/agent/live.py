"""Diagnoses the last steps twice a second, and writes the live findings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from traceml import __version__
from traceml.diagnose.finding_order import STRAGGLERS
from traceml.diagnose.live_findings import LiveDiagnosis, LiveSection, new_leads, update
from traceml.diagnose.user_code import wants_looks
from traceml.facts.facts import Facts
from traceml.facts.recent_window import MIN_STEPS, gather_recent
from traceml.model.finding import Finding, Section
from traceml.model.run import Manifest
from traceml.store.line_files import LiveFiles
from traceml.store.logged import earlier_params
from traceml.store.recent_steps import RecentSteps
from traceml.summaries.live_state import live_change, live_state

MAX_CORE_SHARE = 0.02
"""Many times what eight ranks need; a node with hundreds is evaluated less often."""

_encoder = msgspec.json.Encoder()


class Live:
    """The live findings of one node's ranks; no step is read back from disk for them."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.recent = RecentSteps(manifest)
        """The last steps, and what was sampled and reported meanwhile; others add to it."""
        self.recent.add_messages(earlier_params(folder))  # an agent before us has heard them
        self._files = LiveFiles(folder)
        self._shown = LiveDiagnosis()
        self._last_spent_s = 0.0
        self._rests_until_s = 0.0
        self.wants_stacks: tuple[int, ...] = ()
        """The processes of which it is worth knowing at which lines they spend their time."""

    def evaluate(self) -> None:
        """Diagnoses the last steps, if there is news and recent evaluations were cheap enough.

        One expensive evaluation does not count: the first one warms up caches and imports.
        """
        if time.monotonic() < self._rests_until_s:
            return
        began_s = time.thread_time()
        self._diagnose()
        spent_s = time.thread_time() - began_s
        usual_s = min(spent_s, self._last_spent_s)
        self._last_spent_s = spent_s
        self._rests_until_s = time.monotonic() + usual_s / MAX_CORE_SHARE

    def _diagnose(self) -> None:
        records = self.recent.window()
        if records is None:
            return
        recent, unix_s = gather_recent(records), time.time()
        before, self._shown = self._shown, update(self._shown, recent)
        found = self._shown.sections.get(Section.STEP_TIME, LiveSection()).found
        self.wants_stacks = _worth_looking_at(recent.now, found)
        changes = new_leads(before, self._shown)
        self._files.append(
            [_encoder.encode(live_change(live, recent.whole, unix_s)) for live in changes]
        )
        state = live_state(self._shown, recent, records, unix_s, __version__)
        self._files.write(_encoder.encode(state))


def _worth_looking_at(facts: Facts, found: Sequence[Finding]) -> tuple[int, ...]:
    """Returns the processes whose stacks are worth sampling: those of the ranks to blame, or the
    lowest rank's."""
    if facts.window.steps_analyzed < MIN_STEPS or not wants_looks(facts, found):
        return ()
    pids = {rank.rank.rank: rank.rank.pid for rank in facts.ranks_used}
    late = [rank for finding in found if finding.kind in STRAGGLERS for rank in finding.ranks]
    blamed = [pids[rank] for rank in dict.fromkeys(late) if rank in pids]
    return tuple(blamed) or tuple(pids[rank] for rank in sorted(pids)[:1])
