"""A hang names the rank that never came; a long pause is none."""

from dataclasses import replace
from typing import Any

import pytest

from factories import make_run
from failing import failed, report, standing, unrecorded, with_deaths, with_stall
from traceml.diagnose.rules import hang
from traceml.facts.gather import gather
from traceml.model.failure import Doing, Standing, StuckCollective
from traceml.model.finding import Kind, Severity
from traceml.store.records import RunRecords

REDUCING = standing(0, Doing.COLLECTIVE, call="all_reduce")
ASLEEP = standing(1, Doing.CODE, "train.py:30 in load")
UNRECORDED = standing(2, Doing.CODE, "train.py:40 in train")


def by_recorder(*ranks: Standing, **more: Any) -> RunRecords:
    """A hang of two ranks in which rank 0 waits in a collective, by NCCL's flight recorder."""
    run = with_stall(failed(status=143, ranks=2), *ranks)
    (stall,) = run.seen.stalls
    stuck = StuckCollective(
        group="default_pg",
        number=1207,
        name="all_reduce",
        size_bytes=16 << 20,
        since_unix_s=stall.since_unix_s + 1,
        waiting=(0,),
        **more,
    )
    return replace(run, seen=replace(run.seen, stalls=(replace(stall, collectives=(stuck,)),)))


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
            with_stall(
                failed(status=143, ranks=2),
                replace(REDUCING, collectives=2),
                standing(1, Doing.COLLECTIVE, "b.py:1 in f", call="barrier", collectives=1),
            ),
            1,
            "rank 1 waits for the other ranks in barrier at b.py:1 in f, in call 1 of a collective "
            "since its last step, while rank 0 waits in all_reduce at train.py:9 in main, in call "
            "2: they took different branches",
            id="one rank is a collective behind",
        ),
        pytest.param(
            with_stall(failed(status=143, ranks=2), REDUCING, replace(ASLEEP, phase="forward")),
            1,
            "rank 1 stands in forward at train.py:30 in load",
            id="its open phase is known",
        ),
        pytest.param(
            by_recorder(REDUCING, ASLEEP, missing=(1,)),
            1,
            "rank 1 never reached all_reduce #1,207 of group default_pg (16.0 MiB), which rank 0 "
            "has waited in for 29.0 s; rank 1 stands at train.py:30 in load.",
            id="the flight recorder names what a rank is missing from",
        ),
        pytest.param(
            by_recorder(REDUCING, replace(REDUCING, rank=1, pid=1001), others=((1, "broadcast"),)),
            None,
            "took different branches: as collective #1,207 of group default_pg rank 0 began "
            "all_reduce (16.0 MiB); rank 1 began broadcast.",
            id="the flight recorder shows different operations",
        ),
        pytest.param(
            with_stall(failed(status=143, ranks=2), REDUCING, replace(REDUCING, rank=1, pid=1001)),
            None,
            "none of the ranks here is missing",
            id="a rank on another machine",
        ),
        pytest.param(
            with_stall(failed(status=143), standing(0, Doing.BACKWARD)),
            0,
            "rank 0 stands in backward at train.py:9 in main",
            id="a single process in backward",
        ),
        pytest.param(
            with_stall(failed(status=143), REDUCING),
            0,
            "rank 0 stands in all_reduce at train.py:9 in main",
            id="a single process in a collective of its own",
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
        pytest.param(
            unrecorded(with_stall(failed(status=143), standing(0, Doing.CODE)), 0),
            id="the tracer had stopped recording",
        ),
        pytest.param(
            with_stall(failed(status=143), replace(standing(0, Doing.CODE), pid=77)),
            id="of an earlier start",
        ),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert hang.check(gather(run)) is None


def test_a_single_process_is_not_told_that_it_waits_for_others() -> None:
    finding = hang.check(gather(with_stall(failed(status=143), standing(0, Doing.BACKWARD))))
    assert finding is not None
    assert finding.evidence["waiting_ranks"] is None
    assert "other ranks" not in finding.claim
    assert "See why rank 0 did not go on: train.py:9 in main." in finding.action


def test_only_ranks_that_recorded_steps_are_named() -> None:
    run = unrecorded(with_stall(failed(status=143, ranks=3), REDUCING, ASLEEP, UNRECORDED), 2)
    finding = hang.check(gather(run))
    assert finding is not None
    assert finding.ranks == (1,)
    assert "rank 2" not in finding.claim


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


def test_ranks_that_were_ended_while_their_stacks_were_taken_again_did_not_cause_it() -> None:
    run = with_stall(failed(status=1, ranks=2), REDUCING, ASLEEP, after_s=60.0)
    (stall,) = run.seen.stalls
    again = replace(stall, first_seen_unix_s=stall.seen_unix_s - 30)
    run = with_deaths(run, (1, 143), (0, 143))
    assert all(death.unix_s < stall.seen_unix_s for death in run.seen.deaths)
    run = replace(run, seen=replace(run.seen, stalls=(again,)))
    finding = hang.check(gather(run))
    assert finding is not None
    assert finding.ranks == (1,)
