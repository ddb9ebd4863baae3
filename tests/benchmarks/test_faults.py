"""The fault bench judges as it says: right, wrong kind, wrong rank, and not measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from benchmarks.faults.catalog import SCENARIOS, chosen
from benchmarks.faults.judge import Judgement, Live, judge
from benchmarks.faults.report import as_json, confusion, false_alarms, grid, report, table, totals
from benchmarks.faults.runner import Onset, Outcome, command
from benchmarks.faults.scenario import HEALTHY, Scenario, Truth
from benchmarks.faults.training.plan import Plant, Setup, from_words, to_words

BOUND = Scenario("slow", Setup(), Truth(("INPUT_BOUND",), phase="input", share=0.6))
LATE = Scenario(
    "late",
    Setup(),
    Truth(("COMPUTE_STRAGGLER",), ranks=(1,), phase="backward"),
    Plant("slow_backward", 40, rank=1),
    ranks=2,
)
CALM = Scenario("calm", Setup(), HEALTHY)
RAISED = Scenario(
    "raised",
    Setup(),
    Truth(
        ("EXCEPTION",),
        ranks=(1,),
        step=100,
        module="blocks.1",
        live=False,
        what_if=False,
        exits_well=False,
    ),
)


def issue(kind: str, severity: str = "crit", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "severity": severity, "ranks": [], "phase": None, **more}


def summary(*issues: dict[str, Any], step_ms: float = 50.0, **more: Any) -> dict[str, Any]:
    first = issues[0]
    primary = {key: first[key] for key in ("kind", "severity")} | {"section": "step_time"}
    section = {
        "issues": list(issues),
        "diagnosis": first,
        "global": {"average": {"step_time_ms": step_ms}},
    }
    return {"primary_diagnosis": primary, "step_time": section, "text": "", **more}


def said(*issues: dict[str, Any], **more: Any) -> Outcome:
    return Outcome(summary(*issues, **more))


class TestTopFinding:
    def test_is_right_when_the_kind_is(self):
        judgement = judge(BOUND, said(issue("INPUT_BOUND", phase="input", share_pct=0.61)))
        assert judgement.right
        assert judgement.place_right
        assert judgement.share == 0.61

    def test_is_right_when_the_kind_is_another_acceptable_one(self):
        either = replace(BOUND, truth=Truth(("CREEP_CONFIRMED", "CREEP_EARLY")))
        assert judge(either, said(issue("CREEP_EARLY"))).right

    def test_is_wrong_when_the_kind_is_another(self):
        judgement = judge(BOUND, said(issue("WAIT_HEAVY"), issue("INPUT_BOUND", "warn")))
        assert not judgement.right
        assert judgement.said == "WAIT_HEAVY"

    def test_is_wrong_without_a_summary(self):
        judgement = judge(BOUND, Outcome(None))
        assert not judgement.right
        assert judgement.said == "nothing"
        assert judgement.problem

    def test_is_the_failure_where_there_is_one(self):
        failure = {"kind": "EXCEPTION", "rank": 1, "step": 101, "module": "module.blocks.1"}
        outcome = replace(said(issue("INPUT_BOUND"), failure=failure), status=1)
        judgement = judge(RAISED, outcome)
        assert judgement.right
        assert judgement.rank_right
        assert judgement.place_right

    def test_is_wrong_when_a_failure_is_claimed_and_nothing_failed(self):
        failure = {"kind": "HANG", "rank": 0}
        assert not judge(BOUND, said(issue("INPUT_BOUND"), failure=failure)).right

    def test_is_wrong_when_the_run_did_not_go_as_planned(self):
        outcome = replace(said(issue("INPUT_BOUND")), status=1)
        judgement = judge(BOUND, outcome)
        assert not judgement.right
        assert "1" in judgement.problem


class TestWhatExplainsIt:
    scenario = replace(BOUND, truth=Truth(("WAIT_HEAVY",), also=("GC_PAUSES",)))

    def test_must_be_listed(self):
        judgement = judge(self.scenario, said(issue("WAIT_HEAVY")))
        assert not judgement.right
        assert judgement.missing == ("GC_PAUSES",)

    def test_may_be_listed_in_any_section(self):
        more = {"stability": {"issues": [issue("GC_PAUSES", "info")]}}
        assert judge(self.scenario, said(issue("WAIT_HEAVY"), **more)).right


class TestRank:
    def test_is_right(self):
        straggler = issue("COMPUTE_STRAGGLER", ranks=[1], phase="backward")
        judgement = judge(LATE, said(straggler))
        assert judgement.rank_right
        assert judgement.place_right

    @pytest.mark.parametrize("ranks", [[0], [0, 1], []], ids=["another", "too many", "none"])
    def test_is_wrong(self, ranks):
        judgement = judge(LATE, said(issue("COMPUTE_STRAGGLER", ranks=ranks)))
        assert judgement.right
        assert judgement.rank_right is False

    def test_is_not_measured_when_the_key_is_missing(self):
        judgement = judge(LATE, said(issue("COMPUTE_STRAGGLER", ranks=None)))
        assert judgement.rank_right is None

    def test_is_not_asked_where_no_rank_stands_out(self):
        assert judge(BOUND, said(issue("INPUT_BOUND", ranks=[0]))).rank_right is None


class TestLive:
    onset = Onset(100, 1000.0)

    def live(self, *lines: dict[str, Any], onset: Onset | None = onset) -> Live | None:
        outcome = Outcome(summary(issue("COMPUTE_STRAGGLER", ranks=[1])), lines, onset)
        return judge(LATE, outcome).live

    @staticmethod
    def line(unix_s: float, step: int, kind: str, ranks: list[int]) -> dict[str, Any]:
        return {"unix_s": unix_s, "step": step, "kind": kind, "ranks": ranks}

    def test_counts_from_the_onset_to_the_first_right_line(self):
        found = self.live(
            self.line(999.0, 98, "COMPUTE_STRAGGLER", [1]),
            self.line(1000.5, 106, "COMM_BOUND", []),
            self.line(1001.0, 110, "COMPUTE_STRAGGLER", [0]),
            self.line(1001.5, 115, "COMPUTE_STRAGGLER", [1]),
            self.line(1009.0, 190, "COMPUTE_STRAGGLER", [1]),
        )
        assert found == Live(15, 1.5)
        assert found.in_time

    def test_is_not_measured_without_a_right_line_or_an_onset(self):
        right = self.line(1001.0, 110, "COMPUTE_STRAGGLER", [1])
        assert self.live() is None
        assert self.live(right, onset=None) is None

    @pytest.mark.parametrize(
        ("live", "in_time"),
        [(Live(30, 9.0), True), (Live(90, 5.0), True), (Live(31, 5.1), False)],
        ids=["few steps", "few seconds", "neither"],
    )
    def test_is_in_time_by_steps_or_by_seconds(self, live, in_time):
        assert live.in_time is in_time


ENTRY = {"kind": "COMPUTE_STRAGGLER", "ranks": [1], "predicted_step_time_ms": 21.0}


class TestWhatIf:
    late = issue("COMPUTE_STRAGGLER", ranks=[1])
    baseline = Outcome(summary(issue("BALANCED", "info"), step_ms=20.0))

    def test_is_held_against_the_run_without_the_fault(self):
        judgement = judge(LATE, said(self.late, what_if=[ENTRY]), self.baseline)
        assert judgement.what_if_error == pytest.approx(0.05)

    @pytest.mark.parametrize(
        "entries",
        [None, [], [{**ENTRY, "kind": "COMM_BOUND"}], [{**ENTRY, "ranks": [0]}]],
        ids=["no key", "no entry", "another kind", "another rank"],
    )
    def test_is_not_measured_without_a_prediction(self, entries):
        judgement = judge(LATE, said(self.late, what_if=entries), self.baseline)
        assert judgement.what_if_error is None

    def test_is_not_measured_without_a_baseline(self):
        outcome = said(self.late, what_if=[ENTRY])
        assert judge(LATE, outcome, Outcome(None)).what_if_error is None
        assert judge(LATE, outcome).what_if_error is None


def test_alarms_are_found_in_every_section_and_told_apart():
    more = {"system": {"issues": [issue("HIGH_CPU", "warn")]}}
    judgement = judge(CALM, said(issue("COMPUTE_BOUND", "info"), issue("COMM_BOUND"), **more))
    assert judgement.criticals == ("COMM_BOUND",)
    assert judgement.warnings == ("HIGH_CPU",)


class TestReport:
    runs = (
        Judgement(CALM, "BALANCED", "info", right=True),
        Judgement(CALM, "COMM_BOUND", "crit", criticals=("COMM_BOUND",)),
        Judgement(BOUND, "INPUT_BOUND", "crit", right=True, place_right=True, share=0.5),
        Judgement(
            LATE,
            "COMPUTE_STRAGGLER",
            "crit",
            right=True,
            ranks_said=(0,),
            rank_right=False,
            place_right=True,
            live=Live(12, 0.4),
            what_if_error=0.02,
        ),
        Judgement(LATE, "nothing", problem="no summary was written"),
    )

    def row(self, name: str) -> dict[str, str]:
        head, *rows = table(self.runs)
        return next(dict(zip(head, row, strict=True)) for row in rows if row[0] == name)

    def test_a_wrong_scenario_stays_in_the_table(self):
        row = self.row("late")
        assert row["said"] == "COMPUTE_STRAGGLER rank 0 ×1, nothing ×1"
        assert row["right"] == "1/2"
        assert row["rank"] == "0/2"
        assert row["live"] == "12 steps, 0.4 s (1 of 2)"
        assert row["what-if"] == "2.0% (1 of 2)"
        assert row[""] == "no summary was written"

    def test_what_was_not_measured_says_so(self):
        assert self.row("slow")["live"] == "n/a"
        assert self.row("slow")["what-if"] == "n/a"
        assert self.row("slow")["share"] == "0.50 (≈ 0.60)"

    def test_what_has_no_meaning_is_a_dash(self):
        row = self.row("calm")
        assert [row[name] for name in ("rank", "place", "share", "live", "what-if")] == ["–"] * 5

    def test_the_matrix_counts_true_kind_against_said_kind(self):
        head, *rows = confusion(self.runs)
        cells = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
        assert cells["healthy"]["BALANCED"] == "1"
        assert cells["healthy"]["COMM_BOUND"] == "1"
        assert cells["COMPUTE_STRAGGLER"]["COMPUTE_STRAGGLER"] == "1"
        assert cells["COMPUTE_STRAGGLER"]["nothing"] == "1"
        assert cells["INPUT_BOUND"]["COMM_BOUND"] == "·"

    def test_false_alarms_name_scenario_and_kind(self):
        assert false_alarms(self.runs) == ["- calm: COMM_BOUND (critical) in 1 of 2"]

    def test_totals_count_the_unmeasured_as_not_right(self):
        found = {total.what: total for total in totals(self.runs)}
        assert found["top finding right"].measured == "60.0% (3 of 5)"
        assert found["top finding right"].met is False
        assert found["rank right"].measured == "0.0% (0 of 2)"
        assert found["healthy runs with a critical"].measured == "1 of 2"
        assert found["healthy runs with a critical"].met is False
        assert found["live finding right in time"].measured.startswith("1 of 3")
        assert found["live finding right in time"].met is False
        assert found["what-if error"].met is True

    def test_totals_of_nothing_are_not_met(self):
        assert all(total.met is None for total in totals([]))

    def test_every_part_is_in_the_report(self):
        text = report(self.runs)
        for words in ("| scenario", "Confusion matrix", "False alarms", "Totals"):
            assert words in text

    def test_every_run_is_in_the_json(self):
        content = as_json(self.runs)
        assert [run["said"] for run in content["runs"]][:2] == ["BALANCED", "COMM_BOUND"]


def test_a_grid_is_aligned():
    lines = grid([["a", "b"], ["long", "c"]]).splitlines()
    assert lines == ["| a    | b |", "|------|---|", "| long | c |"]


class TestScenarios:
    def test_have_names_of_their_own(self):
        names = [scenario.name for scenario in SCENARIOS]
        assert len(names) == len(set(names))

    def test_are_enough_without_a_gpu(self):
        here = [scenario for scenario in SCENARIOS if not scenario.gpu]
        healthy = [scenario for scenario in here if scenario.healthy]
        assert len(healthy) >= 12
        assert len(here) - len(healthy) >= 32

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
    def test_speak_of_kinds_that_exist(self, scenario):
        from traceml.model.finding import Kind

        known = {kind.value for kind in Kind}
        assert known.issuperset(scenario.truth.kinds + scenario.truth.also)

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
    def test_name_a_rank_that_is_there_and_strike_it(self, scenario):
        for rank in scenario.truth.ranks or ():
            assert rank < scenario.ranks
            assert scenario.plant.rank in (-1, rank)

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
    def test_strike_before_the_training_ends(self, scenario):
        assert scenario.plant.onset < scenario.setup.steps
        assert scenario.setup.steps % scenario.setup.epochs == 0

    def test_a_gpu_is_asked_for_by_name(self):
        assert not any(scenario.gpu for scenario in chosen([], gpu=False))
        assert all(scenario.gpu for scenario in chosen([], gpu=True))
        assert [scenario.name for scenario in chosen(["healthy_ddp4"], gpu=False)]

    def test_without_its_fault_a_scenario_trains_the_same(self):
        plain = LATE.without_fault()
        assert plain.setup == LATE.setup
        assert plain.plant == Plant()


class TestCommand:
    def test_the_script_reads_back_what_it_is_told(self):
        setup = Setup("lstm", 77, explicit=True, device_ms=1.5)
        plant = Plant("slow_item", 20, rank=3, onset=9, every=4)
        assert from_words(to_words(setup, plant)) == (setup, plant)

    def test_ranks_come_from_traceml_or_from_torchrun(self, tmp_path):
        words = command(LATE, tmp_path)
        assert words[words.index("--nproc-per-node") + 1] == "2"
        assert "--" not in words
        behind = command(replace(LATE, launcher="torchrun"), tmp_path)
        assert "torch.distributed.run" in behind[behind.index("--") :]


@pytest.mark.parametrize(
    ("plant", "struck"),
    [
        (Plant("f"), {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)}),
        (Plant("f", rank=1, onset=1), {(1, 1), (1, 2)}),
        (Plant("f", rank=0, every=2), {(0, 0), (0, 2)}),
    ],
    ids=["everywhere", "one rank from an onset on", "every other step"],
)
def test_a_fault_strikes_where_and_when_it_is_planted(plant, struck):
    found = {(rank, step) for rank in (0, 1) for step in (0, 1, 2) if plant.strikes(rank, step)}
    assert found == struck
