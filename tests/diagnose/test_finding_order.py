"""What explains another finding stands behind it, and context never shouts over its cause."""

from dataclasses import replace
from itertools import permutations

import pytest

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.finding_order import has_verdict, order_findings
from traceml.diagnose.rule import RuleRole
from traceml.model.finding import Finding, Kind, Section, Severity

INFO, WARN, CRIT = Severity.INFO, Severity.WARNING, Severity.CRITICAL
CAUSES = [
    rule.kind
    for rule in all_rules().rules
    if rule.role is RuleRole.CAUSE and Kind.WAIT_HEAVY in rule.explains
]
CONTEXT = {
    kind: min(all_rules().explained_by(kind))
    for rule in all_rules().rules
    if rule.role is RuleRole.CONTEXT
    for kind in rule.kinds
}
"""By kind: one of those that explain it."""


def finding(
    kind: Kind,
    severity: Severity = WARN,
    lost_ms: float | None = None,
    ranks: tuple[int, ...] = (),
    section: Section = Section.STEP_TIME,
) -> Finding:
    lost_s = None if lost_ms is None else lost_ms / 1e3
    return Finding(
        kind, section, severity, f"{kind.value}.", "Do.", ranks=ranks, lost_s_per_step=lost_s
    )


def order(*found: Finding) -> list[tuple[Kind, Severity]]:
    """The kinds as they are told; the same whatever order they were found in."""
    told = {
        tuple((f.kind, f.severity) for f in order_findings(each)) for each in permutations(found)
    }
    assert len(told) == 1
    return list(told.pop())


def kinds(*found: Finding) -> list[Kind]:
    return [kind for kind, _ in order(*found)]


def test_severity_decides_before_the_time_lost() -> None:
    assert kinds(finding(Kind.WAIT_HEAVY, WARN, 50), finding(Kind.INPUT_BOUND, CRIT, 5)) == [
        Kind.INPUT_BOUND,
        Kind.WAIT_HEAVY,
    ]


def test_within_a_severity_the_time_lost_decides() -> None:
    assert kinds(finding(Kind.WAIT_HEAVY, CRIT, 5), finding(Kind.INPUT_BOUND, CRIT, 50)) == [
        Kind.INPUT_BOUND,
        Kind.WAIT_HEAVY,
    ]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_stands_directly_behind_what_it_explains(cause: Kind) -> None:
    """Even where it loses more time than the finding after that."""
    assert kinds(
        finding(Kind.WAIT_HEAVY, CRIT, 30),
        finding(cause, CRIT, 29),
        finding(Kind.H2D_BOUND, CRIT, 10),
    ) == [Kind.WAIT_HEAVY, cause, Kind.H2D_BOUND]
    assert kinds(
        finding(Kind.WAIT_HEAVY, CRIT, 10),
        finding(cause, CRIT, 9),
        finding(Kind.H2D_BOUND, CRIT, 30),
    ) == [Kind.H2D_BOUND, Kind.WAIT_HEAVY, cause]


def test_the_order_of_severity_is_never_broken() -> None:
    assert order(
        finding(Kind.WAIT_HEAVY, CRIT, 30),
        finding(Kind.GC_PAUSES, WARN, 5),
        finding(Kind.INPUT_BOUND, CRIT, 10),
    ) == [(Kind.WAIT_HEAVY, CRIT), (Kind.INPUT_BOUND, CRIT), (Kind.GC_PAUSES, WARN)]


def test_a_cause_is_no_louder_than_what_it_explains() -> None:
    assert order(finding(Kind.WAIT_HEAVY, WARN, 10), finding(Kind.GC_PAUSES, CRIT, 20)) == [
        (Kind.WAIT_HEAVY, WARN),
        (Kind.GC_PAUSES, WARN),
    ]


def test_a_cause_that_explains_nothing_stands_for_itself() -> None:
    assert order(finding(Kind.GC_PAUSES, WARN, 3), finding(Kind.COMPUTE_BOUND, INFO)) == [
        (Kind.GC_PAUSES, WARN),
        (Kind.COMPUTE_BOUND, INFO),
    ]


@pytest.mark.parametrize(
    "remark",
    [Kind.EVALUATION_HEAVY, Kind.CHECKPOINT_HEAVY, Kind.GPU_THROTTLED, Kind.SLOWDOWN],
)
def test_a_remark_never_leads_over_a_verdict(remark: Kind) -> None:
    assert kinds(finding(remark, INFO, 40), finding(Kind.COMPUTE_BOUND, INFO)) == [
        Kind.COMPUTE_BOUND,
        remark,
    ]
    assert not has_verdict(Section.STEP_TIME, [finding(remark, INFO)])
    assert has_verdict(Section.STEP_TIME, [finding(remark, WARN)])


def starved(share: float | None) -> Finding:
    return replace(finding(Kind.CPU_STARVED, WARN, 9), share=share)


