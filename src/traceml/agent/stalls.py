"""Sees that no steps come any more, and finds out which rank the others wait for.

Every rank is asked for its stacks three times, some seconds apart: one that has the same stack each
time is stuck, one that has moved on is busy with something long (an evaluation, a checkpoint). The
stacks are asked for again each time the pause has doubled, so that a pause costs nothing and a hang
is seen as it is in the end. When steps come again it was a pause, and is kept as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import psutil

from traceml.agent import stacks
from traceml.agent.flight_recorder import FlightRecorder
from traceml.model.failure import Doing, Stall, Standing, StuckCollective
from traceml.store.regular_files import read_regular, stat_regular
from traceml.store.ring_events import NO_PROGRESS, StepProgress

FLOOR_S = 20.0
"""A shorter pause is no hang, however short the steps are."""
USUAL_STEPS = 30
"""A pause of so many usual steps is far outside their variation."""
PAUSE_FACTOR = 2
"""Times the longest pause so far: a run that has paused before may do so again."""
LOOKS = 3
"""Stack samples per rank: two that agree may be chance, because a loop over batches is at one line
most of the time."""
BETWEEN_LOOKS_S = 5.0
"""Long enough for a rank that makes progress to move on."""
BUSY_CORES = 0.5
"""A rank on the CPU that computes at one line is busy, not stuck."""
BUSY_GPU = 0.5
"""Sampled utilisation: a rank that waits for its busy GPU at one line is busy too."""
MAX_STALLS = 64

_ELSEWHERE = (Doing.CODE, Doing.INPUT)


@dataclass(frozen=True, slots=True)
class Training:
    """A rank at one moment, by its ring."""

    rank: int
    pid: int
    steps: int
    stacks: Path
    walls_s: Callable[[], Sequence[float]]
    """Returns the wall times of its last steps; called only when it makes no progress."""
    on_gpu: bool = False
    gpu_share: float | None = None
    """The utilisation of its GPU in the last sample; `None` where it is not known."""
    progress: StepProgress = NO_PROGRESS


@dataclass
class _Progress:
    steps: int
    since_s: float
    since_unix_s: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A rank that was asked for its stacks.

    Where the answer begins in its file, whether one will come, and its CPU time at that moment.
    """

    training: Training
    offset: int
    answers: bool
    cpu_s: float | None


@dataclass
class _Looks:
    """The stack samples of a stall so far, each of all ranks in the same order."""

    asked: list[list[_Asked]]
    usual_s: float
    next_due_s: float


