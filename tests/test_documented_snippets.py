"""What people copy from the documentation works: commands parse, Python calls what there is."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

import traceml
from traceml import cli
from traceml.cli.parser import CommandParser

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "traceml"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SHELLS = ("bash", "console", "sh")
END_OF_COMMAND = re.compile(r"[|;&()<>]+")
FOR_PEOPLE = re.compile(r"[\[…|]|\b(COMMAND|N|STEPS)\b")
"""In a command within a sentence: what may be left out, and words that stand for a value."""


@dataclass(frozen=True)
class Snippet:
    """A piece of code on a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Snippet]:
    """The fenced blocks of all pages."""
    for path in PAGES:
        text = path.read_text()
        for found in re.finditer(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, found.start()) + 2
            yield Snippet(path.name, line, found[1], found[2])


def commands_in_blocks() -> Iterator[Snippet]:
    """The commands of ours that shell blocks run, one line each."""
    for block in blocks():
        if block.language not in SHELLS:
            continue
        joined = block.text.replace("\\\n", "  ")
        for number, line in enumerate(joined.splitlines()):
            is_output = block.language == "console" and not line.startswith("$ ")
            if not is_output and re.search(r"(^|\s)traceml\s", line.removeprefix("$ ")):
                yield Snippet(block.page, block.line + number, "bash", line.removeprefix("$ "))


def commands_in_sentences() -> Iterator[Snippet]:
    """Commands within a sentence that are written out in full, with an option."""
    for path in PAGES:
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for command in sorted(set(re.findall(r"`(traceml [a-z]+ [^`\n]*--[^`\n]+)`", text))):
            if not FOR_PEOPLE.search(command):
                yield Snippet(path.name, 0, "bash", command)


def words_of(command: str) -> list[str]:
    """What a shell gives to the first `traceml` of a line."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words = list(lexer)
    if "traceml" not in words:
        return []  # it stands in a comment or between quotation marks
    own = words[words.index("traceml") + 1 :]
    ends = (index for index, word in enumerate(own) if END_OF_COMMAND.fullmatch(word))
    return own[: next(ends, len(own))]


class Parsed(BaseException):
    """Ends a command whose words its parser has accepted."""


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands end where they would begin to work; no tracker has to be installed for that."""
    parse = CommandParser.parse_args

    def parse_and_end(self: CommandParser, args: Any = None, namespace: Any = None) -> NoReturn:
        parse(self, args, namespace)
        raise Parsed

    monkeypatch.setattr(CommandParser, "parse_args", parse_and_end)
    monkeypatch.setattr("traceml.cli.run.require_installed", lambda names: None)


COMMANDS = [*commands_in_blocks(), *commands_in_sentences()]


@pytest.mark.usefixtures("parse_only")
@pytest.mark.parametrize("page", sorted({snippet.page for snippet in COMMANDS}))
def test_every_command_is_one_that_our_parser_takes(page: str, capsys: pytest.CaptureFixture[str]):
    refused = []
    for snippet in COMMANDS:
        words = words_of(snippet.text) if snippet.page == page else []
        if not words:
            continue
        try:
            cli.main(words)
        except Parsed:
            continue
        refused.append(f"{snippet}: {snippet.text}: {capsys.readouterr().err}")
    assert refused == []


def test_the_commands_are_found():
    """So that the test above cannot pass by finding nothing."""
    shown = {words_of(snippet.text)[0] for snippet in COMMANDS if words_of(snippet.text)}
    assert set(cli.COMMANDS) - shown == set(), "no page shows how these are called"
    assert words_of("FOO=1 srun traceml run --run-name 'a b' t.py | tee log  # traceml ui") == [
        *("run", "--run-name", "a b", "t.py")
    ]


@pytest.mark.usefixtures("parse_only")
def test_a_command_with_an_option_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["view", "my-run", "--no-such-option"]) == 2
    assert "--no-such-option" in capsys.readouterr().err


PYTHON = [block for block in blocks() if block.language == "python"]


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_every_python_block_compiles_and_names_what_there_is(block: Snippet):
    tree = ast.parse(textwrap.dedent(block.text))
    compile(tree, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                _check_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            _check_import(node.module, [alias.name for alias in node.names])
        elif isinstance(node, ast.Attribute) and _is_traceml(node.value):
            is_public = node.attr in traceml.__all__ or (PACKAGE / node.attr).is_dir()
            assert is_public, f"there is no traceml.{node.attr}"
            called = next((each for each in calls if each.func is node), None)
            if called is not None:
                _check_call(node.attr, called)


def _is_traceml(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "traceml"


def _check_module(name: str) -> Path | None:
    """The file of a module of ours, which need not be importable here; none for one of others."""
    top, *rest = name.split(".")
    if top != "traceml":
        return None
    path = PACKAGE.joinpath(*rest)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert file.is_file(), f"there is no module {name}"
    return file


def _check_import(module: str, names: list[str]) -> None:
    file = _check_module(module)
    if module == "traceml":
        assert set(names) <= set(traceml.__all__)
    elif file is not None:
        body = ast.parse(file.read_text()).body
        defined = {name for node in body for name in (getattr(node, "name", None), _assigned(node))}
        assert set(names) <= defined, f"not in {file.name}"


def _assigned(node: ast.stmt) -> str | None:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def _check_call(name: str, call: ast.Call) -> None:
    """The function takes these arguments."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return
    given = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
    inspect.signature(getattr(traceml, name)).bind_partial(*call.args, **given)


def test_the_extras_that_can_be_installed_are_documented():
    text = (ROOT / "pyproject.toml").read_text()
    extras = text.partition("[project.optional-dependencies]")[2].partition("\n[project.")[0]
    declared = set(re.findall(r"^([a-z-]+) = \[", extras, re.MULTILINE))
    table = (ROOT / "docs" / "install.md").read_text().partition("| extra |")[2]
    rows = re.findall(r"^\| (`.+?) \|", table.partition("\n\n")[0], re.MULTILINE)
    documented = set(re.findall(r"`([a-z-]+)`", " ".join(rows)))
    assert documented == declared - {"dev", "docs", "integrations", "vision-frameworks"}
