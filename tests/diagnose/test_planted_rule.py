"""A new cause is one file: found, told, documented and predicted wherever it is planted."""

from __future__ import annotations

import copy
import pickle
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from factories import make_run
from traceml.diagnose import rules
from traceml.diagnose.all_rules import all_rules, find_rules
from traceml.diagnose.engine import diagnose
from traceml.diagnose.live_findings import share_now
from traceml.diagnose.what_if import predict
from traceml.facts.gather import gather
from traceml.figures.findings import rail
from traceml.figures.page import Fact
from traceml.model.finding import Kind, Section
from traceml.summaries.build import build
from traceml.text.summary import summary_text

ROOT = Path(__file__).parents[2]
RULE = '''
"""Slow storage: half of the wait for data."""

from traceml.diagnose.rule import Doc, Remedy, RuleRole, Rule, Turn, lost
from traceml.facts.facts import Facts
from traceml.model.evidence import Evidence, in_ms
from traceml.model.finding import Finding, Kind, Section, Severity
from traceml.model.phase import Phase

KIND = Kind.declare("SLOW_STORAGE")


def check(facts: Facts) -> Finding | None:
    waited_s = facts.mean.input_s
    if not waited_s:
        return None
    return Finding(
        kind=KIND,
        section=Section.STEP_TIME,
        severity=Severity.CRITICAL,
        claim="Half of the wait is the disk's.",
        action="Buy a faster one.",
        phase=Phase.INPUT,
        share=waited_s / 2 / facts.mean.step_s,
        lost_s_per_step=waited_s / 2,
        evidence=Evidence(in_ms("disk", waited_s / 2, label="time on the disk")),
    )


RULE = Rule(
    kind=KIND,
    section=Section.STEP_TIME,
    check=check,
    role=RuleRole.CAUSE,
    explains=(Kind.INPUT_BOUND, Kind.LOW_GPU_UTILIZATION),
    turn=Turn.PHASE,
    what_if=Remedy("with a faster disk", lost),
    measure=lambda facts, _: 0.25,
    doc=Doc(severities="crit", says="the disk is slow", text="*Meaning.* The disk is slow."),
)
'''
KIND = "SLOW_STORAGE"


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kind]:
    """The catalogue with one more file, which lies in another folder."""
    (tmp_path / "slow_storage.py").write_text(RULE)
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(tmp_path)])
    all_rules.cache_clear()
    yield Kind.declare(KIND)
    all_rules.cache_clear()
    sys.modules.pop("traceml.diagnose.rules.slow_storage", None)


def test_it_is_found_among_the_others_in_the_order_of_the_names(planted: Kind) -> None:
    kinds = [rule.kind for rule in all_rules().rules]
    assert kinds.count(planted) == 1
    assert kinds[kinds.index(planted) - 1 :][:3] == [Kind("SLOW_START"), planted, Kind.SLOWDOWN]


def test_it_stands_behind_what_it_explains_and_claims_a_part_of_its_time(planted: Kind) -> None:
    told = diagnose(gather(make_run(input_ms=40, noise=0))).sections[Section.STEP_TIME]
    assert [finding.kind for finding in told][:2] == [Kind.INPUT_BOUND, planted]
    assert told[1].part_of is Kind.INPUT_BOUND
    assert told[1].lost_s_per_step == pytest.approx(0.020)


def test_what_if_it_were_gone_is_predicted(planted: Kind) -> None:
    facts = gather(make_run(input_ms=40, noise=0))
    found = predict(facts, diagnose(facts).sections[Section.STEP_TIME])
    (what_if,) = (each for each in found if each.finding.kind is planted)
    assert what_if.saved_s == pytest.approx(0.020)
    assert what_if.summary.endswith("with a faster disk")


def test_a_live_finding_is_measured_by_its_own_measure(planted: Kind) -> None:
    facts = gather(make_run(input_ms=40, noise=0))
    told = diagnose(facts).sections[Section.STEP_TIME]
    (finding,) = (each for each in told if each.kind is planted)
    assert share_now(finding, facts) == 0.25


def test_the_summary_and_its_text_name_it(planted: Kind) -> None:
    summary = build(make_run(input_ms=40, noise=0), 0.0, "1")
    issue = summary.step_time.issues[1]
    assert (issue.kind, issue.status) == (KIND, "SLOW STORAGE")
    assert issue.evidence == {"disk": pytest.approx(20.0)}
    assert "SLOW STORAGE" in summary_text(summary)


def test_pages_tell_its_evidence_in_its_own_words_and_unit(planted: Kind) -> None:
    cards = rail(build(make_run(input_ms=40, noise=0), 0.0, "1"))
    (card,) = (card for card in cards if card.kind == KIND)
    assert card.evidence == (Fact("time on the disk", "20.0 ms"),)


def test_it_has_a_row_and_a_section_in_the_reference(planted: Kind) -> None:
    text = (ROOT / "docs" / "diagnoses.md").read_text()
    write_page = runpy.run_path(str(ROOT / "docs" / "write_diagnoses.py"))["page"]
    written = write_page(text, all_rules().rules)
    row = "| `SLOW_STORAGE` | SLOW STORAGE | step time, cause | crit | the disk is slow |"
    assert row in written.splitlines()
    assert "\n## SLOW_STORAGE\n\n*Meaning.* The disk is slow.\n" in written


def test_its_kind_is_one_object_wherever_it_comes_from(planted: Kind) -> None:
    assert Kind.declare(KIND) is Kind(KIND) is planted
    assert copy.deepcopy(planted) is pickle.loads(pickle.dumps(planted)) is planted
    assert planted.value == KIND
    assert Kind.declare("INPUT_BOUND") is Kind.INPUT_BOUND
    with pytest.raises(ValueError, match="NOBODYS_KIND"):
        Kind("NOBODYS_KIND")


def test_a_file_that_declares_nothing_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty_rule.py").write_text("")
    folder = ModuleType("planted_rules")
    folder.__path__ = [str(tmp_path)]
    sys.modules[folder.__name__] = folder
    try:
        with pytest.raises(TypeError, match=r"empty_rule declares no rule: .* RULE = Rule"):
            find_rules(folder)
    finally:
        for name in [name for name in sys.modules if name.startswith("planted_rules")]:
            del sys.modules[name]