class StallWatch:
    """Watches the ranks' steps; the caller provides the clock."""

    def __init__(
        self,
        keep: Callable[[int, int, bytes], str],
        floor_s: float = FLOOR_S,
        between_looks_s: float = BETWEEN_LOOKS_S,
        ask: Callable[[int], bool] = stacks.ask,
        seen: Sequence[Stall] = (),
        recorder: FlightRecorder | None = None,
    ) -> None:
        self._keep = keep
        self._floor_s = floor_s
        self._between_looks_s = between_looks_s
        self._ask = ask
        self._recorder = recorder
        self._progress: dict[int, _Progress] = {}
        self.stalls: list[Stall] = list(seen)
        self._is_open = False
        self._looks: _Looks | None = None
        self._again_s = 0.0
        self._alone_until_s: dict[int, float] = {}
        """By pid: ranks that stood still while others that were looked at went on, and until when
        that is no reason to look at all of them again."""

    def update(self, ranks: Sequence[Training], now_s: float, unix_s: float) -> bool:
        """Called once a second; returns whether there is anything new to write."""
        moved = self._follow(ranks, now_s, unix_s)
        if self._is_open or self._looks is not None:
            standing = self._standing_pids()
            if moved & standing:
                self._leave_alone(standing - moved, now_s)
                return self._resume(unix_s)
            if standing & self._progress.keys():
                return self._look_closer(ranks, now_s, unix_s)
            self._is_open, self._looks = False, None  # all of them have gone: it ended so
        if len(self.stalls) < MAX_STALLS and self._stands_still(ranks, now_s):
            self._looks = self._begin(ranks, now_s)
        return False

    def _follow(self, ranks: Sequence[Training], now_s: float, unix_s: float) -> set[int]:
        """Notes which ranks have taken a step; returns their pids."""
        moved = set()
        for training in ranks:
            known = self._progress.get(training.pid)
            if known is None or known.steps != training.steps:
                self._progress[training.pid] = _Progress(training.steps, now_s, unix_s)
                self._alone_until_s.pop(training.pid, None)
                moved.add(training.pid)
        present = {training.pid for training in ranks}
        for pid in self._progress.keys() - present:
            del self._progress[pid]
            self._alone_until_s.pop(pid, None)
        return moved

    def _leave_alone(self, pids: set[int], now_s: float) -> None:
        """Notes that these ranks stand still while others train: by themselves they are no reason
        to look again before their pause has doubled. Each look costs the others time."""
        for pid in pids & self._progress.keys():
            self._alone_until_s[pid] = 2 * now_s - self._progress[pid].since_s

    def _stands_still(self, ranks: Sequence[Training], now_s: float) -> bool:
        for training in ranks:
            if now_s < self._alone_until_s.get(training.pid, 0.0):
                continue
            still_s = now_s - self._progress[training.pid].since_s
            if training.steps and still_s >= self._floor_s and still_s >= _limit_s(training):
                return True
        return False

    def _standing_pids(self) -> set[int]:
        if self._looks is not None:
            return {asked.training.pid for asked in self._looks.asked[0]}
        return {standing.pid for standing in self.stalls[-1].ranks}

    def _begin(self, ranks: Sequence[Training], now_s: float) -> _Looks:
        longest_s = max(now_s - self._progress[each.pid].since_s for each in ranks)
        self._again_s = now_s + longest_s
        usual_s = max(map(_usual_s, ranks))
        if self._recorder is not None:
            self._recorder.ask({each.rank: each.pid for each in ranks})
        return _Looks([self._ask_all(ranks)], usual_s, now_s + self._between_looks_s)

    def _ask_all(self, ranks: Sequence[Training]) -> list[_Asked]:
        return [
            _Asked(
                each,
                offset=stacks.stacks_bytes(each.stacks),
                # Without its file it never said that it answers: the signal is somebody else's.
                answers=each.stacks.exists() and self._ask(each.pid),
                cpu_s=_cpu_s(each.pid),
            )
            for each in ranks
        ]

    def _look_closer(self, ranks: Sequence[Training], now_s: float, unix_s: float) -> bool:
        looks = self._looks
        if looks is None:
            if now_s >= self._again_s and ranks:
                self._looks = self._begin(ranks, now_s)
            return False
        if len(looks.asked) < LOOKS:
            if now_s >= looks.next_due_s:
                looks.asked.append(self._ask_again(looks.asked[0], ranks))
                looks.next_due_s = now_s + self._between_looks_s
            return False
        self._looks = None  # a second later: the answers are there
        self._write(looks, unix_s)
        return True

    def _ask_again(self, first: Sequence[_Asked], ranks: Sequence[Training]) -> list[_Asked]:
        """Asks the same ranks again, in the same order."""
        now = {each.pid: each for each in ranks}
        return self._ask_all([now.get(each.training.pid, each.training) for each in first])

    def _write(self, looks: _Looks, unix_s: float) -> None:
        since = [each.since_unix_s for each in self._progress.values()]
        by_rank = list(zip(*looks.asked, strict=True))
        collectives = self._stuck(unix_s)
        stall = Stall(
            since_unix_s=max(since, default=unix_s),
            seen_unix_s=unix_s,
            usual_s=looks.usual_s,
            ranks=_in_collectives(self._standings(by_rank), collectives),
            stacks=tuple(self._keep_all([asked[-1].training for asked in by_rank])),
            collectives=collectives,
        )
        if self._is_open:
            before = self.stalls[-1]
            self.stalls[-1] = replace(
                stall, since_unix_s=before.since_unix_s, first_seen_unix_s=before.noticed_unix_s
            )
        else:
            self.stalls.append(stall)
            self._is_open = True

    def read_recorder(self) -> bool:
        """Reads what the flight recorder has written since a stall was seen, such as when the
        collective timed out; returns whether there is anything new to write.

        For the end of a process: it is then that torch writes.
        """
        last = self.stalls[-1] if self.stalls else None
        if last is None or last.resumed_unix_s is not None:
            return False
        found = self._stuck(last.seen_unix_s)
        if not found or found == last.collectives:
            return False
        ranks = _in_collectives(last.ranks, found)
        self.stalls[-1] = replace(last, collectives=found, ranks=ranks)
        return True

    def _stuck(self, unix_s: float) -> tuple[StuckCollective, ...]:
        """Returns the collectives that ranks have waited in for long; others are under way."""
        found = () if self._recorder is None else self._recorder.stuck()
        return tuple(each for each in found if unix_s - each.since_unix_s >= self._floor_s)

    def _keep_all(self, ranks: Sequence[Training]) -> list[str]:
        return [
            self._keep(each.rank, each.pid, read_regular(each.stacks))
            for each in ranks
            if stat_regular(each.stacks) is not None
        ]

    def _standings(self, by_rank: Sequence[Sequence[_Asked]]) -> tuple[Standing, ...]:
        """Returns what each rank is doing; a busy GPU clears its rank unless another waits for
        ranks.

        A collective that waits keeps a GPU as busy as work does.
        """
        found = [self._standing(asked) for asked in by_rank]
        if any(each.doing is Doing.COLLECTIVE for each in found):
            return tuple(found)
        return tuple(
            replace(each, moved=each.moved or (each.doing in _ELSEWHERE and _keeps_gpu_busy(asked)))
            for each, asked in zip(found, by_rank, strict=True)
        )

    def _standing(self, asked: Sequence[_Asked]) -> Standing:
        training = asked[-1].training
        answers = [stack for stack in _answers(asked) if stack]
        stack = answers[-1] if answers else ()
        doing, call = stacks.reading(stack)
        has_moved = any(before != after for before, after in pairwise(answers))
        if doing is not Doing.COLLECTIVE and not training.on_gpu:
            # A GPU's rank turns round and round while it waits: there it says nothing.
            has_moved = has_moved or any(
                _computes(before, after, self._between_looks_s) for before, after in pairwise(asked)
            )
        return Standing(
            rank=training.rank,
            pid=training.pid,
            doing=doing,
            steps=training.steps,
            call=call,
            where=stacks.users_line(stack, stacks.folder_of(training.pid)),
            moved=has_moved,
            phase=training.progress.phase,
            collectives=training.progress.collectives,
        )

    def _resume(self, unix_s: float) -> bool:
        self._looks = None
        was_open, self._is_open = self._is_open, False
        if was_open:
            self.stalls[-1] = replace(self.stalls[-1], resumed_unix_s=unix_s)
        return was_open


