"""Which earlier predictions are scored, and by what."""

from __future__ import annotations

import pytest

from traceml.compare.history_record import PredictionScore
from traceml.compare.prediction_scores import RunVersion, score_by_kind, score_predictions
from traceml.summaries.record import Global, Issue, SectionSummary, Summary, WhatIfSummary


def predicted(
    kind: str, saved_ms: float, step_ms: float = 100.0, part_of: str | None = None
) -> WhatIfSummary:
    return WhatIfSummary(
        kind=kind,
        part_of=part_of,
        step_time_ms=step_ms,
        predicted_step_time_ms=step_ms - saved_ms,
        saved_ms=saved_ms,
    )


def run(
    step_ms: float,
    *what_if: WhatIfSummary,
    wall_ms: float | None = None,
    samples: float | None = 32.0,
    also: tuple[str, ...] = (),
) -> Summary:
    """A run with these predictions; `also` are findings without one."""
    average = {"step_time_ms": step_ms, "wall_step_ms": wall_ms, "samples_per_step": samples}
    kinds = (*(found.kind for found in what_if), *also)
    section = SectionSummary(
        issues=tuple(Issue(kind=kind) for kind in kinds), global_=Global(average=average)
    )
    return Summary(step_time=section, what_if=what_if)


def scores(*versions: list[Summary]) -> list[PredictionScore]:
    return score_predictions(
        [
            RunVersion(tuple((f"v{number}-{turn}", each) for turn, each in enumerate(runs)))
            for number, runs in enumerate(versions)
        ]
    )


INPUT = predicted("INPUT_BOUND", 40.0)


def test_a_finding_that_is_gone_is_scored_by_the_mean_of_all_runs():
    (score,) = scores([run(100.0, INPUT), run(104.0, INPUT)], [run(70.0), run(74.0)])
    assert score.kinds == ("INPUT_BOUND",)
    assert (score.step_ms, score.predicted_ms, score.actual_ms) == (102.0, 62.0, 72.0)
    assert score.saved_share == pytest.approx(30 / 40)
    assert (score.before_run, score.after_run) == ("v0-1", "v1-0")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([run(100.0, INPUT)], [run(90.0, predicted("INPUT_BOUND", 30.0))]),
        ([run(100.0, INPUT)], [run(60.0), run(99.0, INPUT)]),
        ([run(100.0, INPUT)], [run(60.0, also=("INPUT_BOUND",))]),
        ([run(100.0, INPUT), run(100.0)], [run(60.0)]),
        ([run(100.0, INPUT)], [run(60.0, samples=16.0)]),
        ([run(100.0, also=("COMPUTE_BOUND",))], [run(60.0)]),
        ([run(100.0, INPUT)], [Summary()]),
    ],
    ids=[
        "it is smaller, not gone",
        "one later run still has it",
        "it is still there, without a prediction",
        "not every earlier run had it",
        "steps have fewer samples",
        "nothing was predicted",
        "the later run has no steps",
    ],
)
def test_nothing_is_scored_where(before: list[Summary], after: list[Summary]):
    assert scores(before, after) == []


def test_findings_that_are_gone_at_once_are_scored_together_and_count_for_no_kind():
    found = scores([run(100.0, INPUT, predicted("LOGGING_HEAVY", 10.0))], [run(55.0)])
    (score,) = found
    assert score.kinds == ("INPUT_BOUND", "LOGGING_HEAVY")
    assert score.predicted_ms == 50.0 and score.saved_share == pytest.approx(0.9)
    assert score_by_kind(found) == {}


def test_a_part_of_another_finding_saves_the_same_time():
    part = predicted("GC_PAUSES", 15.0, part_of="WAIT_HEAVY")
    whole = predicted("WAIT_HEAVY", 40.0)
    (together,) = scores([run(100.0, whole, part)], [run(60.0)])
    assert together.kinds == ("WAIT_HEAVY",) and together.saved_share == 1.0
    (alone,) = scores([run(100.0, whole, part)], [run(85.0, predicted("WAIT_HEAVY", 25.0))])
    assert alone.kinds == ("GC_PAUSES",) and alone.saved_share == 1.0


def test_what_lies_between_steps_is_scored_by_their_wall_time():
    found = predicted("CHECKPOINT_HEAVY", 30.0, step_ms=140.0)
    (score,) = scores([run(100.0, found, wall_ms=140.0)], [run(100.0, wall_ms=110.0)])
    assert (score.step_ms, score.actual_ms, score.saved_share) == (140.0, 110.0, 1.0)


def test_the_score_of_a_kind_is_the_median_over_its_fixes():
    found = scores(
        [run(100.0, INPUT)], [run(60.0)], [run(100.0, INPUT)], [run(80.0)], [run(100.0, INPUT)]
    )
    kind = score_by_kind(found)["INPUT_BOUND"]
    assert kind.predictions == 2
    assert (kind.min_saved_share, kind.median_saved_share, kind.max_saved_share) == (0.5, 0.75, 1.0)
