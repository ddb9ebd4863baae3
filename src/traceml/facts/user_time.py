"""Which lines of user code the training thread was at, phase by phase, from samples of its stack.

Only samples taken while complete training steps ran count: not start-up, warm-up, evaluation,
checkpoints or what came after the last step. A function is reported by its name and most frequent
line. The lines of the training loop itself are reported one by one, because the whole step runs in
that function; where a single line calls a framework's loop, the framework's function is reported
instead.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from traceml.facts.robust_statistics import t_quantile
from traceml.model import record_layout
from traceml.model.phase import BETWEEN, COMPUTE, Phase
from traceml.model.sample import CodeLine, StackBurst, StackSample
from traceml.store.records import RankRecords

MIN_LOOKS = 10
"""Samples in a phase: with fewer, nothing is reported about it."""
MIN_SHARE = 0.02
"""Of a phase's samples: rarer places are not listed."""
MAX_PLACES = 5
MAX_OTHER_SHARE = 0.1
"""Of a step's wall time: with more evaluation or saving in it, a sample may have seen that
instead."""
NORMAL_DEVIATE = 1.96
MIN_BLOCK_S = 0.2
"""Samples that are so near to each other are not independent: they may be of the same call …"""
BLOCK_STEPS = 2
"""… nor are those of so many steps."""

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_CALLED = tuple(phase.value for phase in COMPUTE)
_IN_STEPS = frozenset((BETWEEN, *(phase.value for phase in Phase)))


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A function or a line of code, and how much of a phase was spent there."""

    function: str
    file: str
    line: int
    share: float
    """Of the phase's samples, 0–1."""
    low: float
    """The lower end of the share's 95 % confidence interval …"""
    high: float
    """… and its upper end."""
    looks: int

    @property
    def name(self) -> str:
        """The place as people look it up: `get_batch (train.py:118)`."""
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class PhaseCode:
    """The stack samples of one phase."""

    looks: int
    places: tuple[CodePlace, ...]
    """The most frequent first; samples entirely inside torch belong to no place."""


@dataclass(frozen=True, slots=True)
class UserTime:
    """Which code the training threads ran."""

    looks: int = 0
    """Samples taken while training steps ran."""
    taken: int = 0
    """All samples."""
    torn: int = 0
    way: str | None = None
    """How they were taken: `py-spy` or `signal`; `None` without samples."""
    phases: Mapping[str, PhaseCode] = field(default_factory=dict)
    """By a phase's key, and `between`; only phases with enough samples."""
    by_rank: Mapping[int, Mapping[str, PhaseCode]] = field(default_factory=dict)
    """The same for each rank alone."""
    all_phases: PhaseCode | None = None
    """The samples of the whole step; those entirely inside torch belong to no place here either."""


NOBODY_LOOKED = UserTime()


def user_time(bursts: Sequence[StackBurst], ranks: Sequence[RankRecords], warmup: int) -> UserTime:
    """Returns what the samples of these ranks say; the first `warmup` steps are left out."""
    bursts = [burst for burst in bursts if not burst.is_of_worker]
    if not bursts:
        return NOBODY_LOOKED
    by_rank = {rank.rank.rank: list(_in_steps(bursts, rank, warmup)) for rank in ranks}
    samples = [sample for found in by_rank.values() for sample in found]
    loop = _Loop.of(samples)
    block_s = independent_after_s(ranks)
    whole = _phase_code(samples, loop, block_s)
    ways = {burst.way for burst in bursts}
    return UserTime(
        looks=_count(samples),
        taken=sum(burst.looks for burst in bursts),
        torn=sum(burst.torn for burst in bursts),
        way=", ".join(sorted(ways)),
        phases=_by_phase(samples, loop, block_s),
        by_rank={rank: _by_phase(found, loop, block_s) for rank, found in by_rank.items() if found},
        all_phases=whole if whole.looks >= MIN_LOOKS else None,
    )


def _in_steps(
    bursts: Sequence[StackBurst], rank: RankRecords, warmup: int
) -> Iterator[StackSample]:
    """Returns the samples of a rank that fall into its complete steps."""
    found = [
        sample
        for burst in bursts
        if burst.pid == rank.rank.pid
        for sample in burst.samples
        if sample.phase in _IN_STEPS
    ]
    moments = sample_moments(found, rank, warmup)
    for place in np.flatnonzero(moments.is_training).tolist():
        sample = found[place]
        yield replace(sample, phase=BETWEEN) if moments.is_between[place] else sample


