"""Findings name the user's lines where the agent has seen them, and say from how few looks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_late, make_run, make_waiting, schedule
from traceml.diagnose.engine import diagnose
from traceml.diagnose.user_code import blocked_share, wants_looks
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.facts.user_time import CodePlace, PhaseCode, UserTime
from traceml.model.finding import Finding, Kind, Section
from traceml.store.records import RunRecords

BATCH = CodePlace("get_batch", "train.py", 118, 0.9, 0.8, 0.95, 90)
RARE = CodePlace("log", "train.py", 7, 0.1, 0.05, 0.2, 10)


def seen(run: RunRecords, phase: str, *places: CodePlace, looks: int = 100) -> Facts:
    code = PhaseCode(looks, places)
    ranks = {rank.rank.rank: {phase: code} for rank in run.ranks}
    found = UserTime(looks, looks + 5, 5, "py-spy", {phase: code}, ranks, code)
    return replace(gather(run), user_time=found)


def the(kind: Kind, facts: Facts) -> Finding:
    found = diagnose(facts).sections[Section.STEP_TIME]
    return next(finding for finding in found if finding.kind is kind)


def test_wait_heavy_names_the_function_and_its_share() -> None:
    finding = the(Kind.WAIT_HEAVY, seen(make_run(rest_ms=20.0), "residual", BATCH, RARE))
    assert "get_batch (train.py:118) is 90% of it" in finding.claim
    assert "log (train.py:7)" not in finding.claim
    assert "Look at get_batch (train.py:118) first: it takes 18.0 ms of 20.0 ms" in finding.action
    assert finding.evidence["main_part"] == finding.evidence["code_1"] == BATCH.name
    assert (finding.evidence["code_1_share"], finding.evidence["code_1_share_low"]) == (0.9, 0.8)
    assert (finding.evidence["code_looks"], finding.evidence["code_looks_torn"]) == (100, 5)
    assert finding.evidence["code_looks_by"] == "py-spy"


@pytest.mark.parametrize(
    ("shares", "left"),
    [
        pytest.param((0.32, 0.30), "38%", id="the largest is the main part"),
        pytest.param((0.25, 0.22), "53%", id="none is large enough for that"),
        pytest.param((0.32, 0.10), "68%", id="the second is too small to be named"),
    ],
)
def test_time_in_lines_that_are_named_is_not_called_unexplained(
    shares: tuple[float, float], left: str
) -> None:
    first, second = (
        replace(BATCH, line=line, share=share)
        for line, share in zip((138, 140), shares, strict=True)
    )
    finding = the(Kind.WAIT_HEAVY, seen(make_run(rest_ms=20.0), "residual", first, second))
    assert "train.py:138" in finding.claim
    assert f"{left} is unexplained" in finding.claim or f"{left} of it is" in finding.claim
    assert finding.evidence["unexplained_ms"] == pytest.approx(0.2 * float(left[:-1]), abs=0.1)


def test_few_looks_are_said_to_be_few() -> None:
    facts = seen(make_run(rest_ms=20.0), "residual", BATCH, looks=12)
    assert "(from only 12 stack samples)" in the(Kind.WAIT_HEAVY, facts).action


def test_without_looks_nothing_is_named() -> None:
    finding = the(Kind.WAIT_HEAVY, gather(make_run(rest_ms=20.0)))
    assert "train.py" not in finding.claim + finding.action
    assert "code_looks" not in finding.evidence


def test_input_made_in_the_training_process_is_named() -> None:
    item = replace(BATCH, function="Images.__getitem__")
    facts = seen(make_run(input_ms=20.0, workers=0), "input", item)
    claim = the(Kind.INPUT_BOUND, facts).claim
    assert claim.endswith("18.0 ms of 20.0 ms is in Images.__getitem__ (train.py:118).")
    with_workers = seen(make_run(input_ms=20.0, workers=2), "input", item)
    assert "__getitem__ (" not in the(Kind.INPUT_BOUND, with_workers).claim


def test_a_late_ranks_own_lines_are_named() -> None:
    run = make_waiting(make_late(make_run(2), 1, by_ms=20))
    finding = the(Kind.COMPUTE_STRAGGLER, seen(run, "forward", BATCH))
    assert "ms is in get_batch (train.py:118)" in finding.claim


def test_a_forward_pass_that_waits_is_named_and_one_that_computes_is_not() -> None:
    run = make_run(forward_ms=200.0)
    asleep = seen(schedule(run, [40.0], [1.0]), "forward", BATCH)
    assert blocked_share(asleep) == pytest.approx(0.82, abs=0.01)
    assert "ms is in get_batch (train.py:118)" in the(Kind.COMPUTE_BOUND, asleep).claim
    few = replace(run, samples=schedule(run, [40.0], [1.0]).samples[:2])
    idle = [
        replace(each, processes=(replace(each.processes[0], cpu_cores=0.1),))
        for each in few.samples
    ]
    asleep = seen(replace(few, samples=tuple(idle)), "forward", BATCH)
    assert blocked_share(asleep) is None
    assert "ms is in get_batch (train.py:118)" in the(Kind.COMPUTE_BOUND, asleep).claim
    computes = seen(schedule(run, [220.0], [1.0]), "forward", BATCH)
    assert "get_batch" not in the(Kind.COMPUTE_BOUND, computes).claim


def test_what_is_outside_the_measured_phases_is_looked_at_and_named_without_blaming_it() -> None:
    run = make_run(forward_ms=None, rest_ms=60.0)
    assert wants_looks(gather(run), [])
    facts = seen(run, "residual", BATCH)
    claim = the(Kind.BALANCED, facts).claim
    assert "outside the measured phases" in claim
    assert claim.endswith("54.0 ms of 60.0 ms is in get_batch (train.py:118).")


EVEN = [30.0], [1.0]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        pytest.param(schedule(make_run(rest_ms=0.2), *EVEN), False, id="nothing is wrong"),
        pytest.param(schedule(make_run(rest_ms=20.0), *EVEN), True, id="wait heavy"),
        pytest.param(schedule(make_run(rest_ms=2.5), *EVEN), True, id="an unexplained rest"),
        pytest.param(
            schedule(make_run(rest_ms=0.2, between_ms=9.0), *EVEN), True, id="between steps"
        ),
        pytest.param(
            schedule(make_run(rest_ms=0.2, input_ms=20.0, workers=0), [50.0], [1.0]),
            True,
            id="input made in the process",
        ),
        pytest.param(
            schedule(make_run(rest_ms=0.2, input_ms=20.0, workers=2), *EVEN),
            False,
            id="input made by workers",
        ),
        pytest.param(
            schedule(make_run(rest_ms=0.2, forward_ms=200.0), [30.0], [1.0]),
            True,
            id="a forward pass that waits",
        ),
    ],
)
def test_the_agent_looks_only_while_something_is_wrong(run: RunRecords, expected: bool) -> None:
    facts = gather(run)
    found = diagnose(facts).sections[Section.STEP_TIME]
    assert wants_looks(facts, found) is expected
