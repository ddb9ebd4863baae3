"""`examples/docker/Dockerfile`, read without Docker: what it copies is there and is sent along, and
its commands are ones that there are.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from pathlib import Path, PurePosixPath

import pytest

from traceml import cli

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "examples" / "docker"
TEXT = (DOCKER / "Dockerfile").read_text()
LINES = [line for line in TEXT.replace("\\\n", " ").splitlines() if line and line[0] != "#"]
INSTRUCTIONS = [tuple(line.split(None, 1)) for line in LINES]
"""Each instruction and what follows it."""


def given_to(instruction: str) -> list[str]:
    return [rest for word, rest in INSTRUCTIONS if word == instruction]


def copied_from_here() -> list[str]:
    """The files and folders of the repository that the image gets."""
    copies = [shlex.split(rest) for rest in given_to("COPY") if not rest.startswith("--from")]
    return [source for copy in copies for source in copy[:-1]]


def is_sent(path: str) -> bool:
    """Whether Docker's client sends a file along; the last pattern that fits it decides."""
    is_left_out = False
    for pattern in (DOCKER / "Dockerfile.dockerignore").read_text().split("\n"):
        wanted = pattern.removeprefix("!").removeprefix("**/")
        parents = [path, *map(str, PurePosixPath(path).parents)]
        names = [*parents, *(PurePosixPath(each).name for each in parents if "**/" in pattern)]
        if pattern and pattern[0] != "#" and any(fnmatch.fnmatch(each, wanted) for each in names):
            is_left_out = not pattern.startswith("!")
    return not is_left_out


@pytest.mark.parametrize("source", copied_from_here())
def test_what_it_copies_is_there_and_is_sent(source: str) -> None:
    assert (ROOT / source).exists()
    assert is_sent(source)


def test_the_wheel_gets_all_that_it_is_built_from() -> None:
    """The files that pyproject.toml names, beside the package itself."""
    project = (ROOT / "pyproject.toml").read_text()
    included = re.findall(r'^"(examples/[^"]+)" = "traceml/', project, re.MULTILINE)
    named = {"README.md", "LICENSE", "hatch_build.py", "pyproject.toml", *included}
    first_stage = TEXT.partition("AS build")[2].partition("\nFROM ")[0]
    copies = re.findall(r"^COPY (.+) \S+$", first_stage, re.MULTILINE)
    copied = {source for copy in copies for source in copy.split()}
    missing = {
        name for name in named if not any(each in copied for each in (name, *_parents(name)))
    }
    assert included and not missing


def _parents(name: str) -> list[str]:
    return [str(parent) for parent in PurePosixPath(name).parents]


@pytest.mark.parametrize("built", ["src/traceml/trace/_recorder.so", "src/a/__pycache__/b.pyc"])
def test_what_was_built_here_stays_here(built: str) -> None:
    assert not is_sent(built)
    assert is_sent("src/traceml/cli/demo.py")


def test_its_commands_are_ones_of_traceml() -> None:
    (command,) = given_to("CMD")
    (*_, script) = json.loads(command)
    started = [shlex.split(each) for each in script.split("&&")]
    assert [words[0] for words in started] == ["traceml", "traceml"]
    assert {words[1] for words in started} <= set(cli.COMMANDS)
    assert started[1][2:4] == list(_demo_runs())


def _demo_runs() -> tuple[str, ...]:
    from traceml.cli.demo import SCENARIOS

    return tuple(SCENARIOS)


def test_its_python_is_one_that_the_project_takes() -> None:
    versions = re.findall(r"^FROM python:3\.(\d+)", TEXT, re.MULTILINE)
    assert len(versions) == 2 and len(set(versions)) == 1
    (least, below) = re.findall(
        r'^requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text(), re.M
    )[0]
    assert int(least) <= int(versions[0]) < int(below)


def test_how_to_run_it_is_the_same_in_both_places() -> None:
    commands = re.findall(r"^#   (docker .+)$", TEXT, re.MULTILINE)
    page = (ROOT / "docs" / "examples.md").read_text()
    assert len(commands) == 2
    assert all(f"\n{command}\n" in page for command in commands)
