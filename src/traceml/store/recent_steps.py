"""The last steps of every rank, kept in memory as they come: what live views look at.

A window is the last hundred steps, or those of the last ten seconds where there are more: a hundred
so that a stall every twentieth step weighs the same from one second to the next, ten seconds so
that fast loops are seen together with ten samples of the host and the GPUs. What goes wrong comes
along: what the ranks reported and logged of their loss, and what the agent saw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from traceml.model.failure import NOTHING_SEEN, AgentSaw, FailureReport
from traceml.model.parallel_place import NO_PLACE, ParallelPlace
from traceml.model.run import Manifest
from traceml.model.sample import Sample, StackBurst
from traceml.model.settings import Settings
from traceml.store import failures, logged
from traceml.store.attempt_groups import group_lives
from traceml.store.load import by_final_rank, rank_records
from traceml.store.node_merge import seen_by_all
from traceml.store.records import BLOCK_DTYPE, STEP_DTYPE, LoggedMetric, RankRecords, RunRecords
from traceml.store.restarted_ranks import ProcessSpan, number_ranks, restarts_by_rank
from traceml.store.rings import RingHead
from traceml.store.step_columns import Steps
from traceml.store.step_records import incomplete_so_far, is_incomplete, joined, step_numbers

WINDOW_STEPS = 100
WINDOW_S = 10.0
MAX_STEPS = 1_000
"""Faster loops are judged by so many steps, so that evaluating eight ranks takes less than 10
ms."""
MAX_SAMPLES = 60
MAX_REPORTS = 64
MAX_LOGGED = MAX_STEPS
MAX_UNREAD_BYTES = 4 << 20
MAX_LOGGED_VALUES = 16 * MAX_LOGGED
"""Losses and gradient norms, whatever the number of their names."""
MAX_BURSTS = 8
"""Bursts of stack samples; earlier ones lie before any window."""
MAX_STACK_SAMPLES = 400
"""Of those bursts together, where there is more than one: the deep profile takes long ones."""
NEWS_LOOKS = 8
"""Windows without a new step after a failure: a finding is shown once it has lasted, and one that
it contradicts disappears once it was not found for long enough."""

Ints = npt.NDArray[np.int64]


class StepSource(Protocol):
    """Where the steps of one process are read from: its ring, or its newest record file."""

    path: Path

    def head(self) -> RingHead:
        """Returns who takes the steps."""

    def steps_from(self, number: int, everything: bool) -> npt.NDArray[Any]:
        """Returns the steps after this one."""


@dataclass
class _Tail:
    """The last records of one process."""

    head: RingHead
    before: int = 0
    """The number, from 0, of its first step among those of the run."""
    steps: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, STEP_DTYPE))
    numbers: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """The number of each record's complete step in the process, from 0; an incomplete record has
    the number of the step after it."""
    read: int = 0
    """The number of the last record that was read from the ring."""
    incomplete: int = 0
    first_ns: int | None = None
    """When its first record began; `None` before it was read …"""
    last_ns: int = 0
    """… and when the last one ended."""
    has_ended: bool = False

    def append(self, new: npt.NDArray[Any]) -> None:
        """Appends new records, and drops those that are too old for any window."""
        numbers = step_numbers(new, self.incomplete)
        self.read = int(new["sequence"][-1])
        if self.first_ns is None:
            self.first_ns = int(new["start_ns"][0])
        self.last_ns = int(new["start_ns"][-1]) + max(0, int(new["wall_ns"][-1]))
        self.incomplete += int(np.count_nonzero(is_incomplete(new)))
        steps = joined([self.steps, new])
        first = _first_in_window(steps)
        self.steps = steps[first:]
        self.numbers = np.concatenate([self.numbers, numbers])[first:]

    @property
    def own_steps(self) -> int:
        """How many complete steps the process has taken."""
        return self.read - self.incomplete

    @property
    def taken(self) -> int:
        """The number, in the run and from 0, of the complete step that would follow its last."""
        return self.before + self.own_steps

    @property
    def span(self) -> ProcessSpan:
        """From its first record to its last one."""
        return ProcessSpan(self.head.rank, self.first_ns, self.last_ns if self.has_ended else None)

    def end(self) -> None:
        """Drops its records after its process has ended."""
        self.has_ended = True
        self.steps, self.numbers = self.steps[:0], self.numbers[:0]

    def has_steps(self) -> bool:
        """Whether any of the records is a complete step."""
        return not is_incomplete(self.steps).all()

    def records(self) -> RankRecords:
        """Returns the rank's last steps with the numbers that they have in the run."""
        found = rank_records(self.head, self.steps, np.empty(0, BLOCK_DTYPE))
        return replace(
            found,
            steps=_renumbered(self.steps, self.numbers + self.before),
            earlier_steps=int(self.numbers[0]),
            former_steps=self.before,
            regions=(),  # they are counted from the process's beginning
            health=replace(found.health, steps_lost=0),
        )


