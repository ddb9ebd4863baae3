"""From the events of a simulated training to the finding: who lets the GPU idle, and for how long.

Each loop has a twin without its fault, which says what removing it truly saves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulated_gpu import SimulatedLoop
from traceml.diagnose.engine import diagnose
from traceml.diagnose.live_findings import share_now
from traceml.diagnose.what_if import predict
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.steps import events

STEPS = 60
Loop = SimulatedLoop
Step = Callable[[Loop], object]


def facts_of(step: Step) -> Facts:
    loop = Loop()
    for _ in range(STEPS):
        step(loop)
    return gather(loop.ends().records())


def findings(facts: Facts) -> dict[Kind, Finding]:
    return {finding.kind: finding for finding in diagnose(facts).sections[Section.STEP_TIME]}


def predicted_s(facts: Facts) -> dict[Kind, float]:
    found = predict(facts, diagnose(facts).sections[Section.STEP_TIME])
    return {each.finding.kind: each.predicted_s for each in found}


def healthy(loop: Loop, fetch_ms: float = 0.1, between: Step = lambda loop: None) -> Loop:
    """A step of 24 ms on the GPU that the host launches in 5 ms, with a loss in between."""
    loop.fetch(fetch_ms).forward((20, 0.4, 0.1)).launches(1, 0.05)
    between(loop)
    return loop.backward((20, 0.7, 0.1)).optimizer((20, 0.1, 0.05)).runs(0.2)


def sleeps(loop: Loop) -> Loop:
    return healthy(loop).runs(40)


def reads(loop: Loop) -> Loop:
    """The loss is read, and 6 ms of Python follow."""
    return healthy(loop, between=lambda loop: loop.reads().runs(6))


def collects(loop: Loop) -> Loop:
    return healthy(loop).spends(events.GC, 40)


def logs(loop: Loop) -> Loop:
    return healthy(loop).spends(events.LOGGING, 40)


def waits_for_data(loop: Loop) -> Loop:
    return healthy(loop, fetch_ms=50)


@pytest.mark.parametrize(
    ("step", "fixed", "kind"),
    [
        pytest.param(sleeps, healthy, Kind.WAIT_HEAVY, id="the script sleeps between steps"),
        pytest.param(
            reads,
            lambda loop: healthy(loop, between=lambda loop: loop.runs(6)),
            Kind.HOST_SYNC,
            id="the loss is read",
        ),
        pytest.param(collects, healthy, Kind.GC_PAUSES, id="garbage is collected"),
        pytest.param(logs, healthy, Kind.LOGGING_HEAVY, id="much is logged"),
        pytest.param(waits_for_data, healthy, Kind.INPUT_BOUND, id="batches come late"),
    ],
)
def test_the_idle_time_of_its_cause_is_what_its_removal_saves(
    step: Step, fixed: Step, kind: Kind
) -> None:
    facts, expected = facts_of(step), facts_of(fixed)
    assert facts.gpu_idle is not None and expected.mean.step_s
    finding = findings(facts)[kind]
    assert finding.severity is not Severity.INFO
    saved_s = (facts.mean.step_s or 0.0) - expected.mean.step_s
    assert finding.lost_s_per_step == pytest.approx(saved_s, rel=0.1)
    assert share_now(finding, facts) == pytest.approx(finding.share)
    assert predicted_s(facts)[kind] == pytest.approx(expected.mean.step_s, rel=0.1)


def test_what_no_measurement_names_is_the_scripts_own_code() -> None:
    finding = findings(facts_of(sleeps))[Kind.WAIT_HEAVY]
    assert "it ran the script's own code for 100% of it" in finding.claim
    assert "traceml.trace_time" in finding.action


def test_reads_are_not_to_blame_where_batches_come_late() -> None:
    facts = facts_of(lambda loop: waits_for_data(loop).reads())
    found = findings(facts)
    assert next(iter(found)) is Kind.INPUT_BOUND
    assert Kind.HOST_SYNC not in found


def test_work_of_the_gpu_outside_the_models_phases_is_no_waiting() -> None:
    """An EMA of 8 ms in every step, while the host is far ahead."""
    facts = facts_of(lambda loop: healthy(loop).launches(20, 0.4))
    assert facts.mean.residual_s == pytest.approx(0.008, rel=0.05)
    assert Kind.WAIT_HEAVY not in findings(facts)


def test_a_step_that_is_mostly_other_work_of_the_gpu_is_told_as_such() -> None:
    facts = facts_of(lambda loop: healthy(loop).launches(20, 4))
    finding = findings(facts)[Kind.WAIT_HEAVY]
    assert finding.severity is Severity.INFO
    assert not finding.lost_s_per_step
    assert "78.7 ms of 102.7 ms) is spent by the GPU on other work" in finding.claim
    assert share_now(finding, facts) == finding.share
    assert Kind.WAIT_HEAVY not in predicted_s(facts)


def test_launching_is_the_idle_time_that_no_other_cause_has() -> None:
    """Small kernels, and garbage that is collected in the midst of launching them."""

    def step(loop: Loop) -> None:
        loop.fetch(0.1).begin(events.BEGIN_FORWARD, 3).launches(200, 0.005, 0.05)
        loop.spends(events.GC, 4).launches(100, 0.005, 0.05).end(events.END_FORWARD, 3)
        loop.backward((300, 0.005, 0.05)).optimizer((20, 0.005, 0.05))

    facts = facts_of(step)
    found = findings(facts)
    assert found[Kind.GC_PAUSES].lost_s_per_step == pytest.approx(0.004, rel=0.05)
    assert found[Kind.HOST_BOUND].lost_s_per_step == pytest.approx(0.028, rel=0.05)


def launches_between(loop: Loop) -> Loop:
    """Between the phases the host reads, and launches work of 20 ms as fast as the GPU does it."""
    return healthy(loop).reads().launches(200, 0.095, 0.1)


def test_counters_say_how_much_of_the_time_between_phases_was_idle() -> None:
    facts = facts_of(launches_between)
    assert facts.gpu_idle is not None
    assert facts.gpu_idle.by_cause["sync"] + facts.gpu_idle.python_s < 0.002
    assert not {Kind.WAIT_HEAVY, Kind.HOST_SYNC} & findings(facts).keys()


def test_a_pause_inside_a_phase_is_not_between_the_phases() -> None:
    """Garbage is collected in backward, and an average of the weights takes the GPU 10 ms."""

    def step(loop: Loop) -> None:
        loop.fetch(0.1).forward((20, 0.4, 0.1)).begin(events.BEGIN_BACKWARD)
        loop.launches(10, 0.7, 0.1).spends(events.GC, 40).launches(10, 0.7, 0.1)
        loop.end(events.END_BACKWARD).optimizer((20, 0.1, 0.05)).launches(10, 1.0)

    found = findings(facts_of(step))
    assert Kind.WAIT_HEAVY not in found
    assert found[Kind.GC_PAUSES].lost_s_per_step == pytest.approx(0.0113, rel=0.1)
