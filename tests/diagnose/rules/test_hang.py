"""A hang names the rank that never came; a long pause is none."""

from dataclasses import replace

import pytest

from factories import make_run
from failing import failed, report, standing, with_deaths, with_stall
from traceml.diagnose.rules import hang
from traceml.facts.gather import gather
from traceml.model.failure import Doing
from traceml.model.finding import Kind, Severity
from traceml.store.records import RunRecords

REDUCING = standing(0, Doing.COLLECTIVE, call="all_reduce")
ASLEEP = standing(1, Doing.CODE, "train.py:30 in load")


@pytest.mark.parametrize(
    ("run", "culprit", "words"),
    [
        pytest.param(
            with_stall(failed(status=143, ranks=2), REDUCING, ASLEEP),
            1,
            "rank 1 stands at train.py:30 in load, while rank 0 waits in all_reduce",
            id="one rank never came",
        ),
        pytest.param(
            with_stall(failed(status=137, ranks=2), standing(0, Doing.BACKWARD), ASLEEP),
            1,
            "rank 0 waits in backward",
            id="the other is in DDP's backward",
        ),
        pytest.param(
            with_stall(failed(status=143, ranks=2), REDUCING, replace(ASLEEP, moved=True)),
            1,
            "and is busy",
            id="one rank is busy with something else",
        ),
        pytest.param(
            with_stall(failed(status=143), standing(0, Doing.INPUT)),
            0,
            "waits for its data loader",
            id="a data loader that gives nothing",
        ),
        pytest.param(
            with_stall(
                failed(status=143, ranks=2),
                REDUCING,
                standing(1, Doing.COLLECTIVE, "b.py:1 in f", call="barrier"),
            ),
            None,
            "wait in different places",
            id="two collectives",
        ),
        pytest.param(
            with_stall(failed(status=143, ranks=2), REDUCING, replace(REDUCING, rank=1, pid=1001)),
            None,
            "none of the ranks here is missing",
            id="a rank on another machine",
        ),
        pytest.param(
            with_stall(replace(make_run(ranks=2), ending=None), REDUCING, ASLEEP),
            1,
            "rank 1",
            id="while it goes on",
        ),
    ],
)
def test_must_fire(run: RunRecords, culprit: int | None, words: str) -> None:
    finding = hang.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.HANG, Severity.CRITICAL)
    assert finding.evidence["rank"] == culprit
    assert words in finding.claim


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(failed(status=143, ranks=2), id="ended without a stall"),
        pytest.param(
            with_stall(failed(status=143, ranks=2), REDUCING, ASLEEP, resumed=True),
            id="steps came again",
        ),
        pytest.param(
            with_stall(failed(status=143, ranks=2), REDUCING, ASLEEP, after_s=-9),
            id="steps came after the stacks were taken",
        ),
        pytest.param(
            with_stall(failed(status=0, ranks=2), REDUCING, ASLEEP), id="ended well all the same"
        ),
        pytest.param(
            with_stall(failed(status=143), standing(0, Doing.CODE, moved=True)),
            id="a long evaluation, and then ended",
        ),
        pytest.param(
            with_stall(failed(status=143), standing(0, Doing.IDLE)), id="a notebook between cells"
        ),
        pytest.param(
            with_stall(failed(report(1), status=1, ranks=2), REDUCING), id="a rank had failed"
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert hang.check(gather(run)) is None


def test_a_rank_that_died_before_is_the_cause_and_one_that_died_after_is_not() -> None:
    waiting = with_stall(failed(status=1, ranks=2), REDUCING)
    later = with_deaths(waiting, (0, 143), (1, 137))
    assert hang.check(gather(later)) is not None
    deaths = tuple(replace(death, unix_s=1.0) for death in later.seen.deaths[1:])
    before = replace(later, seen=replace(later.seen, deaths=deaths))
    assert hang.check(gather(before)) is None


def test_a_rank_that_ended_its_training_early_is_named() -> None:
    run = with_deaths(with_stall(failed(status=143, ranks=2), REDUCING), (1, 0))
    gone = tuple(replace(death, unix_s=1.0) for death in run.seen.deaths)
    ranks = (run.ranks[0], replace(run.ranks[1], health=replace(run.ranks[1].health, ended=True)))
    finding = hang.check(gather(replace(run, ranks=ranks, seen=replace(run.seen, deaths=gone))))
    assert finding is not None
    assert "rank 1 has gone after step 200" in finding.claim
    assert "same number of steps" in finding.action
