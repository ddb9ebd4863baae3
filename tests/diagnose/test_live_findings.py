"""Live findings on replayed runs: soon, steady, since the right step, and gone in time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from factories import make_run, make_samples, map_steps
from replay import Look, leads, replay, with_part
from traceml.diagnose.live_findings import LiveDiagnosis, new_leads, update
from traceml.facts.recent_window import gather_recent
from traceml.model.finding import Kind, Section, Severity
from traceml.store.records import RunRecords

SECOND_STEPS = 27  # of a made run, whose steps take 37 ms
ONSET = 800  # the first slow step, counted from 0


def shown_as(looks: list[Look], kind: Kind) -> list[Look]:
    return [look for look in looks if (lead := look.lead()) and lead.finding.kind is kind]


def changes(run: RunRecords) -> int:
    return len(leads(list(replay(run)))) - 1


# An onset in mid-run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "part_ms", "ranks", "kind"),
    [
        pytest.param("input", 15.0, 1, Kind.INPUT_BOUND, id="input wait"),
        pytest.param("input", 550.0, 1, Kind.INPUT_BOUND, id="input wait that dwarfs the step"),
        pytest.param("h2d", 20.0, 1, Kind.H2D_BOUND, id="copies"),
        pytest.param("input", 15.0, 4, Kind.INPUT_BOUND, id="input wait on four ranks"),
    ],
)
def test_a_fault_that_begins_in_mid_run_is_shown_in_time_and_since_its_step(
    part: str, part_ms: float, ranks: int, kind: Kind
) -> None:
    run = with_part(
        make_run(ranks=ranks, steps=1200, h2d_ms=0.5), part, part_ms, slice(ONSET, None)
    )
    first = shown_as(list(replay(run)), kind)[0]
    step_s = (37 + part_ms) / 1e3
    assert first.step - ONSET <= max(30, 5 / step_s)
    lead = first.lead()
    assert lead is not None
    assert lead.finding.severity is Severity.CRITICAL
    assert lead.since_step == ONSET + 1


def test_a_mild_fault_is_shown_in_time_though_most_of_the_window_has_none_of_it() -> None:
    run = with_part(make_run(steps=1200), "input", 6.0, slice(ONSET, None))
    first = shown_as(list(replay(run)), Kind.INPUT_BOUND)[0]
    assert first.step - ONSET <= 5 / 0.043
    lead = first.lead()
    assert lead is not None
    assert abs(lead.since_step - (ONSET + 1)) <= 3
    assert lead.finding.share == pytest.approx(6 / 42, rel=0.1)


@pytest.mark.slow
def test_steps_of_a_second_need_few_of_them() -> None:
    run = make_run(steps=160, input_ms=10, forward_ms=300, backward_ms=600, optimizer_ms=50)
    run = with_part(run, "input", 500.0, slice(120, None))
    first = shown_as(list(replay(run)), Kind.INPUT_BOUND)[0]
    assert first.step - 120 <= 12
    lead = first.lead()
    assert lead is not None
    assert lead.since_step == 121


def test_a_straggler_from_some_step_on_names_its_rank_and_that_step() -> None:
    """The other ranks wait for it, so all of their steps become as long."""
    run = make_run(ranks=4, steps=1200, communication_ms=1.0)
    run = with_part(run, "forward", 40.0, slice(ONSET, None), ranks=[2])
    run = with_part(run, "communication", 31.0, slice(ONSET, None), ranks=[0, 1, 3])
    first = shown_as(list(replay(run)), Kind.COMPUTE_STRAGGLER)[0]
    lead = first.lead()
    assert lead is not None
    assert first.step - ONSET <= 5 / 0.067
    assert lead.finding.ranks == (2,)
    assert lead.since_step == ONSET + 1


def test_a_fault_that_was_always_there_is_shown_since_the_first_step() -> None:
    looks = list(replay(make_run(steps=600, input_ms=30.0)))
    (lead,) = leads(looks)
    assert lead.finding.kind is Kind.INPUT_BOUND
    assert lead.since_step == 1
    assert looks[-1].lead() is not None
    assert shown_as(looks, Kind.INPUT_BOUND)[-1].step == 600


def test_stalls_now_and_then_hold_since_the_first_of_them() -> None:
    stalls = slice(ONSET, None, 20)
    run = with_part(make_run(steps=1600), "input", 400.0, stalls)
    first = shown_as(list(replay(run)), Kind.INPUT_BOUND)[0]
    lead = first.lead()
    assert lead is not None
    assert lead.since_step == ONSET + 1


# What is not to be shown


def test_a_healthy_run_has_one_label_and_no_warning() -> None:
    looks = list(replay(make_run(ranks=2, steps=2000, sampled_s=80)))
    assert [lead.finding.kind for lead in leads(looks)] == [Kind.COMPUTE_BOUND]
    worst = {
        found.finding.severity
        for look in looks
        for section in look.shown.sections.values()
        for found in section.findings
    }
    assert worst == {Severity.INFO}


@pytest.mark.parametrize(
    ("steps", "input_ms"),
    [
        pytest.param(1, 3000.0, id="one very long first step"),
        pytest.param(3, 1500.0, id="three long steps"),
        pytest.param(8, 400.0, id="eight slow steps"),
    ],
)
def test_warm_up_is_not_blamed(steps: int, input_ms: float) -> None:
    """Neither while it is most of what was seen, nor when the window leaves it behind."""
    run = with_part(make_run(steps=1200), "input", input_ms, slice(0, steps))
    assert [lead.finding.kind for lead in leads(list(replay(run)))] == [Kind.COMPUTE_BOUND]


def test_a_stall_that_happens_once_is_not_blamed() -> None:
    run = with_part(make_run(steps=1500), "input", 4000.0, slice(ONSET, ONSET + 1))
    assert [lead.finding.kind for lead in leads(list(replay(run)))] == [Kind.COMPUTE_BOUND]


def test_a_handful_of_steps_says_nothing() -> None:
    few = gather_recent(replace(make_run(steps=5, input_ms=50.0), ending=None))
    shown = update(LiveDiagnosis(), few)
    assert shown == LiveDiagnosis()


# Steadiness


@pytest.mark.slow
def test_a_run_on_the_warning_line_does_not_flicker() -> None:
    """Its windows lie on both sides of 10 % again and again."""
    random = np.random.default_rng(1)
    run = make_run(steps=8000)
    input_ms = np.clip(4.0 * (1 + 0.3 * random.standard_normal(8000)), 0, None)
    looks = list(replay(with_part(run, "input", input_ms)))
    sides = [
        (look.recent.now.mean.input_s or 0) / (look.recent.now.mean.step_s or 1) >= 0.1
        for look in looks
    ]
    assert sum(a != b for a, b in pairwise(sides)) > 20
    assert len(leads(looks)) <= 2


@pytest.mark.slow
def test_a_run_that_drifts_across_the_critical_line_does_not_flicker() -> None:
    drift_ms = 9.0 + 0.8 * np.sin(np.arange(8000) / 300)
    looks = list(replay(with_part(make_run(steps=8000), "input", drift_ms)))
    shares = [
        (look.recent.now.mean.input_s or 0) / (look.recent.now.mean.step_s or 1) for look in looks
    ]
    assert min(shares) < 0.2 < max(shares)
    assert len(leads(looks)) == 1


@pytest.mark.slow
def test_two_causes_of_like_cost_do_not_take_turns() -> None:
    random = np.random.default_rng(2)
    run = make_run(steps=6000, h2d_ms=15.0)
    run = with_part(run, "input", 15 * (1 + 0.2 * random.standard_normal(6000)))
    run = with_part(run, "h2d", 15 * (1 + 0.2 * random.standard_normal(6000)))
    assert changes(run) <= 2


@pytest.mark.slow
def test_a_fault_that_comes_and_goes_every_other_second_is_one_finding() -> None:
    wait_ms = np.where(np.arange(6000) // SECOND_STEPS % 2, 20.0, 1.0)
    assert changes(with_part(make_run(steps=6000), "input", wait_ms)) <= 2


# The end


def test_the_end_of_a_fault_is_noticed_and_what_follows_holds_since_then() -> None:
    run = with_part(make_run(steps=2500), "input", 15.0, slice(ONSET, 1500))
    looks = list(replay(run))
    found = leads(looks)
    kinds = [lead.finding.kind for lead in found]
    assert kinds == [Kind.COMPUTE_BOUND, Kind.INPUT_BOUND, Kind.COMPUTE_BOUND]
    assert [lead.since_step for lead in found] == [1, ONSET + 1, 1501]
    assert shown_as(looks, Kind.INPUT_BOUND)[-1].step - 1500 <= 5 * SECOND_STEPS


def steps_with(kind: Kind, run: RunRecords) -> tuple[list[int], int]:
    """The steps at which a finding was shown, and the last at which anything was."""
    looks = list(replay(run))
    shown = [
        look.step
        for look in looks
        for found in look.shown.sections[Section.STEP_TIME].findings
        if found.finding.kind is kind
    ]
    return shown, max(look.step for look in looks)


def test_a_rest_that_became_communication_is_a_rest_no_longer() -> None:
    """The residual, which holds both, is as long as before."""
    run = make_run(ranks=2, steps=3000, rest_ms=15.0, communication_ms=1.0)

    def cure(steps, rank):
        steps["communication_ns"][1500:] += 14_000_000

    shown, last = steps_with(Kind.WAIT_HEAVY, map_steps(run, cure))
    assert min(shown) <= 1500
    assert max(shown) <= 1500 + 10 * SECOND_STEPS < 1500 + 40 * SECOND_STEPS < last


@pytest.mark.slow
def test_waiting_for_a_late_rank_is_no_transfer() -> None:
    """The mean wait is longer than before, and the last to arrive waits for nothing."""
    run = make_run(ranks=4, steps=3000, communication_ms=15.0)
    late = slice(1500, None)
    run = with_part(run, "forward", 50.0, late, ranks=[2])
    run = with_part(run, "communication", 41.0, late, ranks=[0, 1, 3])
    run = with_part(run, "communication", 1.0, late, ranks=[2])
    shown, last = steps_with(Kind.COMM_BOUND, run)
    assert min(shown) <= 1500
    assert max(shown) <= 1500 + 10 * SECOND_STEPS < 1500 + 40 * SECOND_STEPS < last


@pytest.mark.slow
def test_another_straggling_rank_is_another_finding() -> None:
    run = make_run(ranks=4, steps=2400, communication_ms=1.0)
    for rank, steps in ((1, slice(400, 1200)), (3, slice(1200, None))):
        others = [other for other in range(4) if other != rank]
        run = with_part(run, "forward", 40.0, steps, ranks=[rank])
        run = with_part(run, "communication", 31.0, steps, ranks=others)
        run = with_part(run, "communication", 1.0, steps, ranks=[rank])
    last = list(replay(run))[-1].lead()
    assert last is not None
    assert last.finding.ranks == (3,)
    assert last.since_step == 1201


# Files of the agent


def test_only_what_leads_anew_is_news() -> None:
    run = with_part(make_run(steps=1200, sampled_s=60), "input", 15.0, slice(ONSET, None))
    before, news = LiveDiagnosis(), []
    for look in replay(run):
        news += [lead.finding for lead in new_leads(before, look.shown)]
        before = look.shown
    step_time = [finding.kind for finding in news if finding.section is Section.STEP_TIME]
    assert step_time == [Kind.COMPUTE_BOUND, Kind.INPUT_BOUND]
    assert len(news) == len({(finding.section, finding.kind) for finding in news})


def test_steps_that_are_final_late_are_only_late() -> None:
    run = with_part(make_run(ranks=2, steps=1200), "input", 15.0, slice(ONSET, None))
    first = shown_as(list(replay(run, late=5)), Kind.INPUT_BOUND)[0]
    lead = first.lead()
    assert lead is not None
    assert lead.since_step == ONSET + 1
    assert first.step - ONSET <= 5 / 0.051


def test_the_samples_of_a_window_are_those_of_its_seconds() -> None:
    run = make_run(steps=3000)
    calm = make_samples(ranks=1, seconds=120)
    busy = tuple(
        replace(sample, host=replace(sample.host, ram_used_bytes=31 << 30))
        if 20 <= second < 60
        else sample
        for second, sample in enumerate(calm)
    )
    looks = list(replay(replace(run, samples=busy)))
    used = [look.recent.whole.host.ram_share.mean for look in looks]
    assert max(share for share in used if share is not None) > 0.9
    assert used[-1] == pytest.approx(0.25)
