"""The time in which steps ran: no compilation, evaluation, checkpoint, pause or end in it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import STARTED_UNIX_S, make_rank, make_steps
from traceml.facts.step_stretches import NO_STRETCHES, Stretches, step_stretches, together
from traceml.facts.step_table import complete_steps
from traceml.model.record_layout import StepFlag
from traceml.store.blocks import fold

MS = 1_000_000


def stretch(steps: npt.NDArray[Any], first: int = 0) -> list[tuple[float, float]]:
    """Begin and end of each stretch, in milliseconds since the first step began."""
    rank = make_rank(steps, gpu=True)
    return _in_ms(step_stretches(rank.rank, complete_steps(rank), rank.blocks, first).analyzed)


def _in_ms(found: Stretches) -> list[tuple[float, float]]:
    return [
        (round((begin - STARTED_UNIX_S) * 1e3, 1), round((end - STARTED_UNIX_S) * 1e3, 1))
        for begin, end in zip(found.begin_s, found.end_s, strict=True)
    ]


def ten_steps(**spent_ms: dict[int, float]) -> npt.NDArray[Any]:
    """Ten steps of 10 ms, of which some also spend time on something besides."""
    parts = {"input": 1.0, "forward": 3.0, "backward": 4.0, "optimizer": 1.0}
    steps = make_steps(parts, np.ones(10))
    for name, by_step in spent_ms.items():
        for step, each_ms in by_step.items():
            steps["wall_ns"][step] += each_ms * MS
            if name == "compile":
                steps["compile_ns"][step] = each_ms * MS
                steps["body_ns"][step] += each_ms * MS
            elif name != "pause":
                steps[f"{name}_ns"][step] = each_ms * MS
    steps["start_ns"] = np.cumsum(steps["wall_ns"]) - steps["wall_ns"]
    return steps


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(ten_steps(), [(0, 100)], id="nothing but steps"),
        pytest.param(
            ten_steps(evaluation={4: 50.0}), [(0, 40), (100, 150)], id="an evaluation in between"
        ),
        pytest.param(
            ten_steps(checkpoint={4: 50.0}), [(0, 40), (100, 150)], id="a checkpoint in between"
        ),
        pytest.param(
            ten_steps(checkpoint={4: 0.1}), [(0, 100.1)], id="one that takes next to no time"
        ),
        pytest.param(
            ten_steps(pause={4: 30.0}), [(0, 40), (70, 130)], id="time outside an explicit step"
        ),
        pytest.param(ten_steps(compile={4: 40.0}), [(0, 40), (90, 140)], id="a step that compiled"),
        pytest.param(ten_steps(compile={4: 5.0}), [(0, 105)], id="one that compiled a little"),
    ],
)
def test_only_steps_count(steps: npt.NDArray[Any], expected: list[tuple[float, float]]) -> None:
    assert stretch(steps) == expected


def test_warm_up_does_not_count() -> None:
    assert stretch(ten_steps(), first=3) == [(30, 100)]
    rank = make_rank(ten_steps(pause={6: 30.0}), gpu=True)
    found = step_stretches(rank.rank, complete_steps(rank), rank.blocks, first=3)
    assert _in_ms(found.analyzed) == [(30, 60), (90, 130)]
    assert _in_ms(found.every) == [(0, 60), (90, 130)]


def test_what_comes_after_the_last_step_and_what_failed_does_not_count() -> None:
    steps = ten_steps()
    steps["flags"][4] = int(StepFlag.ABORTED)
    steps["flags"][9] = int(StepFlag.TAIL)
    assert stretch(steps) == [(0, 40), (50, 90)]


def test_folded_steps_count_where_a_block_holds_nothing_else() -> None:
    def block(**spent_ms: dict[int, float]) -> npt.NDArray[Any]:
        return fold(ten_steps(**spent_ms))

    rank = make_rank(ten_steps()[:0], gpu=True)
    steps = complete_steps(rank)
    for blocks, expected in (
        (block(), [(0, 100)]),
        (block(evaluation={4: 50.0}), []),
        (block(compile={0: 400.0}), []),
    ):
        assert _in_ms(step_stretches(rank.rank, steps, blocks).every) == expected


def test_ranks_on_one_gpu_train_when_any_of_them_does() -> None:
    one = Stretches(np.array([0.0, 10.0]), np.array([5.0, 12.0]))
    other = Stretches(np.array([4.0]), np.array([6.0]))
    found = together([one, other])
    assert (found.begin_s.tolist(), found.end_s.tolist()) == ([0, 10], [6, 12])
    assert together([]) is NO_STRETCHES


@pytest.mark.parametrize(
    ("begin", "end", "inside"),
    [
        pytest.param(1.0, 2.0, 1.0, id="inside"),
        pytest.param(-3.0, 1.0, 1.0, id="begins before"),
        pytest.param(4.0, 11.0, 2.0, id="over a gap"),
        pytest.param(6.0, 9.0, 0.0, id="in a gap"),
        pytest.param(20.0, 30.0, 0.0, id="after the end"),
        pytest.param(-9.0, 99.0, 7.0, id="around everything"),
    ],
)
def test_overlap(begin: float, end: float, inside: float) -> None:
    ran = Stretches(np.array([0.0, 10.0]), np.array([5.0, 12.0]))
    assert ran.overlap_s(np.array([begin]), np.array([end])).tolist() == [inside]
    assert NO_STRETCHES.overlap_s(np.array([begin]), np.array([end])).tolist() == [0.0]


SPANS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(1, 20)).map(lambda at: (at[0], at[0] + at[1])),
    max_size=8,
)


@given(SPANS, SPANS, st.lists(st.integers(-10, 130), min_size=2, max_size=8, unique=True))
def test_what_lies_inside_is_counted_once_and_never_more_than_there_is(
    one: list[tuple[int, int]], other: list[tuple[int, int]], edges: list[int]
) -> None:
    ran = together([_stretches([span]) for span in (*one, *other)])
    inside = {moment for begin, end in (*one, *other) for moment in range(begin, end)}
    cuts = np.array(sorted(edges), np.float64)
    found = ran.overlap_s(cuts[:-1], cuts[1:])
    expected = [len(inside & set(range(int(a), int(b)))) for a, b in pairwise(cuts)]
    assert found.tolist() == pytest.approx(expected)


def _stretches(spans: list[tuple[int, int]]) -> Stretches:
    begins, ends = zip(*spans, strict=True)
    return Stretches(np.array(begins, np.float64), np.array(ends, np.float64))