def _in_collectives(
    ranks: Sequence[Standing], collectives: Sequence[StuckCollective]
) -> tuple[Standing, ...]:
    """Returns the ranks with those in a collective that the flight recorder knows to be in one.

    On a GPU the host goes on after it has begun a collective, and waits elsewhere; and a GPU that
    waits in a collective looks busy.
    """
    calls = {rank: each.name for each in reversed(collectives) for rank in each.waiting}
    return tuple(
        replace(each, doing=Doing.COLLECTIVE, call=calls[each.rank], moved=False)
        if each.rank in calls
        else each
        for each in ranks
    )


def _usual_s(training: Training) -> float:
    walls = sorted(training.walls_s())
    return walls[len(walls) // 2] if walls else 0.0


def _limit_s(training: Training) -> float:
    walls = training.walls_s()
    longest_s = max(walls[1:], default=0.0)  # the first step compiles and warms up
    return max(USUAL_STEPS * _usual_s(training), PAUSE_FACTOR * longest_s)


def _answers(asked: Sequence[_Asked]) -> list[stacks.Stack]:
    """Returns the answers to the requests; empty where there was none."""
    try:
        content = read_regular(asked[-1].training.stacks)
    except OSError:
        return []
    header = content[: stacks.HEADER_BYTES].decode(errors="replace")
    ends = [each.offset for each in asked[1:]] + [len(content)]
    return [
        stacks.training_stack(header, content[each.offset : end].decode(errors="replace"))
        if each.answers
        else ()
        for each, end in zip(asked, ends, strict=True)
    ]


def _computes(before: _Asked, after: _Asked, interval_s: float) -> bool:
    if before.cpu_s is None or after.cpu_s is None:
        return False
    return after.cpu_s - before.cpu_s >= BUSY_CORES * interval_s


def _keeps_gpu_busy(asked: Sequence[_Asked]) -> bool:
    shares = [each.training.gpu_share for each in asked]
    return all(share is not None and share >= BUSY_GPU for share in shares)


def _cpu_s(pid: int) -> float | None:
    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        return None
    return float(times.user + times.system)
