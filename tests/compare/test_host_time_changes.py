"""A function has moved where more samples say so than chance does, and never from a handful."""

from __future__ import annotations

import pytest
from msgspec import structs

from factories import make_run
from traceml.compare.host_time_changes import host_time_changes, two_shares, user_looks
from traceml.compare.sides import Sides
from traceml.figures.host_time import host_time_changes_part
from traceml.summaries.build import build
from traceml.summaries.host_time_record import HostCallSummary, HostPhaseSummary, HostTimeSummary
from traceml.summaries.record import Summary
from traceml.text.host_time import host_time_sentences

PLAIN = build(make_run(steps=20), 0.0, "0")


def run(collate: int, looks: int, **more: HostPhaseSummary) -> Summary:
    """A run with so many of a phase's samples in `collate`, the others in the loop."""
    calls = (
        HostCallSummary("main", "train.py", 4, True, -1, looks, looks - collate),
        HostCallSummary("__next__", "torch/dataloader.py", 7, False, 0, collate, 0),
        HostCallSummary("collate", "train.py", 9, True, 1, collate, collate),
    )
    phases = {"input": HostPhaseSummary(looks, 1.0, 5.0, (), calls), **more}
    return structs.replace(PLAIN, host_time=HostTimeSummary(looks=looks, phases=phases))


def moved(a: list[Summary], b: list[Summary]) -> dict[str, tuple[float, float]]:
    found = host_time_changes(Sides(tuple(a), tuple(b)))
    assert found is not None
    return {each.function: (each.change.lhs or 0.0, each.change.rhs or 0.0) for each in found.moved}


def test_a_function_that_grew_is_named_with_an_interval() -> None:
    found = host_time_changes(Sides((run(40, 200),), (run(120, 200),)))
    assert found is not None
    assert {each.function for each in found.moved} == {"collate", "main"}
    (collate,) = [each for each in found.moved if each.function == "collate"]
    assert (collate.phase, collate.change.lhs, collate.change.rhs) == ("input", 0.2, 0.6)
    assert collate.change.interval == pytest.approx((0.308, 0.483), abs=0.005)
    _, said = host_time_sentences(found)
    assert "Input wait: collate (train.py) 20% -> 60% of the phase (+31 to +48 points)" in said
    part = host_time_changes_part(found)
    assert part is not None
    assert len(part.tables[0].rows) == 2


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(run(40, 200), run(40, 200), id="the same"),
        pytest.param(run(40, 200), run(48, 200), id="less than chance explains"),
        pytest.param(run(0, 5), run(5, 5), id="five samples"),
        pytest.param(run(0, 29), run(29, 29), id="just too few"),
        pytest.param(run(4000, 20_000), run(4800, 20_000), id="sure, and too small to matter"),
    ],
)
def test_what_may_be_chance_is_not_told(a: Summary, b: Summary) -> None:
    assert moved([a], [b]) == {}
    assert host_time_sentences(host_time_changes(Sides((a,), (b,))))[1] == []


def test_swapping_the_sides_mirrors_the_change() -> None:
    there, back = two_shares((40, 200), (120, 200)), two_shares((120, 200), (40, 200))
    assert there.delta == pytest.approx(-(back.delta or 0.0))
    assert there.interval is not None and back.interval is not None
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))
    assert there.p == back.p


def test_of_several_runs_the_run_is_the_unit() -> None:
    steady = [run(number, 200) for number in (40, 42, 38)]
    assert "collate" in moved(steady, [run(number, 200) for number in (118, 120, 122)])
    assert moved(steady, [run(number, 200) for number in (10, 180, 60)]) == {}


def test_without_samples_on_both_sides_there_is_no_comparison() -> None:
    assert host_time_changes(Sides((PLAIN,), (run(40, 200),))) is None
    assert host_time_changes(Sides((PLAIN,), (PLAIN,))) is None


def test_a_sample_counts_for_the_users_innermost_function() -> None:
    phase = run(40, 200).host_time
    assert phase is not None
    assert user_looks(phase.phases["input"]) == {
        ("main", "train.py"): 160,
        ("collate", "train.py"): 40,
    }
