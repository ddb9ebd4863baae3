"""A hang names the rank that never came; a long pause is none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factories import STARTED_UNIX_S, make_run, on_nodes
from failing import (
    ENDED_UNIX_S,
    failed,
    report,
    standing,
    unrecorded,
    with_deaths,
    with_lost_machine,
    with_stall,
)
from node_runs import bring_to_head, write_nodes
from traceml.diagnose.rules import hang
from traceml.facts.gather import gather
from traceml.model.failure import AgentSaw, Doing, Stall, Standing, StuckCollective
from traceml.model.finding import Finding, Kind, Severity
from traceml.model.run import Ending
from traceml.store.failures import write_seen
from traceml.store.load import load_run
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


# Several machines


def stall_of(*ranks: Standing, **more: Any) -> Stall:
    """What the agent of one machine saw of its ranks."""
    files = tuple(f"stacks/rank-{each.rank}-{each.pid}.txt" for each in ranks)
    since = STARTED_UNIX_S + 10
    return replace(Stall(since, since + 40, 0.037, ranks, stacks=files), **more)


def on_machine(rank: int, per_node: int, doing: Doing = Doing.COLLECTIVE, **more: Any) -> Standing:
    """Where a rank stands, whose process has the number that its machine gave it."""
    call = "all_reduce" if doing is Doing.COLLECTIVE else None
    return Standing(rank, 1000 + rank % per_node, doing, steps=200, call=call, **more)


def hang_of(place: Path, *by_node: tuple[Stall, ...], ranks: int, **more: float) -> Finding | None:
    """What is said of a job that did not end by itself and whose agents saw these stalls."""
    run = failed(status=143, ranks=ranks)
    assert run.ending == Ending(ENDED_UNIX_S, 143)
    head, *others = write_nodes(place, len(by_node), run=run, **more)
    for folder, stalls in zip((head, *others), by_node, strict=True):
        write_seen(folder, AgentSaw(stalls=stalls))
    return hang.check(gather(load_run(bring_to_head(head, *others))))


@pytest.mark.parametrize(
    ("ranks", "per_node", "culprit"),
    [
        *(pytest.param(4, 2, each, id=f"rank {each} of two nodes") for each in range(4)),
        *(pytest.param(3, 1, each, id=f"node {each} with one rank") for each in range(3)),
    ],
)
def test_the_culprit_is_named_whatever_machine_it_is_on(
    tmp_path: Path, ranks: int, per_node: int, culprit: int
) -> None:
    standings = [
        on_machine(each, per_node, Doing.CODE, where="train.py:77 in lonely")
        if each == culprit
        else on_machine(each, per_node)
        for each in range(ranks)
    ]
    by_node = [standings[each : each + per_node] for each in range(0, ranks, per_node)]
    found = hang_of(tmp_path, *((stall_of(*each),) for each in by_node), ranks=ranks)
    assert found is not None
    assert found.ranks == (culprit,)
    others = ", ".join(str(each) for each in range(ranks) if each != culprit)
    who = f"rank {culprit} of host-{'abc'[culprit // per_node]}"
    assert f"{who} stands at train.py:77 in lonely, while ranks {others}" in found.claim
    assert f"stacks/rank-{culprit}-" in found.action
    assert ("nodes/host-" in found.action) == (culprit >= per_node)


def test_a_hang_for_a_lost_machine_names_the_machine() -> None:
    waits = [standing(rank, Doing.BACKWARD) for rank in range(2)]
    run = with_stall(on_nodes(replace(make_run(ranks=4), ending=None), 2), *waits)
    lost = with_lost_machine(replace(run, ending=Ending(STARTED_UNIX_S + 15)))
    finding = hang.check(gather(replace(lost, ending=None)))
    assert finding is not None
    assert (finding.ranks, finding.nodes) == ((2, 3), ("node-b",))
    assert (
        "nothing was heard of machine node-b (ranks 2 and 3) after 08:00:11 UTC, while ranks 0, 1 "
        "wait in backward"
    ) in finding.claim
    assert "node-b still runs" in finding.action


def test_a_pause_of_another_machine_that_passed_hides_no_hang(tmp_path: Path) -> None:
    hanging = stall_of(on_machine(0, 2), on_machine(1, 2, Doing.CODE))
    passed = replace(
        stall_of(on_machine(2, 2), on_machine(3, 2)),
        since_unix_s=STARTED_UNIX_S + 1,
        seen_unix_s=STARTED_UNIX_S + 3,
        resumed_unix_s=STARTED_UNIX_S + 4,
    )
    found = hang_of(tmp_path, (hanging,), (passed,), ranks=4)
    assert found is not None
    assert found.ranks == (1,)


def test_ranks_of_another_machine_never_reached_what_the_recorder_shows(tmp_path: Path) -> None:
    stuck = StuckCollective(
        "default_pg",
        812,
        "all_reduce",
        STARTED_UNIX_S + 11,
        waiting=(0, 1),
        unknown=(2, 3),
    )
    waiting = stall_of(on_machine(0, 2), on_machine(1, 2), collectives=(stuck,))
    loading = stall_of(*(on_machine(each, 2, Doing.INPUT, where="data.py:9") for each in (2, 3)))
    found = hang_of(tmp_path, (waiting,), (loading,), ranks=4)
    assert found is not None
    assert found.evidence["waiting_ranks"] == "0, 1"
    assert "ranks 2 and 3 never reached all_reduce #812 of group default_pg" in found.claim
    assert "ranks 0 and 1 have waited in for 39.0 s" in found.claim


def test_clocks_that_are_apart_make_no_other_hang(tmp_path: Path) -> None:
    ahead_s = 300.0
    stuck = StuckCollective("default_pg", 9, "all_reduce", STARTED_UNIX_S + 311, waiting=(2, 3))
    waiting = stall_of(
        on_machine(2, 2),
        on_machine(3, 2),
        since_unix_s=STARTED_UNIX_S + 310,
        seen_unix_s=STARTED_UNIX_S + 350,
        collectives=(replace(stuck, missing=(), unknown=(0, 1)),),
    )
    alone = stall_of(on_machine(0, 2), on_machine(1, 2, Doing.CODE))
    found = hang_of(tmp_path, (alone,), (waiting,), ranks=4, ahead_s=ahead_s)
    assert found is not None
    assert "rank 1 never reached all_reduce #9" in found.claim
    assert "ranks 2 and 3 have waited in for 39.0 s" in found.claim