class RecentSteps:
    """The last steps of all ranks, and the samples of the same time on this machine."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._tails: dict[Path, _Tail] = {}
        self._lives: list[_Tail] = []
        """All processes, with those that have ended."""
        self._is_numbered = True
        """Whether no process has come or ended since steps were last numbered by attempt."""
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._reports: deque[bytes] = deque(maxlen=MAX_REPORTS)
        self._unread: deque[bytes] = deque()
        """Messages with metrics that nobody has looked into yet."""
        self._unread_bytes = 0
        self._logged: deque[dict[str, Any]] = deque(maxlen=MAX_LOGGED)
        self._params = logged.Params()
        self._settings: dict[int, Settings | None] = {}
        """By process: what it last said that it trains with."""
        self._places: dict[int, ParallelPlace] = {}
        """By process: where it last said that it stands in the device mesh."""
        self._bursts: deque[StackBurst] = deque(maxlen=MAX_BURSTS)
        self._seen = NOTHING_SEEN
        self._seen_elsewhere: tuple[AgentSaw, ...] = ()
        self._is_new = False
        self._news_looks = 0

    def follow(self, ring: StepSource, is_last: bool) -> None:
        """Reads what is new in a ring, or a file; `is_last` says that its process has ended."""
        head = ring.head()
        tail = self._tails.get(ring.path)
        if tail is None:
            tail = self._tails[ring.path] = _Tail(head)
            self._lives.append(tail)
            self._is_numbered = False
        tail.head = head
        new = ring.steps_from(tail.read, everything=is_last)
        if len(new):
            tail.append(new)
            self._is_new = True
        if is_last:
            tail.end()
            self._is_numbered = False
            del self._tails[ring.path]

    def add_sample(self, sample: Sample) -> None:
        """Adds a sample of the machine."""
        self._samples.append(sample)

    def add_stacks(self, burst: StackBurst) -> None:
        """Adds a burst of stack samples; those of a loader's worker say nothing about the steps."""
        if burst.is_of_worker:
            return
        self._bursts.append(burst)
        while (
            len(self._bursts) > 1
            and sum(len(each.samples) for each in self._bursts) > MAX_STACK_SAMPLES
        ):
            self._bursts.popleft()

    def add_messages(self, messages: Sequence[bytes]) -> None:
        """Adds what ranks report: exceptions, losses, parameters, settings and places."""
        for message in messages:
            kind = logged.kind_of(message)
            if kind == "metrics":
                self._keep_unread(message)
            elif kind == "params":
                for said in logged.decode(message):
                    self._params.add_message(said)
            elif kind == "settings":
                for said in logged.decode(message):
                    self._settings[said.get("pid", 0)] = logged.settings([said])
            elif kind == "place":
                for said in logged.decode(message):
                    self._places[said.get("pid", 0)] = logged.parallel_place([said])
            elif kind == "failure":
                self._reports.append(message)
                self._news_looks = NEWS_LOOKS

    def _keep_unread(self, message: bytes) -> None:
        """Keeps a metric message, and the last `MAX_UNREAD_BYTES` of all of them."""
        self._unread.append(message)
        self._unread_bytes += len(message)
        while len(self._unread) > MAX_LOGGED or self._unread_bytes > MAX_UNREAD_BYTES:
            self._unread_bytes -= len(self._unread.popleft())

    def add_failures(self, seen: AgentSaw) -> None:
        """Adds what the agent observed; a change counts as news even without a new step."""
        if seen != self._seen:
            self._seen = seen
            self._news_looks = NEWS_LOOKS

    def add_failures_elsewhere(self, seen: tuple[AgentSaw, ...]) -> None:
        """The same for what the agents of other nodes observed, on this one's clock."""
        if seen != self._seen_elsewhere:
            self._seen_elsewhere = seen
            self._news_looks = NEWS_LOOKS

    def window(self) -> RunRecords | None:
        """Returns the last steps as a run; `None` where there is no news since the last call.

        Ranks that share no step with the furthest one are left out: independent processes that
        train side by side.
        """
        tails = [tail for tail in self._tails.values() if tail.has_steps()]
        if not tails or not (self._is_new or self._news_looks):
            return None
        self._is_new, self._news_looks = False, max(0, self._news_looks - 1)
        self._number_attempts()
        furthest = max(tails, key=lambda tail: tail.taken)
        first = int(furthest.numbers[0]) + furthest.before
        ranks = [tail.records() for tail in tails if tail.taken > first]
        ranks.sort(key=lambda rank: (rank.rank.rank, rank.rank.unix_ns, rank.rank.pid))
        numbers = number_ranks([rank.rank for rank in ranks])
        one_each = tuple(
            replace(
                rank,
                rank=replace(rank.rank, rank=number),
                settings=self._settings.get(rank.rank.pid),
                place=self._places.get(rank.rank.pid, NO_PLACE),
            )
            for number, rank in sorted(zip(numbers, ranks, strict=True), key=lambda pair: pair[0])
        )
        return RunRecords(
            manifest=self._manifest,
            ranks=one_each,
            samples=by_final_rank(tuple(self._samples), _numbers(one_each)),
            params=dict(self._params.values),
            param_sources=dict(self._params.sources),
            stack_bursts=tuple(self._bursts),
            metrics=self._metrics(),
            reports=self._of_this_start(one_each),
            seen=failures.with_final_ranks(
                seen_by_all([self._seen, *self._seen_elsewhere]), _numbers(one_each)
            ),
        )

    def _number_attempts(self) -> None:
        """Numbers the steps of each attempt on from those that ended before it."""
        if self._is_numbered:
            return
        self._is_numbered = all(tail.has_ended or tail.first_ns is not None for tail in self._lives)
        by_rank = restarts_by_rank(self._lives, lambda tail: tail.span)
        first = 0
        for lives in group_lives(by_rank, lambda tail: tail.span):
            for tail in lives:
                tail.before = first
            first = max((tail.taken for tail in lives if tail.has_ended), default=first)

    def _metrics(self) -> tuple[LoggedMetric, ...]:
        self._logged.extend(logged.of_the_loss(self._unread))
        self._unread.clear()
        self._unread_bytes = 0
        values = sum(len(message["values"]) for message in self._logged)
        while values > MAX_LOGGED_VALUES:
            values -= len(self._logged.popleft()["values"])
        return logged.reduce_metrics(self._logged)

    def _of_this_start(self, ranks: tuple[RankRecords, ...]) -> tuple[FailureReport, ...]:
        """Returns the reports since the youngest rank began; earlier ones are from before a
        restart."""
        began_unix_s = max(rank.rank.unix_ns for rank in ranks) / 1e9
        said = failures.reports(logged.decode(b"\n".join(self._reports)))
        said = failures.in_order(said, _numbers(ranks))
        return tuple(report for report in said if report.unix_s >= began_unix_s)


