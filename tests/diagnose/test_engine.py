"""Every section says something, in order of severity and cost, and one finding leads."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from factories import make_run, map_steps, spend, stall, work_between
from traceml.diagnose import engine
from traceml.diagnose.all_rules import RuleSet, all_rules
from traceml.diagnose.engine import diagnose
from traceml.diagnose.finding_order import order_findings
from traceml.diagnose.rule import Rule
from traceml.facts.facts import Facts
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.record_layout import NOT_MEASURED
from traceml.store.records import RunRecords
from traceml.store.step_records import WIDE


def with_rule(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    """Has the engine ask one more rule."""
    more = RuleSet((*all_rules().rules, rule))
    monkeypatch.setattr(engine, "all_rules", lambda: more)


def kinds(run: RunRecords, section: Section = Section.STEP_TIME) -> list[Kind]:
    return [finding.kind for finding in diagnose(gather(run)).sections[section]]


def test_every_section_has_a_finding_even_without_records() -> None:
    empty = RunRecords(manifest=make_run().manifest, ranks=())
    for run in (empty, make_run(), make_run(gpu=True), make_run(steps=0)):
        sections = diagnose(gather(run)).sections
        assert set(sections) == set(Section)
        assert all(sections.values())


def test_sections_without_measurements_say_no_data() -> None:
    bare = replace(make_run(steps=0), samples=())
    for section in Section:
        assert kinds(bare, section) == [Kind.NO_DATA]


def test_sections_with_nothing_wrong_are_calm() -> None:
    run = make_run()
    assert kinds(run, Section.STEP_MEMORY) == [Kind.BALANCED]
    assert kinds(run, Section.SYSTEM) == [Kind.NORMAL]
    assert kinds(run, Section.PROCESS) == [Kind.NORMAL]


def test_balanced_is_said_only_alone() -> None:
    assert kinds(make_run(forward_ms=5, backward_ms=5, optimizer_ms=5, rest_ms=1.7)) == [
        Kind.COMPUTE_BOUND
    ]
    assert kinds(
        make_run(input_ms=0.9, forward_ms=2, backward_ms=3, rest_ms=0.9, optimizer_ms=None)
    ) == [Kind.BALANCED]


def test_severity_then_time_lost_decides_the_order() -> None:
    both = make_run(input_ms=30, rest_ms=12)
    assert kinds(both) == [Kind.INPUT_BOUND, Kind.WAIT_HEAVY]
    assert kinds(make_run(input_ms=12, rest_ms=30)) == [Kind.WAIT_HEAVY, Kind.INPUT_BOUND]


def test_the_order_of_the_rules_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = gather(make_run(input_ms=30, rest_ms=12))
    forward = diagnose(facts)
    backward = RuleSet(reversed(all_rules().rules))
    monkeypatch.setattr(engine, "all_rules", lambda: backward)
    assert diagnose(facts) == forward


def test_a_stall_is_told_of_the_step_and_not_of_the_memory_that_is_balanced_too() -> None:
    sections = diagnose(gather(stall(make_run(), "forward", 30.0, 50))).sections
    assert "number 50" in sections[Section.STEP_TIME][0].claim
    memory = sections[Section.STEP_MEMORY][0]
    assert memory.kind is Kind.BALANCED
    assert "step" not in memory.claim


def test_a_remark_leaves_the_verdict_to_another() -> None:
    """Evaluation as such is normal work: it neither leads nor silences the verdict."""
    evaluated = work_between(make_run(), "evaluation", 10)
    assert kinds(evaluated) == [Kind.COMPUTE_BOUND, Kind.EVALUATION_HEAVY]
    uneventful = work_between(
        make_run(input_ms=0.9, forward_ms=2, backward_ms=3, rest_ms=0.9, optimizer_ms=None),
        "evaluation",
        3,
    )
    assert kinds(uneventful) == [Kind.BALANCED, Kind.EVALUATION_HEAVY]


def test_evaluation_leads_where_it_costs_more_than_training() -> None:
    assert kinds(work_between(make_run(), "evaluation", 60))[0] is Kind.EVALUATION_HEAVY


def test_what_is_inside_the_rest_follows_it() -> None:
    assert kinds(spend(make_run(), "gc", 9)) == [Kind.WAIT_HEAVY, Kind.GC_PAUSES]
    assert kinds(spend(make_run(), "gc", 2.2)) == [Kind.GC_PAUSES, Kind.COMPUTE_BOUND]


def test_one_long_step_of_a_healthy_run_is_not_taken_for_its_pace() -> None:
    (finding,) = diagnose(gather(stall(make_run(noise=0), "forward", 70, 120))).sections[
        Section.STEP_TIME
    ]
    assert finding.kind is Kind.COMPUTE_BOUND
    assert finding.claim.endswith(
        "One step (number 120) took 1 min 10 s; without it a mean step takes 37.0 ms."
    )
    healthy = diagnose(gather(make_run())).sections[Section.STEP_TIME]
    assert "One step" not in healthy[0].claim


@pytest.mark.parametrize("steps", [1, 4])
def test_a_handful_of_steps_is_warm_up_and_nothing_else(steps: int) -> None:
    assert kinds(make_run(steps=steps, input_ms=500)) == [Kind.WARMUP]
    assert kinds(make_run(steps=5, input_ms=500)) == [Kind.INPUT_BOUND]


def test_a_missing_rank_hides_nothing() -> None:
    run = make_run(ranks=4, input_ms=50)
    assert kinds(replace(run, ranks=run.ranks[:3])) == [Kind.INPUT_BOUND, Kind.INCOMPLETE_DATA]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(), id="one rank"),
        pytest.param(make_run(ranks=4), id="four ranks"),
        pytest.param(make_run(gpu=True), id="on a GPU"),
        pytest.param(make_run(input_ms=None, workers=None), id="batches already in memory"),
        pytest.param(make_run(first_step_ms=8000), id="with a long first step"),
        pytest.param(
            make_run(input_ms=0.36, forward_ms=1, backward_ms=1.5, optimizer_ms=0.3, rest_ms=0.5),
            id="a fast loader and short steps",
        ),
        pytest.param(
            make_run(input_ms=0.3, forward_ms=0.2, backward_ms=0.3, optimizer_ms=0.1, rest_ms=0.4),
            id="a tiny model",
        ),
        pytest.param(work_between(make_run(), "evaluation", 300, every=20), id="with evaluation"),
        pytest.param(spend(make_run(), "gc", 10, every=50), id="with an ordinary collection"),
        pytest.param(spend(make_run(), "logging", 5, every=50), id="with ordinary logging"),
        pytest.param(
            spend(make_run(gpu=True), "sync", 30, hidden=True), id="reading the loss of a busy GPU"
        ),
    ],
)
def test_a_healthy_run_gets_no_more_than_remarks(run: RunRecords) -> None:
    for findings in diagnose(gather(run)).sections.values():
        assert {finding.severity for finding in findings} == {Severity.INFO}, findings


@pytest.mark.parametrize(
    ("run", "leads"),
    [
        pytest.param(make_run(), Section.STEP_MEMORY, id="a calm step yields to it"),
        pytest.param(make_run(input_ms=5), Section.STEP_MEMORY, id="so does a mere warning"),
        pytest.param(make_run(input_ms=50), Section.STEP_TIME, id="a slow step does not"),
    ],
)
def test_critical_memory_leads_unless_the_step_is_critical(
    monkeypatch: pytest.MonkeyPatch, run: RunRecords, leads: Section
) -> None:
    def full(facts: Facts) -> Finding:
        return Finding(Kind.BALANCED, Section.STEP_MEMORY, Severity.CRITICAL, "full", "less")

    with_rule(monkeypatch, Rule(Kind.BALANCED, Section.STEP_MEMORY, full))
    assert diagnose(gather(run)).primary.section is leads


def made(kind: Kind, section: Section, severity: Severity) -> Finding:
    return Finding(kind, section, severity, f"{kind.value} is so", "do this")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(
            made(Kind.KILLED, Section.STABILITY, Severity.WARNING),
            made(Kind.NON_FINITE_LOSS, Section.STABILITY, Severity.CRITICAL),
            id="what ended it, then what would have",
        ),
        pytest.param(
            made(Kind.OUT_OF_MEMORY, Section.STABILITY, Severity.CRITICAL),
            made(Kind.CREEP_CONFIRMED, Section.STEP_MEMORY, Severity.CRITICAL),
            id="no memory left, then why",
        ),
        pytest.param(
            made(Kind.CREEP_CONFIRMED, Section.STEP_MEMORY, Severity.CRITICAL),
            made(Kind.INPUT_BOUND, Section.STEP_TIME, Severity.CRITICAL),
            id="memory that is full soon, then a slow step",
        ),
        pytest.param(
            made(Kind.INPUT_BOUND, Section.STEP_TIME, Severity.CRITICAL),
            made(Kind.CREEP_CONFIRMED, Section.STEP_MEMORY, Severity.WARNING),
            id="memory that lasts for days does not lead",
        ),
        pytest.param(
            made(Kind.WAIT_HEAVY, Section.STEP_TIME, Severity.WARNING),
            made(Kind.KILLED, Section.STABILITY, Severity.INFO),
            id="being asked to end is a remark",
        ),
    ],
)
def test_the_consequence_decides_what_leads(first: Finding, second: Finding) -> None:
    for findings in ((first, second), (second, first)):
        ordered = order_findings(findings)
        sections = {s: tuple(f for f in ordered if f.section is s) for s in Section}
        assert engine.primary(sections) == first


def test_where_no_step_was_measured_what_ended_the_run_leads() -> None:
    ended = made(Kind.KILLED, Section.STABILITY, Severity.INFO)
    nothing = made(Kind.NO_DATA, Section.STEP_TIME, Severity.INFO)
    sections: dict[Section, tuple[Finding, ...]] = dict.fromkeys(Section, ())
    sections |= {Section.STABILITY: (ended,), Section.STEP_TIME: (nothing,)}
    assert engine.primary(sections) == ended


def test_a_run_that_failed_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(facts: Facts) -> Finding:
        return Finding(Kind.EXCEPTION, Section.STABILITY, Severity.CRITICAL, "failed", "mend")

    with_rule(monkeypatch, Rule(Kind.EXCEPTION, Section.STABILITY, failed))
    assert diagnose(gather(make_run(input_ms=50))).primary.kind is Kind.EXCEPTION


parts = st.floats(4.0, 200.0)


@settings(max_examples=30, deadline=None)
@given(parts, parts, parts, parts, st.floats(1.0, 50.0))
def test_slower_by_a_factor_is_the_same_verdict(
    input_ms: float, forward_ms: float, backward_ms: float, rest_ms: float, factor: float
) -> None:
    """Scale-free above a few milliseconds; below, a lost time may be too small to matter."""

    def run(scale: float) -> RunRecords:
        return make_run(
            steps=40,
            noise=0,
            input_ms=input_ms * scale,
            forward_ms=forward_ms * scale,
            backward_ms=backward_ms * scale,
            optimizer_ms=5 * scale,
            rest_ms=rest_ms * scale,
        )

    compute_ms = forward_ms + backward_ms + 5
    step_ms = input_ms + compute_ms + rest_ms
    lines = ((input_ms, (0.1, 0.2, 0.5)), (rest_ms, (0.1, 0.2)), (compute_ms, (0.8,)))
    for part_ms, edges in lines:
        assume(all(abs(part_ms / step_ms - edge) > 1e-4 for edge in edges))

    def said(run: RunRecords) -> set[tuple[Kind, Severity]]:
        return {(f.kind, f.severity) for f in diagnose(gather(run)).sections[Section.STEP_TIME]}

    assert said(run(1.0)) == said(run(factor))


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), parts, parts)
def test_permuting_ranks_permutes_the_ranks_named(
    order: list[int], input_ms: float, slow_ms: float
) -> None:
    run = make_run(ranks=4, steps=20, input_ms=input_ms, slow_rank=2, slow_ms=slow_ms, noise=0)
    moved = replace(
        run,
        ranks=tuple(
            replace(run.ranks[old], rank=replace(run.ranks[old].rank, rank=new))
            for new, old in enumerate(order)
        ),
    )
    before = diagnose(gather(run)).sections[Section.STEP_TIME]
    after = diagnose(gather(moved)).sections[Section.STEP_TIME]
    assert [f.kind for f in before] == [f.kind for f in after]
    for one, other in zip(before, after, strict=True):
        assert sorted(order.index(rank) for rank in one.ranks) == sorted(other.ranks)


@settings(max_examples=30, deadline=None)
@given(parts, parts, parts, parts, st.sampled_from(["forward_ms", "backward_ms", "optimizer_ms"]))
def test_removing_a_measurement_of_compute_only_removes_findings(
    input_ms: float, forward_ms: float, backward_ms: float, rest_ms: float, removed: str
) -> None:
    """The time stays in the body, as it does when a tracer cannot see a phase."""
    whole = {
        "input_ms": input_ms,
        "forward_ms": forward_ms,
        "backward_ms": backward_ms,
        "optimizer_ms": 5.0,
    }
    known = make_run(steps=20, noise=0, rest_ms=rest_ms, **whole)
    hidden = {**whole, removed: None}
    unknown = make_run(steps=20, noise=0, rest_ms=rest_ms + whole[removed], **hidden)
    assert set(kinds(unknown)) - {Kind.BALANCED} <= set(kinds(known))


MEASURED = [name for name in WIDE if name not in ("start_ns", "wall_ns", "body_ns", "gpu_body_ns")]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MEASURED), st.booleans(), parts)
def test_removing_any_measurement_never_finds_anything_new(
    removed: str, gpu: bool, each_ms: float
) -> None:
    """Calm findings aside: they are what is said when nothing is found.

    A wait that was not seen as one is time in the body, as it is for the tracer.
    """
    run = make_run(ranks=2, steps=40, noise=0, input_ms=12, h2d_ms=9, rest_ms=6, gpu=gpu)
    for name in ("gc", "logging", "compile", "sync"):
        run = spend(run, name, each_ms)
    run = work_between(run, "evaluation", 30)

    def remove(steps, rank):
        if removed.endswith("input_ns"):
            body = removed.replace("input", "body")
            steps[body] += np.where(steps[body] < 0, 0, steps[removed])
        steps[removed] = NOT_MEASURED

    calm = {Kind.BALANCED, Kind.NO_DATA, Kind.NORMAL, Kind.STABLE}
    before, after = diagnose(gather(run)), diagnose(gather(map_steps(run, remove)))
    for section, findings in after.sections.items():
        known = {finding.kind for finding in before.sections[section]}
        assert {finding.kind for finding in findings} - calm <= known
