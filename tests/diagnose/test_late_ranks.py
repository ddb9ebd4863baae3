"""Late ranks are named with their cause and their cost, and equal ranks are not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factories import make_late, make_rank, make_run, make_waiting, map_steps, schedule
from traceml.diagnose.engine import diagnose
from traceml.diagnose.late_ranks import (
    CAUSES,
    CHANCE,
    CRITICAL_CHANCE,
    _errors_of_chance,
    named,
)
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.store.records import RunRecords

STRAGGLERS = {*CAUSES, Kind.STRAGGLER}


def late_ranks(run: RunRecords) -> list[Finding]:
    found = diagnose(gather(run)).sections[Section.STEP_TIME]
    return [finding for finding in found if finding.kind in STRAGGLERS]


def the_straggler(run: RunRecords) -> Finding:
    (finding,) = late_ranks(run)
    return finding


@pytest.mark.parametrize(
    ("by_ms", "severity"),
    [
        pytest.param(3.3, None, id="just below a tenth"),
        pytest.param(4.1, Severity.WARNING, id="just above a tenth"),
        pytest.param(7.0, Severity.WARNING, id="just below a fifth"),
        pytest.param(8.0, Severity.CRITICAL, id="just above a fifth"),
    ],
)
def test_the_excess_is_judged_by_a_typical_step(by_ms: float, severity: Severity | None) -> None:
    found = late_ranks(make_waiting(make_late(make_run(4), 2, by_ms=by_ms)))
    assert [finding.severity for finding in found] == ([] if severity is None else [severity])


def test_a_short_delay_matters_to_nobody() -> None:
    tiny = {"input_ms": 0.1, "forward_ms": 1, "backward_ms": 2, "optimizer_ms": 0.5, "rest_ms": 0.1}
    assert late_ranks(make_waiting(make_late(make_run(2, **tiny), 1, by_ms=0.9))) == []
    warned = the_straggler(make_waiting(make_late(make_run(2, **tiny), 1, by_ms=2)))
    assert warned.severity is Severity.WARNING


def test_of_several_late_ranks_it_is_said_whose_thread_is_meant() -> None:
    run = make_waiting(make_late(make_run(8, noise=0), 2, 3, phase="backward", by_ms=20))
    claim = the_straggler(run).claim
    assert ". The training thread of rank " in claim and "Its" not in claim


def test_the_claim_says_which_rank_is_which_and_what_it_costs() -> None:
    run = make_waiting(make_late(make_run(2, noise=0), 1, phase="backward", by_ms=20))
    finding = the_straggler(run)
    assert finding.claim == (
        "Rank 1 takes 20.0 ms longer per step than rank 0 (57.0 ms of own work against 37.0 ms): "
        "backward takes 40.0 ms against 20.0 ms. Rank 0 waits for it, 20.0 ms per step. Its "
        "training thread is blocked 20.0 ms longer (asleep, or waiting for a disk, a lock or "
        "another process) per step."
    )
    assert finding.skew == pytest.approx(1.0)
    assert finding.lost_s_per_step == pytest.approx(0.020)
    evidence = finding.evidence
    assert (evidence["rank"], evidence["waiting"]) == (1, "measured")
    assert evidence["worst_ms"] == pytest.approx(40)
    assert evidence["median_ms"] == pytest.approx(20)
    assert evidence["excess_ms"] == pytest.approx(20)
    assert evidence["backward_excess_ms"] == pytest.approx(20)
    assert evidence["score"] == finding.share == pytest.approx(20 / 37)
    assert evidence["slowest_share"] == 1


def test_more_ranks_are_compared_with_a_typical_one() -> None:
    finding = the_straggler(make_waiting(make_late(make_run(4), 2)))
    assert "than a typical rank" in finding.claim
    assert "The others wait for it" in finding.claim


def test_two_slow_ranks_are_one_finding() -> None:
    finding = the_straggler(make_waiting(make_late(make_run(4), 2, 3)))
    assert finding.ranks == (2, 3)
    assert finding.claim.startswith("Ranks 2 and 3 take up to 20")
    assert finding.lost_s_per_step == pytest.approx(0.020, rel=0.05)


def test_a_rank_far_behind_is_named_alone() -> None:
    run = make_late(make_late(make_run(4), 1, by_ms=5), 2, by_ms=100)
    assert the_straggler(make_waiting(run)).ranks == (2,)


def test_a_slow_machine_is_named_where_its_hostname_alone_is_known() -> None:
    run = make_waiting(make_late(make_run(4), 2, 3))
    ranks = tuple(
        replace(made, rank=replace(made.rank, hostname=f"host-{made.rank.rank // 2}"))
        for made in run.ranks
    )
    finding = the_straggler(replace(run, ranks=ranks))
    assert finding.claim.startswith("All 2 ranks of host-1 take up to")
    assert "All late ranks are on host-1, and on no other machine" in finding.action
    assert "machine" not in the_straggler(run).action


def test_ranks_that_go_their_own_ways_are_never_critical() -> None:
    finding = the_straggler(make_late(make_run(2), 1, by_ms=200))
    assert finding.severity is Severity.WARNING
    assert finding.evidence["waiting"] == "not measured"
    assert "do not wait for each other" in finding.claim


def test_hidden_waiting_is_inferred_and_said_to_be() -> None:
    run = make_waiting(make_late(make_run(2), 1, phase="input"), "backward")
    finding = the_straggler(run)
    assert (finding.kind, finding.ranks) == (Kind.INPUT_STRAGGLER, (1,))
    assert "communication was not measured" in finding.claim
    assert finding.evidence["waiting"] == "inferred"


def test_a_rank_that_became_slow_says_since_when() -> None:
    finding = the_straggler(make_waiting(make_late(make_run(2), 1, since=120)))
    assert "all since step 121" in finding.claim
    assert finding.evidence["since_step"] == 121


def test_on_the_gpus_clock_it_is_the_same() -> None:
    run = make_waiting(make_late(make_run(4, gpu=True), 2, phase="optimizer"))
    finding = the_straggler(run)
    assert (finding.kind, finding.phase) == (Kind.COMPUTE_STRAGGLER, Phase.OPTIMIZER)
    assert "GPU" in finding.action


def test_names_of_many_ranks_are_cut_short() -> None:
    assert named((3,)) == "rank 3"
    assert named((1, 2, 5)) == "ranks 1, 2 and 5"
    assert named(tuple(range(8, 16))) == "8 ranks (8, 9, 10, 11, …)"


def test_more_ranks_and_louder_claims_need_more_certainty() -> None:
    assert _errors_of_chance(CHANCE, 2) == pytest.approx(2.58, abs=0.01)
    assert _errors_of_chance(CHANCE, 1024) > 4
    assert _errors_of_chance(CRITICAL_CHANCE, 2) > _errors_of_chance(CHANCE, 2)


def test_a_thousand_ranks_name_the_one_that_is_late() -> None:
    (one,) = make_run(steps=50).ranks
    ranks = tuple(make_rank(one.steps, rank, 1000) for rank in range(1000))
    run = make_late(replace(make_run(), ranks=ranks), 777, phase="backward")
    assert the_straggler(make_waiting(run)).ranks == (777,)


LATE = make_waiting(make_late(make_run(2), 1, by_ms=9))
"""Rank 1 takes 9 ms longer than rank 0's 37 ms, whatever for."""


