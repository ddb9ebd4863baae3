"""No finding claims more time than its place holds, and no two claim the same time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories import (
    count_gpus,
    count_syncs,
    flag_steps,
    idle_gpu,
    make_late,
    make_run,
    make_waiting,
    map_steps,
    spend,
    stall,
    work_between,
)
from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.engine import Diagnosis, diagnose
from traceml.diagnose.finding_order import STRAGGLERS
from traceml.diagnose.time_account import Outside, held_s, settle, stages_of
from traceml.diagnose.what_if import WhatIf, predict
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase
from traceml.model.quantities import duration
from traceml.model.record_layout import StepFlag
from traceml.store.records import RunRecords

STATED = frozenset(
    {
        Kind.INPUT_BOUND,
        Kind.H2D_BOUND,
        Kind.COMM_BOUND,
        Kind.WAIT_HEAVY,
        Kind.GC_PAUSES,
        Kind.LOGGING_HEAVY,
        Kind.RECOMPILING,
        Kind.HOST_SYNC,
        Kind.EVALUATION_HEAVY,
        Kind.CHECKPOINT_HEAVY,
    }
)
"""The kinds whose claim states the time that is lost; a straggler's does where others wait."""
SLACK = 1.002  # what rounding and steps that were not timed everywhere may make


def lost(finding: Finding) -> float:
    return finding.lost_s_per_step or 0.0


