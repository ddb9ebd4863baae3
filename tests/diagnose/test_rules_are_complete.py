"""A rule is a file that declares its kind, a test of its own, and a section in the docs."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from traceml.diagnose.engine import CALM, RULES
from traceml.model.finding import Kind

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path.stem
    for path in (ROOT / "src/traceml/diagnose/rules").glob("*.py")
    if path.stem != "__init__"
)
DOCS = (ROOT / "docs/diagnoses.md").read_text()


def kinds_of(name: str) -> tuple[Kind, ...]:
    """The kind that a rule declares, or the several that it tells apart."""
    rule = vars(import_module(f"traceml.diagnose.rules.{name}"))
    return rule["KINDS"] if "KINDS" in rule else (rule["KIND"],)


@pytest.mark.parametrize("name", FILES)
def test_a_rule_declares_its_kind(name: str) -> None:
    assert all(isinstance(kind, Kind) for kind in kinds_of(name))


@pytest.mark.parametrize("name", FILES)
def test_a_rule_has_a_test_that_fires_and_one_that_stays_silent(name: str) -> None:
    text = (ROOT / f"tests/diagnose/rules/test_{name}.py").read_text()
    assert "must_fire" in text
    calm = {rule.__module__.rpartition(".")[2] for rule in CALM.values()}
    assert name in calm or "must_stay_silent" in text


@pytest.mark.parametrize("name", FILES)
def test_a_rule_has_a_row_and_a_section(name: str) -> None:
    for kind in kinds_of(name):
        row = rf"^\| `{kind.value}` \| {re.escape(kind.status)} \|"
        assert re.search(row, DOCS, re.MULTILINE)
        assert re.search(rf"^## {kind.value}$", DOCS, re.MULTILINE)


def test_every_rule_is_listed_once() -> None:
    listed = [rule.__module__.rpartition(".")[2] for rule in (*RULES, *CALM.values())]
    assert sorted(listed) == FILES