@dataclass(frozen=True, slots=True)
class SampleMoments:
    """Where in the steps of a rank samples were taken; an array has a value for each."""

    is_training: Bools
    """In a complete step after warm-up that has little evaluation and saving in it."""
    is_between: Bools
    """Outside what the user marked as the step, or between an evaluation and the next batch."""
    is_after_evaluation: Bools
    """Of these, those of the latter kind."""
    offset_s: Floats
    """Since the step's record began."""
    evaluation_s: Floats
    """Of evaluation in that record; 0 where the sample is in none."""
    is_warm: Bools
    """In a complete step after warm-up."""
    evaluated_share: float = 0.0
    """Of the rank's steps: those with an evaluation, 0–1."""


def sample_moments(samples: Sequence[StackSample], rank: RankRecords, warmup: int) -> SampleMoments:
    """Returns in which steps of a rank its samples were taken; the first `warmup` are warm-up."""
    steps = rank.steps
    if not samples or not len(steps):
        none, zero = np.zeros(len(samples), dtype=bool), np.zeros(len(samples))
        return SampleMoments(none, none, none, zero, zero, none)
    starts = steps["start_ns"]
    began_ns = int(rank.blocks[0]["start_ns"]) if len(rank.blocks) else int(starts[0])
    other_ns = np.maximum(steps["evaluation_ns"], 0) + np.maximum(steps["checkpoint_ns"], 0)
    inside_ns = np.maximum(steps["input_ns"], 0) + np.maximum(steps["body_ns"], 0)
    began_unix_s = rank.rank.unix_s(0)
    at_ns = np.array([round((sample.unix_s - began_unix_s) * 1e9) for sample in samples])
    step = np.searchsorted(starts, at_ns, side="right") - 1
    is_folded = (step < 0) & (at_ns >= began_ns)
    taken = steps[step]
    offset_ns, wall_ns = at_ns - taken["start_ns"], taken["wall_ns"]
    is_explicit = (taken["flags"] & int(record_layout.StepFlag.EXPLICIT)) != 0
    is_complete = (taken["flags"] & int(record_layout.NO_STEP)) == 0
    is_warm = (step >= warmup) | (rank.earlier_steps > 0 or len(rank.blocks) > 0)
    is_seen = (step >= 0) & (offset_ns <= wall_ns)
    is_inside = is_seen & is_complete & is_warm
    is_outside = offset_ns < wall_ns - inside_ns[step]
    # What an explicit step leaves out comes before it; else there is such time after an evaluation.
    is_after = (taken["evaluation_ns"] > 0) & (offset_ns >= other_ns[step]) & ~is_explicit
    is_between = is_outside & (is_explicit | is_after)
    is_training = is_between | is_explicit | (other_ns[step] <= MAX_OTHER_SHARE * wall_ns)
    evaluation_ns = np.where(is_seen, np.maximum(taken["evaluation_ns"], 0), 0)
    return SampleMoments(
        is_training=is_folded | (is_inside & is_training),
        is_between=is_inside & is_between,
        is_after_evaluation=is_inside & is_outside & is_after,
        offset_s=offset_ns * 1e-9,
        evaluation_s=evaluation_ns * 1e-9,
        is_warm=is_folded | is_inside,
        evaluated_share=float((steps["evaluation_ns"] > 0).mean()),
    )


@dataclass(frozen=True, slots=True)
class _Loop:
    """The lines that call the phases of a step."""

    functions: frozenset[tuple[str, str]]
    frameworks: frozenset[CodeLine]
    """Lines that call a framework's whole loop: `trainer.train()`."""

    @classmethod
    def of(cls, samples: Sequence[StackSample]) -> _Loop:
        callers: dict[CodeLine, set[str]] = defaultdict(set)
        for sample in samples:
            if sample.caller is not None and sample.phase in _CALLED:
                callers[sample.caller].add(sample.phase)
        return cls(
            frozenset((line.function, line.file) for line in callers),
            frozenset(line for line, phases in callers.items() if len(phases) > 1),
        )

    def key(self, sample: StackSample) -> tuple[str, str, int | None] | None:
        """Returns what a sample is counted under: a function, or a line of the training loop."""
        line = sample.user
        if line is None:
            return None
        if line in self.frameworks and sample.library is not None:
            line = sample.library
            return line.function, line.file, None
        is_loop = (line.function, line.file) in self.functions
        return line.function, line.file, line.line if is_loop else None

    def line(self, sample: StackSample) -> int:
        """Returns the line at which a sample was taken."""
        line = sample.user
        if line in self.frameworks and sample.library is not None:
            line = sample.library
        return 0 if line is None else line.line


