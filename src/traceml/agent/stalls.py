"""Sees that no steps come any more, and finds out which rank the others wait for.

Every rank is asked for its stacks twice, some seconds apart: one that stands at the same line is
stuck, one that has moved on is busy with something long (an evaluation, a checkpoint). The stacks
are asked for again each time the pause has doubled, so that a pause costs nothing and a hang is
seen as it is in the end. When steps come again it was a pause, and is kept as such.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from traceml.agent import stacks
from traceml.model.failure import Doing, Stall, Standing

FLOOR_S = 20.0
"""Nobody calls a shorter pause a hang, however short the steps."""
USUAL_STEPS = 30
"""So many usual steps without one: far outside what steps differ by."""
LONGEST_PAUSES = 2
"""Times the longest pause so far: what the run has done before is no news."""
SECOND_LOOK_S = 5.0
"""Between the two looks: time enough to get on, for whoever does."""
BUSY_CORES = 0.5
"""A rank on the CPU that computes while its line stays the same is busy, not stuck."""
MOST_STALLS = 64


@dataclass(frozen=True, slots=True)
class Training:
    """A rank at one moment, as its ring shows it."""

    rank: int
    pid: int
    steps: int
    stacks: Path
    walls_s: Callable[[], Sequence[float]]
    """The wall times of its last steps; read only when it stands still."""
    on_gpu: bool = False


@dataclass
class _Progress:
    steps: int
    since_s: float
    since_unix_s: float


@dataclass(frozen=True, slots=True)
class _Asked:
    """A rank that was asked for its stacks.

    Where in its file the answer begins, whether there will be one, and its CPU time by then.
    """

    training: Training
    offset: int
    answers: bool
    cpu_s: float | None


@dataclass
class _Looks:
    """The two looks at a stall."""

    first: list[_Asked]
    usual_s: float
    second_due_s: float
    second: list[_Asked] | None = None


class StallWatch:
    """Watches the ranks' steps; the clock is the caller's."""

    def __init__(
        self,
        keep: Callable[[int, int, bytes], str],
        floor_s: float = FLOOR_S,
        second_look_s: float = SECOND_LOOK_S,
        ask: Callable[[int], bool] = stacks.ask,
        seen: Sequence[Stall] = (),
    ) -> None:
        self._keep = keep
        self._floor_s = floor_s
        self._second_look_s = second_look_s
        self._ask = ask
        self._progress: dict[int, _Progress] = {}
        self.stalls: list[Stall] = list(seen)
        self._is_open = False
        self._looks: _Looks | None = None
        self._again_s = 0.0

    def look(self, ranks: Sequence[Training], now_s: float, unix_s: float) -> bool:
        """Once a second: whether there is anything new to write down."""
        moved = self._follow(ranks, now_s, unix_s)
        if self._is_open or self._looks is not None:
            if moved & self._standing_pids():
                return self._resume(unix_s)
            return self._look_closer(ranks, now_s, unix_s)
        if len(self.stalls) < MOST_STALLS and self._stands_still(ranks, now_s):
            self._looks = self._begin(ranks, now_s)
        return False

    def _follow(self, ranks: Sequence[Training], now_s: float, unix_s: float) -> set[int]:
        """Note who has taken a step; their pids."""
        moved = set()
        for training in ranks:
            known = self._progress.get(training.pid)
            if known is None or known.steps != training.steps:
                self._progress[training.pid] = _Progress(training.steps, now_s, unix_s)
                moved.add(training.pid)
        present = {training.pid for training in ranks}
        for pid in self._progress.keys() - present:
            del self._progress[pid]
        return moved

    def _stands_still(self, ranks: Sequence[Training], now_s: float) -> bool:
        for training in ranks:
            still_s = now_s - self._progress[training.pid].since_s
            if training.steps and still_s >= self._floor_s and still_s >= _limit_s(training):
                return True
        return False

    def _standing_pids(self) -> set[int]:
        if self._looks is not None:
            return {asked.training.pid for asked in self._looks.first}
        return {standing.pid for standing in self.stalls[-1].ranks}

    def _begin(self, ranks: Sequence[Training], now_s: float) -> _Looks:
        longest_s = max(now_s - self._progress[each.pid].since_s for each in ranks)
        self._again_s = now_s + longest_s
        usual_s = max(map(_usual_s, ranks))
        return _Looks(self._ask_all(ranks), usual_s, now_s + self._second_look_s)

    def _ask_all(self, ranks: Sequence[Training]) -> list[_Asked]:
        return [
            _Asked(
                each, offset=_size(each.stacks), answers=self._ask(each.pid), cpu_s=_cpu_s(each.pid)
            )
            for each in ranks
        ]

    def _look_closer(self, ranks: Sequence[Training], now_s: float, unix_s: float) -> bool:
        looks = self._looks
        if looks is None:
            if now_s >= self._again_s and ranks:
                self._looks = self._begin(ranks, now_s)
            return False
        if looks.second is None:
            if now_s >= looks.second_due_s:
                looks.second = self._ask_all([asked.training for asked in looks.first])
            return False
        self._looks = None  # a look later: the answers are there
        self._write(looks, list(zip(looks.first, looks.second, strict=True)), unix_s)
        return True

    def _write(self, looks: _Looks, pairs: list[tuple[_Asked, _Asked]], unix_s: float) -> None:
        since = [each.since_unix_s for each in self._progress.values()]
        stall = Stall(
            since_unix_s=max(since, default=unix_s),
            seen_unix_s=unix_s,
            usual_s=looks.usual_s,
            ranks=tuple(self._standing(before, after) for before, after in pairs),
            stacks=tuple(self._keep_all(pairs)),
        )
        if self._is_open:
            self.stalls[-1] = replace(stall, since_unix_s=self.stalls[-1].since_unix_s)
        else:
            self.stalls.append(stall)
            self._is_open = True

    def _keep_all(self, pairs: list[tuple[_Asked, _Asked]]) -> list[str]:
        return [
            self._keep(asked.training.rank, asked.training.pid, asked.training.stacks.read_bytes())
            for asked, _ in pairs
            if asked.training.stacks.exists()
        ]

    def _standing(self, before: _Asked, after: _Asked) -> Standing:
        training = after.training
        earlier, now = _stacks_between(before, after)
        doing, call = stacks.reading(now or earlier)
        has_moved = bool(earlier and now) and earlier[0] != now[0]
        if doing is not Doing.COLLECTIVE and not training.on_gpu:
            # A GPU's rank turns round and round while it waits: there it says nothing.
            has_moved = has_moved or _busy(before, after, self._second_look_s)
        return Standing(
            rank=training.rank,
            pid=training.pid,
            doing=doing,
            steps=training.steps,
            call=call,
            where=stacks.users_line(now or earlier, _folder_of(training.pid)),
            moved=has_moved,
        )

    def _resume(self, unix_s: float) -> bool:
        self._looks = None
        was_open, self._is_open = self._is_open, False
        if was_open:
            self.stalls[-1] = replace(self.stalls[-1], resumed_unix_s=unix_s)
        return was_open


def _usual_s(training: Training) -> float:
    walls = sorted(training.walls_s())
    return walls[len(walls) // 2] if walls else 0.0


def _limit_s(training: Training) -> float:
    walls = training.walls_s()
    longest_s = max(walls[1:], default=0.0)  # the first step compiles and warms up
    return max(USUAL_STEPS * _usual_s(training), LONGEST_PAUSES * longest_s)


def _stacks_between(before: _Asked, after: _Asked) -> tuple[stacks.Stack, stacks.Stack]:
    """The answers to the two questions; empty where there was none."""
    try:
        content = after.training.stacks.read_bytes()
    except OSError:
        return (), ()
    header = content[:64].decode(errors="replace")
    first = content[before.offset : after.offset].decode(errors="replace")
    second = content[after.offset :].decode(errors="replace")
    return (
        stacks.training_stack(header, first) if before.answers else (),
        stacks.training_stack(header, second) if after.answers else (),
    )


def _busy(before: _Asked, after: _Asked, interval_s: float) -> bool:
    if before.cpu_s is None or after.cpu_s is None:
        return False
    return after.cpu_s - before.cpu_s >= BUSY_CORES * interval_s


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cpu_s(pid: int) -> float | None:
    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        return None
    return float(times.user + times.system)


def _folder_of(pid: int) -> str:
    """Where a process was started, as far as it shows."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return os.sep
