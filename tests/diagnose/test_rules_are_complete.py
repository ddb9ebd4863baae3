"""A rule is a file that declares its kind, a test of its own, and a section in the docs."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from traceml.diagnose.all_rules import all_rules
from traceml.diagnose.rule import Rule, RuleRole
from traceml.model.finding import COMPUTE_CAUSES, Kind, Section

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
    **dict.fromkeys(("pipeline_bubbles", "pipeline_imbalance"), "pipeline_stages"),
    **dict.fromkeys(("expert_imbalance", "uneven_batches"), "uneven_shares"),
}
"""Rules whose tests share a file: there `FIRES` and `SILENT` have an entry for each of them."""


def declared(name: str) -> Rule:
    """What the file of this name declares."""
    rule: Rule = import_module(f"traceml.diagnose.rules.{name}").RULE
    return rule


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
def test_a_rule_declares_the_kind_and_the_check_that_its_file_has(name: str) -> None:
    module = import_module(f"traceml.diagnose.rules.{name}")
    assert module.RULE.kind is module.KIND
    assert module.RULE.check is module.check


@pytest.mark.parametrize("name", FILES)
def test_a_rule_has_a_test_that_fires_and_one_that_stays_silent(name: str) -> None:
    source = (ROOT / f"tests/diagnose/rules/test_{SHARED.get(name, name)}.py").read_text()
    assert cases(source, "test_must_fire")
    assert name not in SHARED or {name} <= entries(source, "FIRES") & entries(source, "SILENT")
    is_fallback = declared(name).role is RuleRole.FALLBACK
    assert is_fallback or cases(source, "test_must_stay_silent")


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
    for kind in declared(name).kinds:
        row = rf"^\| `{kind.value}` \| {re.escape(kind.status)} \|"
        assert re.search(row, DOCS, re.MULTILINE)
        assert re.search(rf"^## {kind.value}$", DOCS, re.MULTILINE)


def test_every_file_is_found_and_asked_in_the_order_of_the_names() -> None:
    assert [id(rule) for rule in all_rules().rules] == [id(declared(name)) for name in FILES]


def test_every_kind_has_a_rule_and_every_kind_one_text() -> None:
    rules = all_rules().rules
    assert {kind for rule in rules for kind in rule.kinds} >= set(Kind)
    told = [rule.kind for rule in rules if rule.doc is not None]
    told += [kind for rule in rules for kind in rule.also]
    assert sorted(told) == sorted({kind for rule in rules for kind in rule.kinds})


def test_every_section_has_one_fallback() -> None:
    fallbacks = [rule.section for rule in all_rules().rules if rule.role is RuleRole.FALLBACK]
    assert sorted(fallbacks) == sorted(Section)


def test_the_reasons_of_compute_bound_are_those_that_pages_tell_beside_it() -> None:
    """Pages read summaries and load no rule, so the model lists them a second time."""
    only = {rule.kind for rule in all_rules().rules if rule.explains == (Kind.COMPUTE_BOUND,)}
    assert only == COMPUTE_CAUSES


@pytest.mark.parametrize("name", FILES)
def test_a_cause_explains_something_and_what_is_explained_has_a_rule(name: str) -> None:
    rule = declared(name)
    assert (rule.role is not RuleRole.CAUSE) or rule.explains
    for kind in (*rule.explains, *rule.yields_to):
        assert all_rules().of(kind)


def test_reading_and_comparing_summaries_loads_no_rule(tmp_path: Path) -> None:
    """Fifty files take a while to load, and only a diagnosis needs them."""
    seeds = ROOT / "tests/data/seed"
    slow, fast = (str(seeds / f"compare_{name}.json") for name in ("slow", "fast"))
    commands = [["view", slow], ["compare", slow, fast, "--output", str(tmp_path / "both")]]
    program = (
        "import sys\n"
        "from traceml.cli import main\n"
        f"for command in {commands!r}:\n"
        "    print('ended with', main(command))\n"
        "print('loaded', *(name for name in sys.modules if name.startswith('traceml.diagnose')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    *said, loaded = done.stdout.splitlines()
    assert sum(line.startswith("ended with") for line in said) == len(commands), done.stderr
    assert loaded == "loaded"
