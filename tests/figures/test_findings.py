"""The rail: what there is to say, the worst first, each with few pieces of evidence in words."""

from typing import Any

import msgspec
import pytest

from counted_runs import TINY_LAYERS, TRANSFORMER_FP32
from drawn_runs import page_of
from factories import count_gpus, make_run, make_waiting, spend
from memory_runs import with_steps_memory
from traceml.figures.findings import MAX_FACTS, facts, rail, spans, tone
from traceml.figures.page import Fact, FindingCard
from traceml.summaries.build import build
from traceml.summaries.record import FactSummary, Summary

BOUND = {"kind": "INPUT_BOUND", "status": "INPUT-BOUND", "severity": "crit", "summary": "why"}
CALM = {"kind": "NORMAL", "status": "NORMAL", "severity": "info"}


def summary(**sections: list[dict[str, Any]]) -> Summary:
    found = {name: {"issues": issues} for name, issues in sections.items()}
    return msgspec.convert(found, Summary)


def statuses(cards: tuple[FindingCard, ...]) -> list[tuple[str, str]]:
    return [(card.section, card.status) for card in cards]


def test_step_time_and_step_memory_are_always_told() -> None:
    assert statuses(page_of(make_run()).rail) == [
        ("Step time", "COMPUTE-BOUND"),
        ("Step memory", "BALANCED"),
    ]


def test_the_worst_section_comes_first() -> None:
    run = with_steps_memory("allocated_bytes", lambda at, rank: 4096 + 20 * at, gpu=True)
    assert statuses(page_of(run).rail)[0] == ("Step memory", "MEMORY CREEP")


def test_what_only_is_context_is_told_when_it_matters() -> None:
    hot = {"kind": "HIGH_RAM", "status": "HIGH RAM", "severity": "warn"}
    told = rail(summary(step_time=[BOUND], process=[CALM], system=[CALM, hot]))
    assert statuses(told) == [("Step time", "INPUT-BOUND"), ("System", "HIGH RAM")]


def test_a_card_says_what_its_cure_would_bring() -> None:
    (card, *_) = page_of(make_run(input_ms=80)).rail
    assert card.gain == "116.0 → 36.0 ms, 3.22×"
    assert card.severity == "crit" and card.action


def test_of_one_rank_nobody_is_told_which() -> None:
    assert page_of(make_run(input_ms=80)).rail[0].ranks == ()
    slow = make_waiting(make_run(ranks=4, slow_rank=2, communication_ms=1))
    assert page_of(slow).rail[0].ranks == (2,)


def test_causes_follow_what_they_explain() -> None:
    told = statuses(page_of(spend(make_run(), "gc", 100, every=5)).rail)
    assert ("Step time", "GC PAUSES") in told


@pytest.mark.parametrize(
    ("name", "value", "fact"),
    [
        ("input_bound_share", 0.848173, Fact("input share", "85%")),
        ("input_wait_ms", 544.487, Fact("input wait", "544.5 ms")),
        ("median_ms", 0.267, Fact("median rank", "267 µs")),
        ("peak_rss_bytes", 445571072, Fact("peak resident memory", "424.9 MiB")),
        ("swap_bytes_per_s", 2048, Fact("swap", "2.0 KiB/s")),
        ("no_step_for_s", 90.0, Fact("no step for", "1 min 30 s")),
        ("gpu_utilisation", 0.4, Fact("GPU utilization", "40%")),
        ("temperature_c", 91.4, Fact("temperature", "91 °C")),
        ("power_w", 350.2, Fact("power", "350 W")),
        ("skew", 2.0, Fact("skew", "200%")),
        ("skew", 184.67, Fact("skew", "186×")),
        ("cores", 2.0, Fact("cores", "2")),
        ("steps_taken", 12_345, Fact("steps taken", "12,345")),
        ("pinned", False, Fact("pinned", "no")),
        ("collective", "all\x1breduce", Fact("collective", "all?reduce")),
    ],
)
def test_evidence_is_told_in_words(name: str, value: object, fact: Fact) -> None:
    assert list(facts({name: value})) == [fact]


def test_evidence_is_short_and_leaves_out_what_was_not_measured() -> None:
    evidence = {"workers": None, **{f"part_{number}_ms": 1.0 for number in range(9)}}
    told = list(facts({"diagnosis_clock": "cpu", **evidence}))
    assert [fact.label for fact in told] == [f"part {number}" for number in range(MAX_FACTS)]


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.25, "share", "25%"),
        (2_500.0, "ms", "2.50 s"),
        (2048, "bytes", "2.0 KiB"),
        (3, "number", "3"),
        (3, "parsecs", "3"),
    ],
)
def test_the_unit_that_a_file_tells_counts_and_not_what_the_key_looks_like(
    value: float, unit: str, words: str
) -> None:
    named = [FactSummary("gpu_utilization_worst_s", "worst \x1bGPU", unit)]
    evidence = {"workers": 4, "gpu_utilization_worst_s": value}
    assert list(facts(evidence, named=named)) == [Fact("worst ?GPU", words)]


def test_a_fact_without_evidence_is_left_out() -> None:
    assert list(facts({}, named=[FactSummary("gone_ms", "gone", "ms")])) == []


def test_pages_say_the_units_that_the_rules_declare() -> None:
    """By its key the worst GPU's share looked like a plain number: 0.12."""
    idle = count_gpus(make_run(gpu=True), **TINY_LAYERS)
    told = {card.kind: card for card in rail(build(idle, 0.0, "1"))}
    shown = {fact.label: fact.value for fact in told["LOW_GPU_UTILIZATION"].evidence}
    assert shown["GPU utilization worst"] == shown["GPU utilization"] == "12%"


@pytest.mark.parametrize(
    ("kind", "severity", "expected"),
    [
        ("INPUT_BOUND", "crit", "crit"),
        ("SLOWDOWN", "warn", "warn"),
        ("BALANCED", "info", "good"),
        ("COMPUTE_BOUND", "info", "info"),
        ("NO_DATA", "info", "muted"),
        (None, None, "muted"),
    ],
)
def test_severity_decides_the_tone(kind: str, severity: str, expected: str) -> None:
    assert tone(kind, severity) == expected


def test_a_finding_is_marked_from_the_step_since_which_it_holds() -> None:
    since = summary(step_time=[{**BOUND, "since_step": 601}])
    (span,) = spans(since, ("step_time",), first_step=1)
    assert (span.begin, span.until, span.label) == (601.0, None, "INPUT-BOUND")
    (card,) = rail(since)
    assert card.since == "since step 601"


def test_a_finding_counted_by_the_script_s_own_steps_is_not_marked() -> None:
    logged = {"first_step": 7, "numbering": "logged"}
    issue = {"kind": "NON_FINITE_LOSS", "severity": "crit", "evidence": logged}
    assert spans(summary(stability=[issue]), ("stability",), first_step=1) == ()


def test_why_compute_takes_its_time_is_on_the_rail_with_its_counters() -> None:
    counted = build(count_gpus(make_run(gpu=True), **TRANSFORMER_FP32), 0.0, "1")
    told = {card.kind: card for card in rail(counted)}
    evidence = {fact.label: fact.value for fact in told["TENSOR_CORES_IDLE"].evidence}
    assert (evidence["FP32 share"], evidence["tensor share"]) == ("62%", "3.5%")
    assert list(told)[:2] == ["COMPUTE_BOUND", "TENSOR_CORES_IDLE"]
