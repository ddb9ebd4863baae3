"""A test that starts a process is known to be slow by what it names, or found out when it does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import processes
from factories import make_run
from processes import run_traceml, started, wait_until
from served import serving
from slow_tests import StartedProcesses, can_start_a_process


def directly() -> None:
    subprocess.run(["true"], check=True)


def by_fork() -> None:
    os.fork()


def by_a_helper(tmp_path: Path) -> None:
    run_traceml(["view"], tmp_path)


def by_a_context_manager(tmp_path: Path) -> None:
    with started(["true"], tmp_path):
        pass


def by_a_helper_of_a_helper(tmp_path: Path) -> None:
    with serving(tmp_path):
        pass


def by_an_attribute_of_a_helper_module(tmp_path: Path) -> None:
    processes.run(["true"], tmp_path)


def in_a_function_inside(tmp_path: Path) -> Callable[[], object]:
    return lambda: run_traceml(["view"], tmp_path)


def by_a_class() -> None:
    Starter()


class Starter:
    def __init__(self) -> None:
        directly()


@pytest.mark.parametrize(
    "function",
    [
        directly,
        by_fork,
        by_a_helper,
        by_a_context_manager,
        by_a_helper_of_a_helper,
        by_an_attribute_of_a_helper_module,
        in_a_function_inside,
        by_a_class,
    ],
)
def test_what_starts_a_process_is_seen(function: Callable[..., object]) -> None:
    assert can_start_a_process(function)


def waits_only() -> None:
    wait_until(lambda: True, "nothing happens")


def makes_a_run() -> object:
    return make_run(ranks=2)


def has_a_word_for_it() -> str:
    return "subprocess.run"


@pytest.mark.parametrize("function", [waits_only, makes_a_run, has_a_word_for_it])
def test_what_starts_none_is_not_taken_for_slow(function: Callable[..., object]) -> None:
    assert not can_start_a_process(function)


@pytest.fixture
def a_process() -> int:
    return subprocess.run([sys.executable, "-S", "-c", ""], check=True).returncode


@pytest.mark.usefixtures("a_process")
def test_a_test_whose_fixture_starts_a_process_is_marked(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("slow") is not None


def test_a_test_that_starts_none_is_not_marked(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("slow") is None


def fork() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "event"),
    [(fork, "os.fork"), (partial(subprocess.run, ["true"]), "subprocess.Popen")],
    ids=["fork", "subprocess"],
)
def test_a_process_that_is_started_is_noticed(start: Callable[[], object], event: str) -> None:
    started_here = StartedProcesses()
    started_here.watch()
    start()
    assert len(started_here.seen) == 1
    assert started_here.seen[0].startswith(event)