def _by_phase(samples: Sequence[StackSample], loop: _Loop, block_s: float) -> dict[str, PhaseCode]:
    """Returns the samples of each phase that has enough of them."""
    found: dict[str, list[StackSample]] = defaultdict(list)
    for sample in samples:
        found[sample.phase].append(sample)
    codes = {phase: _phase_code(each, loop, block_s) for phase, each in found.items()}
    return {phase: code for phase, code in codes.items() if code.looks >= MIN_LOOKS}


def _phase_code(samples: Sequence[StackSample], loop: _Loop, block_s: float) -> PhaseCode:
    total = _count(samples)
    worth = independent_looks([(each, loop.key(each)) for each in samples], block_s)
    by_key: Counter[tuple[str, str, int | None]] = Counter()
    lines: dict[tuple[str, str, int | None], Counter[int]] = defaultdict(Counter)
    for sample in samples:
        key = loop.key(sample)
        if key is not None:
            by_key[key] += sample.looks
            lines[key][loop.line(sample)] += sample.looks
    ordered = sorted(by_key.items(), key=lambda item: (-item[1], str(item[0])))
    return PhaseCode(
        looks=total,
        places=tuple(
            CodePlace(
                function=key[0],
                file=key[1],
                line=min(lines[key].items(), key=lambda item: (-item[1], item[0]))[0],
                share=looks / total,
                low=low,
                high=high,
                looks=looks,
            )
            for key, looks in ordered[:MAX_PLACES]
            if looks >= MIN_SHARE * total
            for low, high in [share_interval(looks / total * worth, worth)]
        ),
    )


def _count(samples: Sequence[StackSample]) -> int:
    return sum(sample.looks for sample in samples)


def independent_after_s(ranks: Sequence[RankRecords]) -> float:
    """Returns the seconds after which two samples of these ranks count as independent."""
    walls = [rank.steps["wall_ns"].mean() for rank in ranks if len(rank.steps)]
    return max(MIN_BLOCK_S, BLOCK_STEPS * 1e-9 * max(walls, default=0.0))


def independent_looks(seen: Sequence[tuple[StackSample, Hashable]], block_s: float) -> float:
    """Returns how many independent samples these are worth, each with the place that it is of.

    Successive samples are often of the same call. So the spread of the places' shares is measured
    over blocks of time, and compared with the one that independent samples would have. Few blocks
    show their spread badly, for which Student's t makes up.
    """
    places = {key: number for number, key in enumerate({key for _, key in seen})}
    blocks = {
        block: number for number, block in enumerate({each.unix_s // block_s for each, _ in seen})
    }
    counts = np.zeros((len(blocks), len(places)))
    for each, key in seen:
        counts[blocks[each.unix_s // block_s], places[key]] += each.looks
    total = float(counts.sum())
    if len(blocks) < 2:
        return min(total, 1.0)
    shares = counts.sum(axis=0) / total
    binomial = float(np.sum(shares * (1 - shares))) / total
    away = counts - counts.sum(axis=1, keepdims=True) * shares
    spread = len(blocks) / (len(blocks) - 1) * float(np.sum(away**2)) / total**2
    student = float(t_quantile(0.025, np.array(len(blocks) - 1)))
    worth = total if spread <= binomial else total * binomial / spread
    return max(1.0, worth * (NORMAL_DEVIATE / student) ** 2)


def share_interval(found: float, of: float) -> tuple[float, float]:
    """Returns Wilson's confidence interval of a share; it holds for few samples, and for shares of
    0 and 1."""
    z2 = NORMAL_DEVIATE**2
    share = found / of
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = NORMAL_DEVIATE * math.sqrt(share * (1 - share) / of + z2 / (4 * of**2)) / (1 + z2 / of)
    return max(0.0, middle - half), min(1.0, middle + half)