def starved(run: RunRecords) -> list[Finding]:
    found = diagnose(gather(run)).sections[Section.STEP_TIME]
    return [finding for finding in found if finding.kind is Kind.CPU_STARVED]


@pytest.mark.parametrize(
    ("cpu_ms", "wait_ms", "reason"),
    [
        pytest.param((30, 39), (3, 3), "computes 9.0 ms longer per step", id="more work"),
        pytest.param((30, 30), (3, 3), "is blocked 9.0 ms longer", id="asleep"),
        pytest.param((30, 39), (12, 12), "computes 9.0 ms longer", id="more work, both wait"),
        pytest.param(
            (30, 36), (3, 6), "waits 3.0 ms longer for a CPU core", id="a third of it is no core"
        ),
    ],
)
def test_a_late_rank_has_a_reason_of_its_own(
    cpu_ms: tuple[float, float], wait_ms: tuple[float, float], reason: str
) -> None:
    run = schedule(LATE, cpu_ms, wait_ms)
    finding = the_straggler(run)
    assert (finding.kind, finding.ranks) == (Kind.COMPUTE_STRAGGLER, (1,))
    assert reason in finding.claim
    assert finding.evidence["cpu_excess_ms"] == pytest.approx(cpu_ms[1] - cpu_ms[0])
    assert finding.evidence["core_wait_excess_ms"] == pytest.approx(wait_ms[1] - wait_ms[0])
    assert starved(run) == []


