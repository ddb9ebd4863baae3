"""Two short runs that every test here reads, and a server for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import STEPS, run_traceml
from served import Served, serving

SCRIPT = STEPS + "import time\nfor _ in range(60):\n    time.sleep(0.001)\n    take_steps(1)\n"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A logs folder with the finished runs `a` and `b`."""
    cwd = tmp_path_factory.mktemp("web")
    for name in ("a", "b"):
        done = run_traceml(["run", "--run-name", name, "train.py"], cwd, SCRIPT)
        assert done.status == 0, done.stderr
    return cwd / "logs"


@pytest.fixture(scope="session")
def server(logs: Path) -> Iterator[Served]:
    """A server for them, for tests that change nothing."""
    with serving(logs) as served:
        yield served
