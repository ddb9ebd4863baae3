"""The trainings of `examples/training/`: TraceML names the mistake of each, and not once it is
fixed. Those that take longer are marked `examples`: `make examples` runs them.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from processes import read_summary, run_traceml

ROOT = Path(__file__).parents[2]
DOCS, TRAINING = ROOT / "docs", ROOT / "examples" / "training"
PAGE = (DOCS / "examples.md").read_text()


def _load_writer() -> dict[str, Any]:
    sys.path.insert(0, str(DOCS))
    try:
        return runpy.run_path(str(DOCS / "write_examples.py"))
    finally:
        sys.path.remove(str(DOCS))


WRITER = _load_writer()
EXPECTED: dict[str, Any] = WRITER["EXAMPLES"]
QUICK = ("bert", "diffusion")
"""Those of every `make test`."""
HALVED = ("resnet", "decoder")
"""Those whose steps the fix makes half as long."""
BUSY = "CPU_STARVED"
"""What TraceML says, and rightly, of a machine that has other work; it may come before the rest."""


@dataclass(frozen=True)
class Told:
    """What TraceML said of an example with its mistake, without it, and of the two together."""

    before: dict[str, Any]
    after: dict[str, Any]
    comparison: dict[str, Any]


def told(name: str, place: Path) -> Told:
    """Runs an example as its docstring says, from a folder that has `examples/`."""
    (place / "examples").symlink_to(ROOT / "examples")
    for command in WRITER["commands"](name):
        done = run_traceml(shlex.split(command)[1:], place)
        assert done.status == 0, done.stdout + done.stderr
    (compared,) = place.glob("compare/*.json")
    before, after = shlex.split(WRITER["commands"](name)[-1])[-2:]
    logs = place / "logs"
    return Told(
        read_summary(logs / before), read_summary(logs / after), json.loads(compared.read_bytes())
    )


def kinds(summary: dict[str, Any]) -> set[str]:
    """The kinds of all warnings and worse."""
    return {
        issue["kind"]
        for section in ("step_time", "step_memory", "stability")
        for issue in summary[section]["issues"]
        if issue["severity"] != "info"
    }


def cases() -> Iterator[Any]:
    for name in EXPECTED:
        marks = [] if name in QUICK else [pytest.mark.examples]
        yield pytest.param(name, marks=[pytest.mark.slow, *marks])


@pytest.mark.parametrize("name", [*cases()])
def test_the_mistake_is_named_and_gone_once_it_is_fixed(name: str, tmp_path: Path) -> None:
    found, kind = told(name, tmp_path), EXPECTED[name].value
    if name not in QUICK and BUSY in kinds(found.before) and kind not in kinds(found.before):
        pytest.skip("the machine was too busy: the training waited for a core")
    assert found.before["primary_diagnosis"]["kind"] in (kind, BUSY)
    assert kind in kinds(found.before)
    assert kind not in kinds(found.after)
    if name in HALVED:
        assert found.comparison["verdict"]["status"] in ("IMPROVEMENT", "INCONCLUSIVE")


def test_every_script_is_an_example() -> None:
    assert {path.stem for path in TRAINING.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_page_shows_what_the_script_does(name: str) -> None:
    """Its verdict, its fix and its commands are those of the script as it is now."""
    part = PAGE.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
    before, change, after, compared = re.findall(r"```\w+\n(.*?)\n```", part, re.DOTALL)
    status = EXPECTED[name].status
    assert re.search(rf"^Verdict  {re.escape(status)}( |$)", before, re.MULTILINE)
    assert f"Verdict  {status}" not in after
    assert change == WRITER["fix"](name)
    shown = [block.splitlines()[0].removeprefix("$ ") for block in (before, after, compared)]
    assert shown == WRITER["commands"](name)
    assert f"Diagnosis: {status} -> " in compared


@pytest.mark.parametrize("name", EXPECTED)
def test_both_lists_have_the_verdict(name: str) -> None:
    for text in (PAGE, (TRAINING / "README.md").read_text()):
        (row,) = re.findall(rf"^\| .*`{name}\.py`.* \|$", text, re.MULTILINE)
        assert EXPECTED[name].status in row
