"""Diagnoses the last steps up to twice a second, and writes the live findings."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from traceml import __version__
from traceml.agent.cgroup import Cgroup
from traceml.agent.host import cores
from traceml.diagnose.finding_order import STRAGGLERS
from traceml.diagnose.live_findings import LiveDiagnosis, LiveSection, new_leads, update
from traceml.diagnose.user_code import wants_looks
from traceml.facts.facts import Facts
from traceml.facts.recent_window import MIN_STEPS, gather_recent
from traceml.model.failure import AgentSaw
from traceml.model.finding import Finding, Section
from traceml.model.run import Manifest
from traceml.store.line_files import LiveFiles
from traceml.store.logged import earlier_reports
from traceml.store.node_tails import NodeTails
from traceml.store.recent_steps import RecentSteps
from traceml.store.step_trace_records import read_step_traces
from traceml.summaries.live_record import LiveState
from traceml.summaries.live_state import live_change, live_state

MACHINE_SHARE = 0.005
"""What evaluations may take of all cores that the job may use: where the training fills them, steps
take about so much longer. On two cores one rank is evaluated every second or two."""
MAX_CORE_SHARE = 0.02
"""What they may take of one core, however many there are."""
MAX_HEAD_SHARE = 0.5
"""The same for the head of a run over several machines, which evaluates the ranks of all: of a
thousand every two seconds or so."""
MAX_JOINED_SHARE = 0.0025
"""The same for another node, whose findings the head shows: its own say whose stacks to look at."""

OTHERS_TELL_S = 3.0
"""What other agents see of a stall is here by then: they look once a second, and send as often."""

_encoder = msgspec.json.Encoder()


class Live:
    """The live findings of one node's ranks, and on the head those of all nodes; no step of its own
    ranks is read back from disk for them."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self.recent = RecentSteps(manifest)
        """The last steps, and what was sampled and reported meanwhile; others add to it."""
        self.recent.add_messages(earlier_reports(folder))  # an agent before us has heard them
        self._nodes = NodeTails(folder)
        self._has_nodes = False
        """Whether other nodes have sent steps."""
        usable = cores(Cgroup().cpu_quota_cores()) or 1.0
        self._own_share = min(MAX_CORE_SHARE, MACHINE_SHARE * usable)
        self._core_share = self._own_share
        self._files = LiveFiles(folder)
        self._shown = LiveDiagnosis()
        self._last_spent_s = 0.0
        self._rests_until_s = 0.0
        self.state: LiveState | None = None
        """What was last shown; `None` before the first evaluation."""
        self.wants_stacks: tuple[int, ...] = ()
        """The processes of which it is worth knowing at which lines they spend their time."""

    def follow_nodes(self, own_pids: Iterable[int]) -> None:
        """Reads what other nodes have sent since the last time."""
        self._has_nodes = self._nodes.follow(self.recent, own_pids)
        self._core_share = MAX_HEAD_SHARE if self._has_nodes else self._own_share

    def leave_to_head(self) -> None:
        """Evaluates rarely from now on: the head evaluates the ranks of all nodes."""
        self._core_share = MAX_JOINED_SHARE

    def add_failures(self, seen: AgentSaw) -> None:
        """Adds what the agent observed. On the head of several nodes a new stall is held back for a
        moment: the rank that all wait for may be one of another node, whose agent says so soon."""
        if self._has_nodes:
            noticed_by_unix_s = time.time() - OTHERS_TELL_S
            older = (each for each in seen.stalls if each.noticed_unix_s <= noticed_by_unix_s)
            seen = replace(seen, stalls=tuple(older))
        self.recent.add_failures(seen)

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
        self._rests_until_s = time.monotonic() + usual_s / self._core_share

    def _diagnose(self) -> None:
        self.recent.add_failures_elsewhere(self._nodes.seen())
        records = self.recent.window()
        if records is None:
            return
        records = replace(
            records,
            step_traces=read_step_traces(self._folder),
            nodes=self._nodes.nodes(records),
        )
        recent, unix_s = gather_recent(records), time.time()
        before, self._shown = self._shown, update(self._shown, recent)
        found = self._shown.sections.get(Section.STEP_TIME, LiveSection()).found
        self.wants_stacks = _worth_looking_at(recent.now, found)
        changes = new_leads(before, self._shown)
        self._files.append(
            [_encoder.encode(live_change(live, recent.whole, unix_s)) for live in changes]
        )
        state = live_state(self._shown, recent, records, unix_s, __version__)
        self.state = state
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