def _numbers(ranks: tuple[RankRecords, ...]) -> dict[int, int]:
    """Returns each process's rank, by pid."""
    return {rank.rank.pid: rank.rank.rank for rank in ranks}


def select_steps(run: RunRecords, numbers: Ints) -> RunRecords:
    """Returns the run with only these complete steps; they keep their numbers (from 0)."""
    return replace(run, ranks=tuple(_select_steps(rank, numbers) for rank in run.ranks))


def _select_steps(rank: RankRecords, numbers: Ints) -> RankRecords:
    incomplete = is_incomplete(rank.steps)
    found = step_numbers(rank.steps)
    chosen = np.isin(found, numbers) & ~incomplete
    dropped = int(chosen.argmax()) if chosen.any() else len(chosen)
    return replace(
        rank,
        steps=_renumbered(rank.steps[chosen], found[chosen]),
        earlier_steps=rank.earlier_steps + int(np.count_nonzero(~incomplete[:dropped])),
    )


def _renumbered(steps: Steps, numbers: Ints) -> npt.NDArray[Any]:
    """Returns the records with the sequence numbers of these complete steps."""
    renumbered = np.array(steps)
    renumbered["sequence"] = numbers + 1 + incomplete_so_far(steps)
    return renumbered


def _first_in_window(steps: npt.NDArray[Any]) -> int:
    """Returns the position at which the window begins."""
    recent_ns = int(steps["start_ns"][-1]) - int(WINDOW_S * 1e9)
    recent = int(np.searchsorted(steps["start_ns"], recent_ns))
    first = min(recent, len(steps) - WINDOW_STEPS)
    return max(0, first, len(steps) - MAX_STEPS)
