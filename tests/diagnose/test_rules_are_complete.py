"""A rule is a file that declares its kind, a test of its own, and a section in the docs."""

import ast
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
SHARED = {
    **dict.fromkeys(
        ("bandwidth_bound", "near_gpu_limit", "small_kernels", "tensor_cores_idle"), "gpu_causes"
    ),
    **dict.fromkeys(("checkpoint_heavy", "evaluation_heavy"), "work_between_steps"),
}
"""Rules whose tests share a file: there `FIRES` and `SILENT` have an entry for each of them."""


def kinds_of(name: str) -> tuple[Kind, ...]:
    """The kind that a rule declares, or the several that it tells apart."""
    rule = vars(import_module(f"traceml.diagnose.rules.{name}"))
    return rule["KINDS"] if "KINDS" in rule else (rule["KIND"],)


def cases(source: str, name: str) -> int:
    """With how many runs the tests whose name begins so assert anything; a plain test has one."""
    tests = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name.startswith(name)
    ]
    return sum(
        _runs_of(test)
        for test in tests
        if any(isinstance(node, ast.Assert) for node in ast.walk(test))
    )


def _runs_of(test: ast.FunctionDef) -> int:
    """The entries of its table; a table that is made elsewhere has one at least."""
    tables = [
        each.args[1]
        for each in test.decorator_list
        if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("parametrize")
    ]
    return min((len(each.elts) if isinstance(each, ast.List) else 1 for each in tables), default=1)


def entries(source: str, table: str) -> set[str]:
    """The rules that a table of this name has a case for; it may be another name of a table."""
    for node in ast.parse(source).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if not any(isinstance(each, ast.Name) and each.id == table for each in targets):
            continue
        value = getattr(node, "value", None)
        if isinstance(value, ast.Name):
            return entries(source, value.id)
        assert isinstance(value, ast.Dict)
        filled = [key for key, runs in zip(value.keys, value.values, strict=True) if _has_any(runs)]
        return {key.value for key in filled if isinstance(key, ast.Constant)}
    return set()


def _has_any(runs: ast.expr) -> bool:
    return bool(getattr(runs, "keys", None) or getattr(runs, "elts", None))


@pytest.mark.parametrize("name", FILES)
def test_a_rule_declares_its_kind(name: str) -> None:
    assert all(isinstance(kind, Kind) for kind in kinds_of(name))


@pytest.mark.parametrize("name", FILES)
def test_a_rule_has_a_test_that_fires_and_one_that_stays_silent(name: str) -> None:
    source = (ROOT / f"tests/diagnose/rules/test_{SHARED.get(name, name)}.py").read_text()
    assert cases(source, "test_must_fire")
    assert name not in SHARED or {name} <= entries(source, "FIRES") & entries(source, "SILENT")
    calm = {rule.__module__.rpartition(".")[2] for rule in CALM.values()}
    assert name in calm or cases(source, "test_must_stay_silent")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        pytest.param("# def test_must_fire(): assert True", 0, id="a comment"),
        pytest.param("text = 'test_must_fire'", 0, id="a string"),
        pytest.param("def test_must_fire(): pass", 0, id="nothing is asserted"),
        pytest.param("def test_must_fire(): assert check(1)", 1, id="a plain test"),
        pytest.param(
            "@pytest.mark.parametrize('run', [])\ndef test_must_fire(run): assert check(run)",
            0,
            id="an empty table",
        ),
        pytest.param(
            "@pytest.mark.parametrize('run', [1, 2])\ndef test_must_fire(run): assert check(run)",
            2,
            id="a table",
        ),
    ],
)
def test_only_a_test_that_runs_counts(source: str, found: int) -> None:
    assert cases(source, "test_must_fire") == found


@pytest.mark.parametrize("name", FILES)
def test_a_rule_has_a_row_and_a_section(name: str) -> None:
    for kind in kinds_of(name):
        row = rf"^\| `{kind.value}` \| {re.escape(kind.status)} \|"
        assert re.search(row, DOCS, re.MULTILINE)
        assert re.search(rf"^## {kind.value}$", DOCS, re.MULTILINE)


def test_every_rule_is_listed_once() -> None:
    listed = [rule.__module__.rpartition(".")[2] for rule in (*RULES, *CALM.values())]
    assert sorted(listed) == FILES
