"""Where the host's time goes: samples of the training threads' stacks as a tree of calls per phase.

A call's share of a phase's samples is its share of that phase's time. Samples of complete steps
after warm-up count, and those of evaluation, saving and compiling under names of their own; so do
those of the data loader's workers and of further threads. Calls with few samples are dropped from
the tree, and their samples stay with the call that made them.

What is evaluation is told by the stacks: steps in which the model was also evaluated have samples
of calls that other steps do not have. Where the calls are the same (one loop for both), the moment
decides: evaluation comes before the step's first batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from traceml.facts.user_time import (
    SampleMoments,
    independent_after_s,
    independent_looks,
    sample_moments,
    share_interval,
)
from traceml.model.phase import BETWEEN, COMPUTE, PHASES, Phase
from traceml.model.sample import (
    EVALUATION,
    LOADER_WORKERS,
    OTHER_THREADS,
    OUTSIDE_STEPS,
    StackBurst,
    StackFrame,
    StackSample,
)
from traceml.store.records import RankRecords

MIN_LOOKS = 10
"""Samples in a phase: with fewer, nothing is reported about it."""
MIN_PLAIN_LOOKS = 30
"""Samples of steps without evaluation: with fewer it is not known which calls they make."""
MAX_FRAMES = 600
"""Of all trees together; a tree that is drawn needs no more."""
MIN_SHARE = 0.001
"""Of a phase's samples: rarer calls are dropped from its tree."""
MAX_PLACES = 6
MIN_PLACE_SHARE = 0.02

ORDER = (*(phase.value for phase in PHASES), BETWEEN, *OUTSIDE_STEPS, LOADER_WORKERS, OTHER_THREADS)
"""Phases as they are listed."""

_COMPUTE = frozenset(phase.value for phase in COMPUTE)

_OF_TRAINING = frozenset((Phase.BACKWARD.value, Phase.OPTIMIZER.value))

_Key = tuple[str, str, int]
"""A call: its function, its file, and its line where lines of that function are told apart; else
0."""
_Path = tuple[_Key, ...]


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call in a phase's tree, with everything that it called."""

    function: str
    file: str
    line: int
    """The one at which it was seen most often."""
    is_users: bool
    parent: int
    """The call above it, as its place in the list; -1 for none."""
    looks: int
    """Samples in it and in what it called."""
    own: int
    """Of those, samples in itself, and in calls too rare for the tree."""


@dataclass(frozen=True, slots=True)
class HostPlace:
    """User code, and how much of a phase was spent in it and in what it called."""

    function: str
    file: str
    line: int
    looks: int
    share: float
    """Of the phase's samples, 0–1, …"""
    low: float
    """… with its 95 % confidence interval."""
    high: float
    inside: str | None = None
    """The function of a package in which most of those samples were; `None`: in the user's own."""
    called_by: str | None = None
    """The function of the user's that called it most often; `None` for the outermost one."""


@dataclass(frozen=True, slots=True)
class HostPhase:
    """The samples of one phase."""

    looks: int
    independent_looks: float
    """How many independent samples those are worth: successive ones are often of one call."""
    calls: tuple[HostCall, ...]
    """A call comes after the one that made it."""
    places: tuple[HostPlace, ...]
    """The user's innermost functions on the stacks, the most frequent first."""


@dataclass(frozen=True, slots=True)
class HostTime:
    """Where the host's time went, by phase."""

    looks: int = 0
    """Samples of training threads that count, in all phases: in rare ones, too."""
    outside: int = 0
    """Samples that count nowhere: of warm-up, before and after the steps, and with no stack."""
    torn: int = 0
    way: str | None = None
    """How they were taken: `py-spy` or `signal`; `None` without samples."""
    rate_hz: float | None = None
    """Samples per second while it was looked; `None` where that is not known."""
    core_share: float | None = None
    """What looking cost meanwhile, of one core."""
    phases: Mapping[str, HostPhase] = field(default_factory=dict)
    """By a phase's key; only those with enough samples."""


NO_HOST_TIME = HostTime()


@dataclass(frozen=True, slots=True)
class _StackSeen:
    """A sample with its stack, the outermost call first."""

    sample: StackSample
    stack: tuple[StackFrame, ...]