def step_time(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    return diagnosis.sections[Section.STEP_TIME]


def check_account(facts: Facts, found: tuple[Finding, ...]) -> None:
    """What every diagnosis has to obey."""
    held = held_s(facts.mean)
    own = [finding for finding in found if finding.part_of is None]
    for finding in found:
        places = stages_of(finding)
        assert lost(finding) <= sum(held[place] for place in places) * SLACK, finding
        if finding.phase is not None and len(places) == 1:
            assert places == (finding.phase,)
        is_waited_for = finding.kind in STRAGGLERS and "do not wait" not in finding.claim
        is_stated = finding.kind in STATED or is_waited_for
        if is_stated and finding.lost_s_per_step and not finding.is_one_off:
            assert duration(finding.lost_s_per_step) in finding.claim, finding
    in_step = [finding for finding in own if Outside.BETWEEN not in stages_of(finding)]
    between = [finding for finding in own if Outside.BETWEEN in stages_of(finding)]
    assert sum(map(lost, in_step)) <= (facts.mean.step_s or 0.0) * SLACK, in_step
    assert sum(map(lost, between)) <= held[Outside.BETWEEN] * SLACK, between
    for leader in found:
        parts = [finding for finding in found if finding.part_of is leader.kind]
        assert sum(map(lost, parts)) <= lost(leader) * SLACK, (leader, parts)
    if facts.gpu_idle is not None:
        check_idle_time(facts, found)


IDLE_FOR = {
    Kind.RECOMPILING: "compile",
    Kind.GC_PAUSES: "gc",
    Kind.LOGGING_HEAVY: "logging",
    Kind.HOST_SYNC: "sync",
}
"""The kinds that claim the GPU's idle time, with its cause."""


def check_idle_time(facts: Facts, found: tuple[Finding, ...]) -> None:
    """No finding claims more idle time of the GPU than its cause has, nor all of them together."""
    idle = facts.gpu_idle
    assert idle is not None
    assert 0 <= (idle.launching_s or 0.0) <= idle.launching_at_most_s
    assert idle.besides_launching_s + idle.launching_at_most_s <= (facts.mean.step_s or 0) * SLACK
    claimed_s = 0.0
    for finding in found:
        if Outside.BETWEEN in stages_of(finding):
            continue
        if finding.kind in IDLE_FOR:
            assert lost(finding) <= idle.by_cause[IDLE_FOR[finding.kind]] * SLACK + 1e-9, finding
        elif finding.kind is Kind.HOST_BOUND:
            assert lost(finding) <= (idle.launching_s or 0.0) * SLACK + 1e-9, finding
        elif finding.kind is Kind.WAIT_HEAVY:
            most_s = idle.besides_launching_s - idle.input_s - idle.copies_s
            assert lost(finding) <= most_s * SLACK + 1e-9, finding
        elif finding.kind is not Kind.INPUT_BOUND:
            continue
        claimed_s += lost(finding) if finding.part_of is None else 0.0
    all_s = idle.besides_launching_s + (idle.launching_s or 0.0)
    assert claimed_s <= all_s * SLACK + 1e-9, found


def waited_s(facts: Facts) -> float:
    """What a mean rank waits for other ranks, as far as that can be seen."""
    assert facts.job is not None
    if len(facts.ranks_used) < 2 or not facts.job.waits:
        return 0.0
    hidden = facts.job.wait_is_hidden
    return held_s(facts.mean)[Phase.BACKWARD if hidden else Phase.COMMUNICATION]


def idle_between_phases_s(facts: Facts) -> float:
    """What the GPU idles for data or for the host, as far as it was timed."""
    if facts.gpu_idle is not None:
        return facts.gpu_idle.besides_launching_s
    held = held_s(facts.mean)
    return held[Phase.INPUT] + held[Phase.RESIDUAL] if facts.clock == "gpu" else 0.0


def check_savings(facts: Facts, what_ifs: tuple[WhatIf, ...]) -> None:
    if what_ifs:  # what one rank loses others wait for; nothing else is saved beyond what is lost,
        # but what the GPU idles where the host no longer waits for it
        beyond_s = [max(0.0, each.saved_s - lost(each.finding) * SLACK) for each in what_ifs]
        frees = [
            all_rules().of(each.finding.kind).what_if.frees_host(facts.job, each.finding)
            for each in what_ifs
        ]
        idle_s = idle_between_phases_s(facts)
        for position in np.flatnonzero(frees):
            part_s = min(beyond_s[position], idle_s)
            beyond_s[position] -= part_s
            idle_s -= part_s
        is_part = [each.finding.part_of is not None for each in what_ifs]
        by_parts_s = [s for s, part in zip(beyond_s, is_part, strict=True) if part]
        assert sum(beyond_s) - sum(by_parts_s) <= waited_s(facts) * SLACK + 1e-9, what_ifs
        assert sum(by_parts_s) <= waited_s(facts) * SLACK + 1e-9, what_ifs
    own = [each for each in what_ifs if each.finding.part_of is None]
    in_step = [each for each in own if Outside.BETWEEN not in stages_of(each.finding)]
    assert sum(each.saved_s for each in in_step) <= (facts.mean.step_s or 0.0) * SLACK
    most_s = max(facts.mean.wall_s or 0.0, facts.mean.step_s or 0.0)
    assert sum(each.saved_s for each in own) <= most_s * SLACK
    for leader in what_ifs:
        parts = [each for each in what_ifs if each.finding.part_of is leader.finding.kind]
        assert sum(each.saved_s for each in parts) <= leader.saved_s * SLACK
    assert not any(each.finding.is_one_off for each in what_ifs)


part = st.one_of(st.just(0.0), st.floats(0.05, 120.0))
CAUSES = ("gc", "logging", "compile", "sync")


@st.composite
def runs(draw: st.DrawFn) -> RunRecords:
    """Any step, on either clock, with anything that the host may do besides."""
    gpu = draw(st.booleans())
    ranks = draw(st.integers(1, 3))
    run = make_run(
        ranks,
        draw(st.sampled_from([24, 60])),
        input_ms=draw(st.one_of(st.none(), part)),
        h2d_ms=draw(st.one_of(st.none(), part)),
        forward_ms=draw(part),
        backward_ms=draw(part),
        optimizer_ms=draw(st.one_of(st.none(), part)),
        communication_ms=draw(st.one_of(st.none(), part)),
        rest_ms=draw(part),
        between_ms=draw(part),
        gpu=gpu,
        workers=draw(st.sampled_from([0, 2])),
    )
    for name in draw(st.sets(st.sampled_from(CAUSES))):
        run = spend(
            run,
            name,
            draw(part),
            draw(st.sampled_from([1, 5, 20])),
            hidden=draw(st.booleans()),
            is_in_turn=draw(st.booleans()),
        )
    for name in draw(st.sets(st.sampled_from(["evaluation", "checkpoint"]))):
        run = work_between(run, name, draw(part), draw(st.sampled_from([1, 10])))
    if draw(st.booleans()):
        phase = draw(st.sampled_from(["input", "forward", "backward", "rest"]))
        run = make_late(run, ranks - 1, phase=phase, by_ms=draw(part))
    if draw(st.booleans()):
        run = stall(run, draw(st.sampled_from(["input", "forward", "rest"])), 5.0, 17)
    if draw(st.booleans()):
        run = make_waiting(run)
    if gpu:
        dry = draw(st.sampled_from([0.0, 0.6, 1.0]))
        run = flag_steps(run, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, dry)
        run = count_syncs(run, draw(st.sampled_from([0, 1, 200])))
        run = in_use(run, draw(st.sampled_from([None, 0.1, 0.6, 1.0])))
        if draw(st.booleans()):
            shares = st.sampled_from([0.0, 0.3, 1.0])
            run = idle_gpu(run, draw(shares), draw(shares))
    return run


def in_use(run: RunRecords, utilisation: float | None) -> RunRecords:
    """The run with GPUs that were in use this share of the time."""
    return run if utilisation is None else count_gpus(run, busy_share=utilisation)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(runs())
def test_every_diagnosis_fits_the_account_of_time(run: RunRecords) -> None:
    facts = gather(run)
    found = step_time(diagnose(facts))
    check_account(facts, found)
    check_savings(facts, predict(facts, found))


@settings(max_examples=40, deadline=None)
@given(runs())
def test_settling_twice_changes_nothing(run: RunRecords) -> None:
    facts = gather(run)
    once = [finding for finding in step_time(diagnose(facts)) if not finding.is_one_off]
    for before, after in zip(once, settle(facts, once), strict=True):
        if before.kind is Kind.HOST_BOUND:
            continue  # it is given what others leave of the idle time, which its claim no longer is
        assert lost(after) == pytest.approx(lost(before), rel=2e-3, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(*[st.floats(6.0, 100.0)] * 5),
    st.sampled_from(CAUSES),
    st.booleans(),
    st.floats(1.0, 40.0),
)
def test_scaling_all_times_scales_every_claim(
    parts_ms: tuple[float, ...], cause: str, gpu: bool, factor: float
) -> None:
    names = ("input_ms", "forward_ms", "backward_ms", "rest_ms", "between_ms")

    def found(scale: float) -> dict[Kind, float]:
        values = {name: each * scale for name, each in zip(names, parts_ms, strict=True)}
        run = make_run(steps=40, noise=0, optimizer_ms=5 * scale, gpu=gpu, **values)
        run = spend(run, cause, 8 * scale)
        return {f.kind: lost(f) for f in step_time(diagnose(gather(run)))}

    small, large = found(1.0), found(factor)
    for kind in small.keys() & large.keys():
        assert large[kind] == pytest.approx(small[kind] * factor, rel=1e-3)


def dry(run: RunRecords) -> RunRecords:
    return flag_steps(run, StepFlag.QUEUE_WATCHED, StepFlag.QUEUE_DRY, 1.0)


def test_a_loss_read_every_step_is_not_to_blame_for_batches_that_come_late() -> None:
    """ResNet-50 with four workers: 194.9 ms on the GPU's clock, 70.8 of them without a batch."""
    run = make_run(
        gpu=True,
        noise=0,
        input_ms=70.8,
        forward_ms=38.0,
        backward_ms=80.0,
        optimizer_ms=2.5,
        rest_ms=3.6,
        workers=4,
    )

    def read_the_loss(steps, rank):
        steps["sync_ns"] = 71_900_000

    run = count_syncs(dry(map_steps(run, read_the_loss)), 3)
    facts = gather(run)
    found = step_time(diagnose(facts))
    assert facts.mean.step_s == pytest.approx(0.1949)
    assert found[0].kind is Kind.INPUT_BOUND
    assert found[0].lost_s_per_step == pytest.approx(0.0708)
    assert Kind.HOST_SYNC not in {finding.kind for finding in found}
    assert "194.9 ms → 124.1 ms" in predict(facts, found)[0].summary


def test_reading_every_gradients_norm_is_named_and_explains_the_slow_host() -> None:
    """150 reads of 10 µs each: the waits are short, the round trips are not."""
    run = make_run(
        gpu=True,
        noise=0,
        input_ms=0.1,
        forward_ms=8.0,
        backward_ms=12.0,
        optimizer_ms=2.0,
        rest_ms=12.0,
    )

    def read_norms(steps, rank):
        steps["sync_ns"] = 1_500_000

    run = in_use(count_syncs(dry(map_steps(run, read_norms)), 150), 0.5)
    found = step_time(diagnose(gather(run)))
    kinds = [finding.kind for finding in found]
    assert kinds[:2] == [Kind.WAIT_HEAVY, Kind.HOST_SYNC]
    assert kinds.index(Kind.HOST_BOUND) > 1
    wait, sync, *_ = found
    assert "waiting for the device is 100% of it" in wait.claim
    assert sync.part_of is Kind.WAIT_HEAVY
    assert sync.lost_s_per_step == pytest.approx(0.012)


def test_many_reads_inside_the_model_lead_what_looks_like_a_slow_host() -> None:
    """They stretch forward instead of the rest; HOST_BOUND stands behind."""
    run = make_run(gpu=True, noise=0, input_ms=0.1, forward_ms=30, backward_ms=5, rest_ms=0.5)

    def read_in_forward(steps, rank):
        steps["sync_ns"] = 3_000_000

    run = in_use(count_syncs(dry(map_steps(run, read_in_forward)), 200), 0.3)
    facts = gather(run)
    found = step_time(diagnose(facts))
    assert [finding.kind for finding in found][:2] == [Kind.HOST_SYNC, Kind.HOST_BOUND]
    assert found[0].lost_s_per_step == pytest.approx(0.02)
    assert found[0].phase is None  # it lies in no one phase
    # The GPU is idle 70 % of the step; what the reads explain of it is theirs.
    idle_s = 0.7 * (facts.mean.step_s or 0.0)
    assert lost(found[0]) + lost(found[1]) == pytest.approx(idle_s, rel=0.01)


def test_an_idle_gpu_is_the_hosts_only_beyond_what_is_explained_already() -> None:
    """Idle 60 % of 60 ms: 12 ms for data and 14 ms in the rest are other findings' time."""
    run = make_run(
        gpu=True, noise=0, input_ms=12, forward_ms=15, backward_ms=15, optimizer_ms=4, rest_ms=14
    )

    def host_is_busy(steps, rank):
        steps["body_ns"] += 8_000_000

    found = step_time(diagnose(gather(in_use(dry(map_steps(run, host_is_busy)), 0.4))))
    by_kind = {finding.kind: finding for finding in found}
    assert lost(by_kind[Kind.HOST_BOUND]) == pytest.approx(0.010)
    assert "10.0 ms per step is counted here, 14.0 ms with" in by_kind[Kind.HOST_BOUND].claim


def test_what_is_settled_for_a_finding_is_the_most_that_its_removal_saves() -> None:
    """Whatever the kind: here each finding was left half of the time that it claimed."""
    run = spend(make_run(noise=0, rest_ms=6), "gc", 20, hidden=True)
    run = spend(run, "logging", 24, hidden=True)
    facts = gather(run)
    found = step_time(diagnose(facts))
    for each in predict(facts, [replace(one, lost_s_per_step=lost(one) / 2) for one in found]):
        assert each.saved_s <= lost(each.finding) * SLACK, each.finding.kind


def test_pauses_of_ranks_in_turn_save_what_the_others_wait_as_well() -> None:
    """Each of two ranks collects garbage in its own steps; the other one waits meanwhile."""
    healthy = make_run(2, noise=0, communication_ms=1)
    run = make_waiting(spend(healthy, "gc", 40, every=2, is_in_turn=True))
    facts = gather(run)
    found = predict(facts, step_time(diagnose(facts)))
    collected = next(each for each in found if each.finding.kind is Kind.GC_PAUSES)
    assert lost(collected.finding) == pytest.approx(0.02)
    healthy_s = gather(make_waiting(healthy)).mean.step_s
    assert collected.predicted_s == pytest.approx(healthy_s, rel=0.02)


def test_two_causes_share_the_rest_and_do_not_each_claim_it() -> None:
    run = spend(make_run(gpu=True, noise=0, rest_ms=10), "gc", 9, hidden=True)
    run = spend(run, "logging", 9, hidden=True)
    by_kind = {finding.kind: finding for finding in step_time(diagnose(gather(run)))}
    assert lost(by_kind[Kind.GC_PAUSES]) == pytest.approx(0.009)
    assert Kind.LOGGING_HEAVY not in by_kind  # 1 ms is left for it, 2 % of the step


def test_a_late_rank_and_the_wait_that_all_have_are_counted_once() -> None:
    """Every rank waits 20 ms for data, rank 1 another 50 ms, for which rank 0 waits in turn."""
    run = make_waiting(make_late(make_run(2, input_ms=20, noise=0), 1, phase="input", by_ms=50))
    facts = gather(run)
    found = step_time(diagnose(facts))
    by_kind = {finding.kind: finding for finding in found}
    assert lost(by_kind[Kind.INPUT_STRAGGLER]) == pytest.approx(0.05, rel=0.01)
    assert lost(by_kind[Kind.INPUT_BOUND]) == pytest.approx(0.02, rel=0.01)
    saved = {each.finding.kind: each.saved_s for each in predict(facts, found)}
    assert saved[Kind.INPUT_STRAGGLER] == pytest.approx(0.05, rel=0.01)
    assert saved[Kind.INPUT_BOUND] == pytest.approx(0.02, rel=0.01)


def test_a_slowdown_in_one_phase_is_part_of_what_is_said_about_that_phase() -> None:
    run = make_late(make_run(input_ms=10), 0, phase="input", by_ms=60, since=100)
    facts = gather(run)
    found = step_time(diagnose(facts))
    slowdown = next(finding for finding in found if finding.kind is Kind.SLOWDOWN)
    assert slowdown.phase is Phase.INPUT
    assert slowdown.part_of is Kind.INPUT_BOUND
    saved = {each.finding.kind: each.saved_s for each in predict(facts, found)}
    assert saved[Kind.SLOWDOWN] < saved[Kind.INPUT_BOUND]


def finding_of(kind: Kind, lost_ms: float, phase: Phase | None = None) -> Finding:
    return Finding(
        kind,
        Section.STEP_TIME,
        Severity.WARNING,
        f"{kind.status}.",
        "",
        phase,
        ranks=(1,),
        lost_s_per_step=lost_ms / 1e3,
    )


def test_what_explains_a_part_is_a_part_of_that_part() -> None:
    """A late rank waits outside its phases, and it waits there because it collects garbage."""
    facts = gather(make_run(2, noise=0, communication_ms=4, rest_ms=12))
    straggler = finding_of(Kind.WAIT_STRAGGLER, 8)
    wait = finding_of(Kind.WAIT_HEAVY, 10, Phase.RESIDUAL)
    garbage = finding_of(Kind.GC_PAUSES, 6, Phase.RESIDUAL)
    settled = {one.kind: one for one in settle(facts, [garbage, straggler, wait])}
    assert {kind: one.part_of for kind, one in settled.items()} == {
        Kind.WAIT_STRAGGLER: None,
        Kind.WAIT_HEAVY: Kind.WAIT_STRAGGLER,
        Kind.GC_PAUSES: Kind.WAIT_HEAVY,
    }
    lost_ms = {kind: lost(one) * 1e3 for kind, one in settled.items()}
    assert lost_ms == pytest.approx({Kind.WAIT_STRAGGLER: 8, Kind.WAIT_HEAVY: 8, Kind.GC_PAUSES: 6})
    assert "Only 8.0 ms per step of it is part of WAIT STRAGGLER." in settled[Kind.WAIT_HEAVY].claim
    assert settled[Kind.GC_PAUSES].claim == garbage.claim


def test_a_claim_that_was_reduced_says_why() -> None:
    """Only where another finding holds the time is it said to be counted there."""
    facts = gather(make_run(noise=0, h2d_ms=10, rest_ms=10))
    (alone,) = settle(facts, [finding_of(Kind.H2D_BOUND, 25, Phase.H2D)])
    assert lost(alone) == pytest.approx(0.010)
    assert alone.claim == "H2D-BOUND. A mean step has only 10.0 ms of it."
    garbage = finding_of(Kind.GC_PAUSES, 7, Phase.RESIDUAL)
    logging = finding_of(Kind.LOGGING_HEAVY, 7, Phase.RESIDUAL)
    first, second = settle(facts, [garbage, logging])
    assert first == garbage
    assert lost(second) == pytest.approx(0.003)
    assert second.claim.endswith(". 3.0 ms per step is counted here, 4.0 ms with other findings.")


def test_what_is_left_without_time_is_only_a_remark() -> None:
    facts = gather(make_run(input_ms=50, noise=0))
    same = Finding(Kind.H2D_BOUND, Section.STEP_TIME, Severity.CRITICAL, "", "", Phase.H2D)
    same = replace(same, lost_s_per_step=0.05)
    (settled,) = settle(facts, [same])  # no copies were measured
    assert (settled.lost_s_per_step, settled.severity) == (0.0, Severity.INFO)
