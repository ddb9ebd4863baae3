"""What went wrong is read back as it was written; damaged files say nothing."""

import json
from dataclasses import asdict

import pytest

from failing import report, standing
from traceml.model.environment import FAILURE_MARK, MARKS
from traceml.model.failure import AgentSaw, Death, Doing, MemoryAtFailure, Stall
from traceml.store import failures

SEEN = AgentSaw(
    deaths=(Death(0, 10, 5.0, 137), Death(1, 11, 6.0)),
    stalls=(Stall(1.0, 2.0, 0.1, (standing(0, Doing.COLLECTIVE, call="barrier"),), None, ("s",)),),
)


def test_what_the_agent_saw_round_trips(tmp_path):
    failures.write_seen(tmp_path, SEEN)
    assert failures.read_seen(tmp_path) == SEEN


def test_a_damaged_file_is_as_good_as_none(tmp_path):
    assert failures.read_seen(tmp_path) == AgentSaw()
    for content in (b"", b"{", b'{"deaths": 3}', b"\xff\xfe"):
        (tmp_path / failures.SEEN).write_bytes(content)
        assert failures.read_seen(tmp_path) == AgentSaw()


def test_a_process_is_known_by_its_pid_whatever_its_rank_was_then():
    moved = failures.with_final_ranks(SEEN, {10: 5, 1000: 7})
    assert [death.rank for death in moved.deaths] == [5, 1]
    assert moved.stalls[0].ranks[0].rank == 7


def test_reports_come_in_order_of_time_and_strangers_are_passed_over():
    late = report(unix_s=9.0, memory=MemoryAtFailure(tried_bytes=5))
    early = report(1, unix_s=3.0)
    messages = [
        {"kind": "failure", "number": 1, **asdict(late)},
        {"kind": "failure", "number": 2},
        {"kind": "metrics", "values": {}},
        {"kind": "failure", "number": 3, "of_a_later_version": 1, **asdict(early)},
    ]
    found = failures.reports(messages)
    assert failures.in_order(found, {}) == (early, late)
    assert [each.rank for each in failures.in_order(found, {1001: 4})] == [4, 0]


@pytest.mark.parametrize(
    "damage",
    [{"traceback": 5}, {"where": [1]}, {"is_rank": "x"}, {"pid": None}, {"memory": 7}],
    ids=lambda damage: next(iter(damage)),
)
def test_a_report_whose_fields_are_of_another_kind_is_passed_over(tmp_path, damage):
    marks = tmp_path / MARKS
    marks.mkdir()
    sound = asdict(report(unix_s=3.0))
    (marks / f"{FAILURE_MARK}1.json").write_text(json.dumps({**sound, **damage}))
    (marks / f"{FAILURE_MARK}2.json").write_text(json.dumps(sound))
    assert failures.read_left_reports(tmp_path) == (report(unix_s=3.0),)


def test_a_ring_goes_with_its_stacks(tmp_path):
    ring = tmp_path / "rank-0-1.ring"
    ring.touch()
    failures.stacks_of(ring).touch()
    failures.remove_ring(ring)
    failures.remove_ring(ring)
    assert list(tmp_path.iterdir()) == []


def test_stacks_are_kept_with_the_run_and_stay_bounded(tmp_path):
    name = failures.keep_stacks(tmp_path, 2, 7, b"x" * (failures.MAX_STACK_BYTES + 9))
    assert name == "stacks/rank-2-7.txt"
    assert (tmp_path / name).stat().st_size == failures.MAX_STACK_BYTES


def test_scripts_of_another_machine_are_not_taken_for_this_ones(tmp_path):
    """Two machines share the folder; the marks of earlier versions name no machine."""
    (tmp_path / MARKS).mkdir()
    for name in ("script-12-node-a", "script-12-node-b", "script-34-node-b", "script-56"):
        (tmp_path / MARKS / name).touch()
    (tmp_path / MARKS / "script-x-node-a").touch()
    assert failures.script_pids(tmp_path, "node-a") == [12, 56]
    assert failures.script_pids(tmp_path, "node-b") == [12, 34, 56]
    assert failures.script_pids(tmp_path, "") == [12, 34, 56]
