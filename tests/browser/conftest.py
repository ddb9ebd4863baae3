"""One browser for all tests here, windows that must not complain, and runs to look at."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser.runs import (
    CURVES,
    CURVING,
    FAST,
    HOSTILE,
    HURTING,
    MANY,
    RANKS,
    SLOW,
    SLOW_INPUT_MS,
    TRAINING,
)
from browsing import REQUIRED, Look, Window, obstacle, opened, window
from processes import PYTHON, run_traceml
from served import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The one browser. Not for the whole session: tests elsewhere have event loops of their own."""
    why_not = obstacle()
    if why_not is not None and os.environ.get(REQUIRED):
        pytest.fail(f"the browser tests have to run here ({REQUIRED}), but {why_not}")
    if why_not is not None:
        pytest.skip(why_not)
    with opened() as found:
        yield found


@pytest.fixture
def opening() -> Iterator[ExitStack]:
    """For what a test starts: it ends when the windows on it are closed."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def look(browser: Browser, opening: ExitStack) -> Iterator[Look]:
    """Opens windows; in the end none has complained, or asked anybody but its own server.

    A test that expects otherwise says so: `excuses`, `is_alone`.
    """
    windows: list[Window] = []

    def look_at(
        address: str, excuses: tuple[str, ...] = (), is_alone: bool = True, **options: Any
    ) -> Window:
        seen = window(browser, **options)
        seen.excuses, seen.is_alone = excuses, is_alone
        windows.append(seen)
        return seen.go(address)

    yield look_at
    for each in windows:
        each.page.context.close()
    assert [said for each in windows for said in each.complaints()] == []
    assert [asked for each in windows for asked in each.asked_elsewhere()] == []


@pytest.fixture(scope="package")
def logs(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that are over; for tests that change nothing."""
    cwd = tmp_path_factory.mktemp("browser")
    scripts = {"train.py": TRAINING, "rank.py": RANKS, "hurt.py": HURTING, "curve.py": CURVING}
    for name, script in scripts.items():
        (cwd / name).write_text(script)
    rank = f"{shlex.quote(PYTHON)} rank.py"
    ranks = " & ".join(f"RANK={number} WORLD_SIZE=4 {rank}" for number in range(4))
    runs = {
        SLOW: ["--save-output", "train.py", "--args", "60", SLOW_INPUT_MS],
        FAST: ["--save-output", "train.py", "--args", "60", "0"],
        MANY: ["--", "sh", "-c", f"{ranks} & wait"],
        CURVES: ["curve.py"],
        HOSTILE: ["--save-output", "hurt.py"],
    }
    with ThreadPoolExecutor(2) as threads:
        options = [["run", "--run-name", name, *words] for name, words in runs.items()]
        for done in threads.map(lambda words: run_traceml(words, cwd), options):
            assert done.status == 0, done.stderr
    return cwd / "logs"


@pytest.fixture(scope="package")
def server(logs: Path) -> Iterator[Served]:
    """A server for them."""
    with serving(logs) as served:
        yield served