def host_time(bursts: Sequence[StackBurst], ranks: Sequence[RankRecords], warmup: int) -> HostTime:
    """Returns what the samples of these ranks say; the first `warmup` steps are left out."""
    if not any(burst.stacks for burst in bursts):
        return NO_HOST_TIME
    by_phase: dict[str, list[_StackSeen]] = defaultdict(list)
    for rank in ranks:
        for each in _of_rank(bursts, rank, warmup):
            by_phase[each.sample.phase].append(each)
    loops = _loop_functions(by_phase)
    seen = {phase: sum(each.sample.looks for each in by_phase[phase]) for phase in ORDER}
    counted = {phase: looks for phase, looks in seen.items() if looks >= MIN_LOOKS}
    of_threads = (LOADER_WORKERS, OTHER_THREADS)
    taken = sum(burst.looks - burst.torn for burst in bursts if not burst.is_of_worker)
    looks = sum(number for phase, number in seen.items() if phase not in of_threads)
    trees = {phase: _CallTree.of(by_phase[phase], loops) for phase in counted}
    least = _least_looks(trees.values())
    block_s = independent_after_s(ranks)
    worth = {phase: _independent(by_phase[phase], loops, block_s) for phase in counted}
    timed = [burst for burst in bursts if burst.lasted_s]
    lasted_s = sum(burst.lasted_s or 0.0 for burst in timed)
    return HostTime(
        looks=looks,
        outside=max(0, taken - looks),
        torn=sum(burst.torn for burst in bursts),
        way=", ".join(sorted({burst.way for burst in bursts})),
        rate_hz=sum(burst.looks for burst in timed) / lasted_s if lasted_s else None,
        core_share=sum(burst.cpu_s or 0.0 for burst in timed) / lasted_s if lasted_s else None,
        phases={
            phase: HostPhase(
                looks=number,
                independent_looks=worth[phase],
                calls=trees[phase].calls(max(least, MIN_SHARE * number)),
                places=_places(by_phase[phase], loops, number, worth[phase]),
            )
            for phase, number in counted.items()
        },
    )


# Which phase a sample belongs to


def _of_rank(bursts: Sequence[StackBurst], rank: RankRecords, warmup: int) -> Iterator[_StackSeen]:
    """Yields the samples of a rank that count, with the phase that they count in."""
    found = [
        _StackSeen(sample, tuple(burst.frames[place] for place in burst.stacks[sample.stack]))
        for burst in bursts
        if burst.pid == rank.rank.pid
        for sample in burst.samples
        if sample.stack is not None
    ]
    apart = (LOADER_WORKERS, OTHER_THREADS, *OUTSIDE_STEPS)
    yield from (each for each in found if each.sample.phase in apart)
    steps = [each for each in found if each.sample.phase not in apart]
    moments = sample_moments([each.sample for each in steps], rank, warmup)
    evaluated = _evaluated(steps, moments)
    for place, each in enumerate(steps):
        if place in evaluated:
            yield replace(each, sample=replace(each.sample, phase=EVALUATION))
        elif moments.is_between[place] and moments.is_training[place]:
            yield replace(each, sample=replace(each.sample, phase=BETWEEN))
        elif moments.is_warm[place]:
            yield each


def _evaluated(steps: Sequence[_StackSeen], moments: SampleMoments) -> frozenset[int]:
    """Returns the samples, by their place, that were taken while the model was evaluated.

    A way into the user's code that is sampled mostly in steps with an evaluation leads to one. The
    moment of a sample is known to some milliseconds only, so that single samples prove nothing.
    """
    has_evaluation = moments.evaluation_s > 0
    if not has_evaluation.any():
        return frozenset()
    looks = np.array([each.sample.looks for each in steps])
    # Where the machine is busy, a moment may be wrong by far; an evaluation takes no gradients.
    may_be = np.array([each.sample.phase not in _OF_TRAINING for each in steps])
    may_be &= ~moments.is_after_evaluation
    early = np.flatnonzero(may_be & has_evaluation & (moments.offset_s < moments.evaluation_s))
    if looks[moments.is_warm & ~has_evaluation].sum() < MIN_PLAIN_LOOKS:
        return frozenset(early.tolist())
    loops = _loop_functions(_grouped(steps))
    paths = [_call_path(each, loops) for each in steps]
    mixed: Counter[_Path] = Counter()
    all_: Counter[_Path] = Counter()
    for path, number, is_mixed in zip(paths, looks.tolist(), has_evaluation.tolist(), strict=True):
        for depth in range(1, len(path) + 1):
            all_[path[:depth]] += number
            mixed[path[:depth]] += number if is_mixed else 0
    # Calls that training has too are in such steps as often as all samples are, if not less.
    usual = max(moments.evaluated_share, float(looks[has_evaluation].sum() / looks.sum()))
    least = (1 + usual) / 2
    ways = {way for way, number in mixed.items() if number > least * (all_[way] + 1)}
    led = [
        place
        for place, path in enumerate(paths)
        if not moments.is_after_evaluation[place]
        and any(path[:depth] in ways for depth in range(1, len(path) + 1))
    ]
    return frozenset(led or early.tolist())


def _grouped(seen: Sequence[_StackSeen]) -> dict[str, list[_StackSeen]]:
    found: dict[str, list[_StackSeen]] = defaultdict(list)
    for each in seen:
        found[each.sample.phase].append(each)
    return found


def _call_path(each: _StackSeen, loops: frozenset[tuple[str, str]]) -> _Path:
    """Returns how the training script came to a sample: the user's calls, from the outermost on.

    Lines count down to the loop: it may call one function for training and for evaluation.
    """
    calls = [frame for frame in each.stack if frame.is_users]
    in_loop = [depth for depth, call in enumerate(calls) if (call.function, call.file) in loops]
    told = in_loop[-1] if in_loop else -1
    return tuple(
        (call.function, call.file, call.line if depth <= told else 0)
        for depth, call in enumerate(calls)
    )