def test_a_rank_that_had_no_core_is_no_straggler_but_starved() -> None:
    run = schedule(LATE, (30, 31), (2, 9.5))
    assert late_ranks(run) == []
    (finding,) = starved(run)
    assert finding.ranks == (1,)
    assert finding.claim == (
        "Rank 1 is 9.0 ms per step later than the others because its training thread waits for a "
        "CPU core: 9.5 ms per step against 2.0 ms."
    )


def test_much_more_cpu_time_is_no_noise_however_much_the_steps_vary() -> None:
    """Both ranks wait for cores in spells of their own; rank 1 computes twice as much."""
    made = make_waiting(make_late(make_run(2, steps=40, noise=0.8), 1, by_ms=20))
    assert late_ranks(schedule(made, (30, 30), (20, 20))) == []
    finding = the_straggler(schedule(made, (30, 50), (20, 20)))
    assert (finding.ranks, finding.severity) == ((1,), Severity.WARNING)
    assert "computes" in finding.claim


def test_on_the_gpus_clock_the_hosts_scheduler_explains_nothing() -> None:
    late = make_waiting(make_late(make_run(2, gpu=True), 1, by_ms=9))
    finding = the_straggler(schedule(late, (30, 31), (2, 10)))
    assert "CPU core" not in finding.claim


def test_without_the_schedulers_word_a_rank_must_be_later() -> None:
    silent = [(None, None), (None, None)]
    assert late_ranks(schedule(make_waiting(make_late(make_run(2), 1, by_ms=5)), *silent)) == []
    assert the_straggler(schedule(LATE, *silent)).ranks == (1,)
    even = ((30, 30), (1, 1))
    assert the_straggler(
        schedule(make_waiting(make_late(make_run(2), 1, by_ms=5)), *even)
    ).ranks == (1,)


def test_a_rank_that_is_late_in_spells_is_late_by_chance() -> None:
    """One half of the run rank 1 is late: contention that lasted a while."""

    def spells(steps: Any, rank: int) -> None:
        if rank == 1:
            late = (np.arange(len(steps)) // 25) % 2 == 0
            for name in ("forward_ns", "body_ns", "wall_ns"):
                steps[name][late] += 12_000_000

    assert late_ranks(make_waiting(map_steps(make_run(2), spells))) == []


def in_spells(by_ms: Any) -> RunRecords:
    """Ten steps of four ranks that share few cores, so that each is slow in a spell of its own.

    Rank 1 is late by `by_ms` besides.
    """

    def slow_down(steps: Any, rank: int) -> None:
        spell = (np.arange(len(steps)) + 3 * rank) % 10 < 5
        late_ms = by_ms if rank == 1 else 0.0
        for name in ("forward_ns", "body_ns", "wall_ns"):
            steps[name] += ((70 * spell + late_ms) * 1e6).astype(steps[name].dtype)

    return make_waiting(map_steps(make_run(4, steps=10), slow_down))


@pytest.mark.parametrize(
    ("by_ms", "expected"),
    [
        pytest.param(150.0, [(1,)], id="last in every step"),
        pytest.param(250.0 * (np.arange(10) > 0), [], id="last in nine steps of ten"),
    ],
)
def test_a_rank_that_is_always_last_is_named_however_uneven_the_steps(
    by_ms: Any, expected: list[tuple[int, ...]]
) -> None:
    assert [finding.ranks for finding in late_ranks(in_spells(by_ms))] == expected