def test_a_shared_cpu_is_a_remark_about_a_healthy_step_and_an_explanation_of_a_slow_one() -> None:
    assert not has_verdict(Section.STEP_TIME, [starved(0.3)])
    assert order(starved(0.3), finding(Kind.BALANCED, INFO)) == [
        (Kind.BALANCED, INFO),
        (Kind.CPU_STARVED, INFO),
    ]
    assert order(starved(0.3), finding(Kind.INPUT_BOUND, CRIT, 9)) == [
        (Kind.INPUT_BOUND, CRIT),
        (Kind.CPU_STARVED, WARN),
    ]


@pytest.mark.parametrize("share", [0.6, None], ids=["most of the time", "swap, which has no share"])
def test_a_cpu_that_is_mostly_taken_leads_over_a_healthy_step(share: float | None) -> None:
    assert has_verdict(Section.STEP_TIME, [starved(share)])
    assert kinds(starved(share), finding(Kind.COMPUTE_BOUND, INFO))[0] is Kind.CPU_STARVED


def test_evaluation_that_outweighs_training_leads_over_compute() -> None:
    assert kinds(finding(Kind.EVALUATION_HEAVY, WARN, 90), finding(Kind.COMPUTE_BOUND, INFO)) == [
        Kind.EVALUATION_HEAVY,
        Kind.COMPUTE_BOUND,
    ]


def test_a_host_that_launches_too_slowly_leads_over_compute() -> None:
    assert kinds(finding(Kind.COMPUTE_BOUND, INFO), finding(Kind.HOST_BOUND, WARN)) == [
        Kind.HOST_BOUND,
        Kind.COMPUTE_BOUND,
    ]


@pytest.mark.parametrize(
    ("straggler", "bound"),
    [
        (Kind.INPUT_STRAGGLER, Kind.INPUT_BOUND),
        (Kind.H2D_STRAGGLER, Kind.H2D_BOUND),
        (Kind.WAIT_STRAGGLER, Kind.WAIT_HEAVY),
        (Kind.STRAGGLER, Kind.INPUT_BOUND),
    ],
)
def test_the_rank_to_blame_comes_before_its_own_trouble(straggler: Kind, bound: Kind) -> None:
    assert order(
        finding(straggler, WARN, 10, ranks=(2,)), finding(bound, CRIT, 30, ranks=(2,))
    ) == [(straggler, WARN), (bound, WARN)]


@pytest.mark.parametrize(
    ("straggler", "ranks"),
    [
        pytest.param(Kind.INPUT_STRAGGLER, (0, 2), id="other ranks have it too"),
        pytest.param(Kind.COMPUTE_STRAGGLER, (2,), id="a straggler of another kind"),
    ],
)
def test_trouble_that_a_straggler_does_not_explain_keeps_its_place(
    straggler: Kind, ranks: tuple[int, ...]
) -> None:
    assert order(
        finding(straggler, WARN, 40, ranks=(2,)), finding(Kind.INPUT_BOUND, CRIT, 30, ranks=ranks)
    ) == [(Kind.INPUT_BOUND, CRIT), (straggler, WARN)]


@pytest.mark.parametrize("context", CONTEXT)
def test_context_steps_back_behind_the_cause_that_explains_it(context: Kind) -> None:
    shown = finding(context, CRIT, section=Section.SYSTEM)
    cause = finding(CONTEXT[context], WARN, 5)
    (told,) = (f for f in order_findings([shown, cause]) if f.kind is context)
    assert told.severity is INFO
    assert cause.kind.status in told.claim


def test_context_that_nothing_explains_stays_as_it_is() -> None:
    shown = finding(Kind.LOW_GPU_UTILIZATION, WARN, section=Section.SYSTEM)
    calm = finding(Kind.COMPUTE_BOUND, INFO)
    remark = finding(Kind.EVALUATION_HEAVY, INFO)
    assert shown in order_findings([shown, calm, remark])


@pytest.mark.parametrize("early", [Kind.WARMUP, Kind.NO_DATA])
def test_with_too_few_steps_every_claim_about_them_is_withheld(early: Kind) -> None:
    memory = finding(Kind.HIGH_PRESSURE, CRIT, section=Section.STEP_MEMORY)
    assert kinds(
        finding(early, INFO),
        finding(Kind.INPUT_BOUND, CRIT, 30),
        finding(Kind.CPU_STARVED, WARN),
        finding(Kind.INCOMPLETE_DATA, WARN),
        memory,
    ) == [Kind.HIGH_PRESSURE, Kind.INCOMPLETE_DATA, early]


def test_no_data_about_the_machine_withholds_nothing() -> None:
    missing = finding(Kind.NO_DATA, INFO, section=Section.SYSTEM)
    assert kinds(missing, finding(Kind.INPUT_BOUND, CRIT)) == [Kind.INPUT_BOUND, Kind.NO_DATA]