def _loop_functions(by_phase: Mapping[str, Sequence[_StackSeen]]) -> frozenset[tuple[str, str]]:
    """Returns the functions that call the phases of a step: each of their lines is told apart."""
    callers = (each.sample.caller for phase in _COMPUTE for each in by_phase.get(phase, ()))
    return frozenset((caller.function, caller.file) for caller in callers if caller is not None)


# Trees


class _CallTree:
    """The calls of a phase, counted."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, _Key], int] = {}
        self._frames: list[StackFrame] = []
        self._parents: list[int] = []
        self._lines: list[Counter[int]] = []

    @classmethod
    def of(cls, seen: Sequence[_StackSeen], loops: frozenset[tuple[str, str]]) -> _CallTree:
        tree = cls()
        for each in seen:
            parent = -1
            for frame in each.stack:
                parent = tree._place(parent, frame, loops)
                tree._lines[parent][frame.line] += each.sample.looks
        return tree

    def _place(self, parent: int, frame: StackFrame, loops: frozenset[tuple[str, str]]) -> int:
        place = self._places.setdefault((parent, _key(frame, loops)), len(self._frames))
        if place == len(self._frames):
            self._frames.append(frame)
            self._parents.append(parent)
            self._lines.append(Counter())
        return place

    @property
    def looks(self) -> list[int]:
        """Of each call, with what it called."""
        return [lines.total() for lines in self._lines]

    def calls(self, least: float) -> tuple[HostCall, ...]:
        """Returns the calls with so many samples; what is above such a call has as many."""
        looks = self.looks
        frequent = [place for place, found in enumerate(looks) if found >= least]
        kept = {place: number for number, place in enumerate(frequent)}
        own = dict.fromkeys(kept, 0)
        for place in kept:
            own[place] += looks[place]
            if self._parents[place] >= 0:
                own[self._parents[place]] -= looks[place]
        return tuple(
            HostCall(
                function=self._frames[place].function,
                file=self._frames[place].file,
                line=_most_frequent(self._lines[place]),
                is_users=self._frames[place].is_users,
                parent=kept.get(self._parents[place], -1),
                looks=looks[place],
                own=own[place],
            )
            for place in kept
        )


def _key(frame: StackFrame, loops: frozenset[tuple[str, str]]) -> _Key:
    is_loop = frame.is_users and (frame.function, frame.file) in loops
    return frame.function, frame.file, frame.line if is_loop else 0


def _least_looks(trees: Iterable[_CallTree]) -> int:
    """Returns how many samples a call needs so that all trees together are not too large."""
    looks = sorted((found for tree in trees for found in tree.looks), reverse=True)
    return looks[MAX_FRAMES] + 1 if len(looks) > MAX_FRAMES else 1


def _most_frequent(lines: Counter[int]) -> int:
    return min(lines.items(), key=lambda item: (-item[1], item[0]))[0]


# Places


def _independent(
    seen: Sequence[_StackSeen], loops: frozenset[tuple[str, str]], block_s: float
) -> float:
    """Returns how many independent samples of the user's innermost functions these are worth."""
    placed = []
    for each in seen:
        users = [frame for frame in each.stack if frame.is_users]
        placed.append((each.sample, _key(users[-1], loops) if users else None))
    return independent_looks(placed, block_s)


def _places(
    seen: Sequence[_StackSeen], loops: frozenset[tuple[str, str]], total: int, worth: float
) -> tuple[HostPlace, ...]:
    """Returns the user's innermost functions; in the functions of the loop, the lines."""
    lines: dict[_Key, Counter[int]] = defaultdict(Counter)
    inside: dict[_Key, Counter[str]] = defaultdict(Counter)
    callers: dict[_Key, Counter[str]] = defaultdict(Counter)
    for each in seen:
        frame, *above = [*(frame for frame in reversed(each.stack) if frame.is_users), None]
        if frame is None:
            continue
        key = _key(frame, loops)
        callers[key][above[0].function if above[0] else ""] += each.sample.looks
        lines[key][frame.line] += each.sample.looks
        last = each.stack[-1]
        inside[key]["" if last.is_users else f"{last.function} ({last.file})"] += each.sample.looks
    ordered = sorted(lines, key=lambda key: (-lines[key].total(), key))
    return tuple(
        HostPlace(
            function=key[0],
            file=key[1],
            line=_most_frequent(lines[key]),
            looks=looks,
            share=looks / total,
            low=low,
            high=high,
            inside=_mostly(inside[key]),
            called_by=_mostly(callers[key]),
        )
        for key in ordered[:MAX_PLACES]
        if (looks := lines[key].total()) >= MIN_PLACE_SHARE * total
        for low, high in [share_interval(looks / total * worth, worth)]
    )


def _mostly(inside: Counter[str]) -> str | None:
    """Returns the one with more than half of the samples; `None` where there is none."""
    name, looks = inside.most_common(1)[0]
    return name if name and 2 * looks > inside.total() else None
