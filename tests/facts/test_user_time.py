"""A place's share of a phase is its share of the looks that fell into training steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factories import STARTED_UNIX_S, make_run, map_steps, work_between
from traceml.facts.gather import gather
from traceml.facts.user_time import (
    MIN_LOOKS,
    NOBODY_LOOKED,
    PhaseCode,
    UserTime,
    independent_looks,
    share_interval,
)
from traceml.model.record_layout import StepFlag
from traceml.model.sample import CodeLine, StackBurst, StackSample
from traceml.store.records import RunRecords

BATCH = CodeLine("get_batch", "train.py", 118)
LOOP = CodeLine("main", "train.py", 40)
BACKWARD = CodeLine("main", "train.py", 44)


def seen(
    run: RunRecords, *samples: tuple[float, str, CodeLine | None], rank: int = 0, **more: Any
) -> UserTime:
    """The run after looks at these seconds, in these phases and places."""
    found = tuple(
        StackSample(STARTED_UNIX_S + at_s, 1, phase, line, **more) for at_s, phase, line in samples
    )
    burst = StackBurst(rank, 1000 + rank, "py-spy", len(found) + 2, 2, found)
    return gather(replace(run, stack_bursts=(*run.stack_bursts, burst))).user_time


def looks(count: int, line: CodeLine | None, phase: str = "residual", first_s: float = 1.0) -> Any:
    return [(first_s + 0.01 * number, phase, line) for number in range(count)]


def places(code: PhaseCode) -> list[tuple[str, int, float]]:
    return [(place.function, place.line, place.share) for place in code.places]


def test_a_function_is_told_with_its_share_and_its_most_frequent_line() -> None:
    other = replace(BATCH, line=120)
    found = seen(make_run(), *looks(30, BATCH), *looks(10, other), *looks(40, None))
    code = found.phases["residual"]
    assert (code.looks, found.looks, found.taken, found.torn) == (80, 80, 82, 2)
    assert places(code) == [("get_batch", 118, 0.5)]
    (place,) = code.places
    assert place.name == "get_batch (train.py:118)"
    # Wider than Wilson's interval of 40 of 80, because successive samples are not independent.
    assert 0.0 <= place.low < 0.393 and 0.607 < place.high <= 1.0


def test_the_loops_own_lines_are_told_one_by_one() -> None:
    run = make_run()
    called = [
        StackSample(STARTED_UNIX_S + 1, 1, "backward", None, BACKWARD),
        StackSample(STARTED_UNIX_S + 1, 1, "forward", None, replace(LOOP, line=43)),
    ]
    burst = StackBurst(0, 1000, "py-spy", 2, 0, tuple(called))
    run = replace(run, stack_bursts=(burst,))
    found = seen(run, *looks(20, LOOP), *looks(20, replace(LOOP, line=52)))
    assert places(found.phases["residual"]) == [("main", 40, 0.5), ("main", 52, 0.5)]


def test_where_a_framework_holds_the_loop_its_function_is_told() -> None:
    line = CodeLine("<module>", "train.py", 50)
    phases = [StackSample(STARTED_UNIX_S + 1, 1, p, None, line) for p in ("forward", "backward")]
    run = replace(make_run(), stack_bursts=(StackBurst(0, 1000, "py-spy", 2, 0, tuple(phases)),))
    log = CodeLine("Trainer._log", "trainer/loop.py", 7)
    found = seen(run, *looks(20, line), library=log)
    assert places(found.phases["residual"]) == [("Trainer._log", 7, 1.0)]


def test_too_few_looks_say_nothing() -> None:
    assert "residual" not in seen(make_run(), *looks(MIN_LOOKS - 1, BATCH)).phases
    assert "residual" in seen(make_run(), *looks(MIN_LOOKS, BATCH)).phases
    assert gather(make_run()).user_time is NOBODY_LOOKED


@pytest.mark.parametrize(
    ("run", "at_s"),
    [
        pytest.param(make_run(), -1.0, id="before the first step"),
        pytest.param(make_run(), 60.0, id="after the last"),
        pytest.param(make_run(first_step_ms=3000.0), 1.0, id="in warm-up"),
        pytest.param(work_between(make_run(), "evaluation", 30.0), 1.0, id="around an evaluation"),
        pytest.param(work_between(make_run(), "checkpoint", 30.0), 1.0, id="around a checkpoint"),
    ],
)
def test_looks_outside_training_steps_do_not_count(run: RunRecords, at_s: float) -> None:
    found = seen(run, *looks(20, BATCH, first_s=at_s))
    assert (found.looks, found.phases) == (0, {})
    assert found.taken == 22


def test_what_an_explicit_step_leaves_out_is_between_steps() -> None:
    def explicit(steps: Any, rank: int) -> None:
        steps["flags"] |= np.uint32(StepFlag.EXPLICIT)

    run = map_steps(make_run(steps=20, noise=0, between_ms=463.0), explicit)  # 37 ms are inside
    made = [(second / 2 + 0.2, "residual", BATCH) for second in range(2, 18)]
    inside = [(second / 2 + 0.48, "residual", LOOP) for second in range(2, 18)]
    found = seen(run, *made, *inside)
    assert places(found.phases["between"]) == [("get_batch", 118, 1.0)]
    assert places(found.phases["residual"]) == [("main", 40, 1.0)]


def test_each_rank_has_its_own() -> None:
    run = make_run(2)
    burst = StackBurst(
        1, 1001, "signal", 20, 0,
        tuple(StackSample(STARTED_UNIX_S + 1, 1, "forward", BATCH) for _ in range(20)),
    )  # fmt: skip
    found = seen(replace(run, stack_bursts=(burst,)), *looks(20, LOOP))
    assert places(found.by_rank[1]["forward"]) == [("get_batch", 118, 1.0)]
    assert set(found.by_rank[0]) == {"residual"}
    assert found.way == "py-spy, signal"


def worth_of(random: np.random.Generator, calls: int, looks_per_call: int) -> tuple[float, float]:
    """How many independent samples there are, and the share of one of two functions of equal time,
    where each call is sampled so many times, every 40 ms."""
    is_first = np.repeat(random.random(calls) < 0.5, looks_per_call)
    seen = [(StackSample(0.04 * n, 1, "forward"), bool(each)) for n, each in enumerate(is_first)]
    return independent_looks(seen, block_s=2.0), float(is_first.mean())


@pytest.mark.parametrize("looks_per_call", [1, 5, 10])
def test_the_interval_of_a_share_counts_calls_and_not_samples(looks_per_call: int) -> None:
    held, found = 0, []
    for seed in range(200):
        worth, share = worth_of(np.random.default_rng(seed), 300, looks_per_call)
        low, high = share_interval(share * worth, worth)
        held += low <= 0.5 <= high
        found.append(worth)
    assert held >= 180
    assert 120 < float(np.median(found)) < 400


def test_samples_of_one_moment_are_worth_one() -> None:
    seen = [(StackSample(0.01 * n, 1, "forward"), n % 2) for n in range(40)]
    assert independent_looks(seen, block_s=2.0) == 1.0
