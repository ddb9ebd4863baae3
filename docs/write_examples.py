"""Runs the examples of `examples/training/` and writes what TraceML said of them into a page.

    python docs/write_examples.py             # all of them
    python docs/write_examples.py resnet vit

Each is run as its own docstring says, with its mistake and without it, and the two are compared.
A part of the page, `docs/examples.md`, is written only if its verdicts are the expected ones, which
takes a machine that is not busy; the text around the marks is written by hand.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from write_diagnoses import between_marks

from traceml.model.finding import Kind

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("examples.md")
SCRIPTS = ROOT / "examples" / "training"
EXAMPLES = {
    "resnet": Kind.INPUT_BOUND,
    "vit": Kind.EVALUATION_HEAVY,
    "bert": Kind.NON_FINITE_LOSS,
    "decoder": Kind.WAIT_HEAVY,
    "diffusion": Kind.CREEP_CONFIRMED,
    "bert_ddp": Kind.declare("UNEVEN_BATCHES"),
}
"""Each example, and the verdict on it before its fix."""
COMPARED = ("Verdict", "Why", "Diagnosis")
"""What the page shows of a comparison."""


class WrongVerdict(Exception):
    """TraceML did not say of an example what it should: on a busy machine, CPU STARVED, say."""


def commands(name: str) -> list[str]:
    """The commands of an example's docstring: run it, run it with its fix, compare the two."""
    text = ast.get_docstring(ast.parse((SCRIPTS / f"{name}.py").read_text())) or ""
    return [line.strip() for line in text.splitlines() if line.startswith("    traceml ")]


def fix(name: str) -> str:
    """What `--fixed` changes, as a diff: both branches of each `if … fixed:` of the script."""
    source = (SCRIPTS / f"{name}.py").read_text()
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("fixed")
    ]
    lines = [
        f"{sign}{line}"
        for node in found
        for sign, branch in (("-", node.orelse), ("+", node.body))
        for line in _lines(source, branch)
    ]
    return "\n".join(lines)


def _lines(source: str, branch: list[ast.stmt]) -> list[str]:
    lines = source.splitlines()[branch[0].lineno - 1 : branch[-1].end_lineno]
    return textwrap.dedent("\n".join(lines)).splitlines()


def verdict(summary: str) -> str:
    """The first paragraph of a run's summary: verdict, why, what to do next."""
    return textwrap.dedent(_paragraph(summary, r"  Verdict ")).rstrip()


def change(comparison: str) -> str:
    """The verdict of a comparison, why, the diagnoses before and after, and the numbers."""
    found = [re.search(rf"^{each}: .*(?:\n +.*)*", comparison, re.MULTILINE) for each in COMPARED]
    return "\n".join(each[0] for each in found if each) + "\n\n" + _paragraph(comparison, " +A +B ")


def _paragraph(text: str, beginning: str) -> str:
    found = re.search(rf"^{beginning}.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"no paragraph begins with {beginning!r} in:\n{text}")
    return found[0]


def part(name: str, before: str, after: str, comparison: str) -> str:
    """What the page shows of one example, from three texts of TraceML."""
    first, second, third = commands(name)
    return "\n\n".join(
        (
            _block("console", f"$ {first}", "…", verdict(before)),
            f"The fix, which `--fixed` applies in [`{name}.py`](../examples/training/{name}.py):",
            _block("diff", fix(name)),
            _block("console", f"$ {second}", "…", verdict(after)),
            _block("console", f"$ {third}", "…", change(comparison)),
        )
    )


def _block(language: str, *lines: str) -> str:
    return "\n".join((f"```{language}", *lines, "```"))


def run(name: str, place: Path) -> str:
    """Runs one example in a folder, both ways; what the page then shows of it."""
    for command in commands(name):
        words = [sys.executable, "-m", *shlex.split(command)]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stderr}")
    runs = [place / "logs" / each for each in shlex.split(commands(name)[2])[-2:]]
    kinds = [_primary(each) for each in runs]
    if kinds[0] != EXAMPLES[name].value or kinds[1] == kinds[0]:
        raise WrongVerdict(f"{' -> '.join(kinds)}; {EXAMPLES[name].value} was to be mended")
    texts = ((each / "final_summary.txt").read_text() for each in runs)
    return part(name, *texts, done.stdout)


def _primary(folder: Path) -> str:
    summary = json.loads((folder / "final_summary.json").read_bytes())
    kind: str = summary["primary_diagnosis"]["kind"]
    return kind


def main() -> int:
    """Runs all examples, or those that are named, and writes their parts of the page; how many of
    them had another verdict, and keep the part they had."""
    wrong = 0
    for name in sys.argv[1:] or EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "examples").symlink_to(ROOT / "examples")
            try:
                PAGE.write_text(between_marks(PAGE.read_text(), name, run(name, Path(folder))))
            except WrongVerdict as error:
                wrong += 1
                print(f"{name}: {error}", flush=True)
            else:
                print(f"{name}: {EXAMPLES[name].status} before, and not after", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
