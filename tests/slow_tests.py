"""Which tests are slow: those that start a process, found by what they name; and those that say so.

`tests/conftest.py` marks them. A test is slow when its code, a fixture that it asks for, or a
helper of the tests that either of them names, mentions a way to start a process. Where the product
itself starts one, that cannot be seen: such a test carries `@pytest.mark.slow`, and so does one
that computes for a second or more. `StartedProcesses` notices tests that lack the mark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

TESTS = Path(__file__).parent
BENCHMARKS = TESTS.parent / "benchmarks"
STARTING_MODULES = frozenset({"subprocess", "multiprocessing", "torch.multiprocessing", "nbclient"})
"""Whoever names one of these modules, or something that is defined in it, starts processes."""
STARTING_NAMES = frozenset({"fork", "forkpty", "posix_spawn", "sync_playwright"})
"""Functions that start one, whatever module they are taken from."""
STARTING_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
"""What Python's audit calls it."""


def starts_a_process(item: pytest.Item) -> bool:
    """Whether a test or one of its fixtures can be seen to start a process."""
    return any(map(can_start_a_process, _functions_of(item)))


def _functions_of(item: pytest.Item) -> Iterator[FunctionType]:
    """The test and every fixture that it needs, directly or through others."""
    if isinstance(item, pytest.Function):
        yield getattr(item.obj, "__func__", item.obj)  # of a method, its function
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            yield from (definition.func for definition in definitions)


@cache
def can_start_a_process(function: FunctionType) -> bool:
    """Whether a function names a way to start a process, or a helper that does."""
    return _leads_to_a_process(function, set())


def _leads_to_a_process(found: Any, asked: set[int]) -> bool:
    """The same of anything that a function names; what was `asked` before is not asked again."""
    found = getattr(found, "__wrapped__", found)  # behind a decorator, such as @contextmanager
    if id(found) in asked:
        return False
    asked.add(id(found))
    if not isinstance(found, FunctionType | type | ModuleType):
        return False
    home = found.__name__ if isinstance(found, ModuleType) else found.__module__
    if home in STARTING_MODULES:
        return True
    if isinstance(found, ModuleType) or not _is_ours(home):
        return False
    if isinstance(found, type):
        return any(_leads_to_a_process(member, asked) for member in vars(found).values())
    names = set(_names_in(found.__code__))
    return bool(names & STARTING_NAMES) or any(
        _leads_to_a_process(each, asked) for each in _meant_by(names, found.__globals__)
    )


@cache
def _is_ours(module: str) -> bool:
    """Whether a module is one of the tests' own, or of the benchmarks that they try."""
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "/")
    return TESTS in file.parents or BENCHMARKS in file.parents


def _names_in(code: CodeType) -> Iterator[str]:
    """The globals and attributes that a function mentions, those of functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _meant_by(names: set[str], variables: dict[str, Any]) -> Iterator[Any]:
    """What a function's names may stand for: variables, modules, and what helper modules hold."""
    for name in names:
        found = variables.get(name, sys.modules.get(name))
        yield found
        if isinstance(found, ModuleType) and _is_ours(found.__name__):
            yield from (vars(found).get(attribute) for attribute in names)


class StartedProcesses:
    """Notices, by Python's own audit, what starts a process."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def watch(self) -> None:
        """Begin; an audit cannot be ended again."""
        sys.addaudithook(self._notice)

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTING_EVENTS:
            self.seen.append(f"{event}{arguments[:2]!r}")
