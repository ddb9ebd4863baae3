"""Which tests are slow, and how workers share them.

`make quick` leaves the slow ones out. Under `pytest -n auto` (pytest-xdist) a file's tests stay
together, because they share fixtures; slow files come first, the slowest before all others, so that
no worker is left with one at the end while the others have nothing to do.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from slow_tests import StartedProcesses, starts_a_process

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

SHARED_FOLDERS = ("tests/browser/", "tests/integrations/mlflow_store/")
"""The files of such a folder share runs, so that one worker takes all of them."""
SPREAD_FILES = ("tests/benchmarks/test_planted.py",)
"""Files of few and long tests that share nothing: each of the tests goes to whoever is free."""
SLOWEST_FILES = (
    "tests/launch/test_nodes.py",
    "tests/trace/test_scripts.py",
    "tests/test_damaged_input.py",
    "tests/browser/",
    "tests/trace/test_communication.py",
    "tests/trace/test_parallel_training.py",
    "tests/benchmarks/test_planted.py",
    "tests/trace/test_injection.py",
    "tests/launch/test_failures.py",
    "tests/tui/test_live_terminal.py",
    "tests/integrations/test_framework_callbacks.py",
)
"""Begun first, in this order; of the others none takes much longer than half a minute."""
MAX_WORKERS = 4
"""Each worker and what it starts may hold a gigabyte or two."""
MAX_OPEN_FILES = 16_384

sys.path.append(str(Path(__file__).parents[1]))  # the benchmarks lie there, and are not installed

# Hundreds of short processes: without cached bytecode each of them would compile the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Threads of small trainings beside each other wait for one another longer than they compute. On a
# machine with a GPU, tests/gpu measures how long the host takes, as people have it.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("OMP_NUM_THREADS", "1")

started_processes = StartedProcesses()


def pytest_configure() -> None:
    set_up_hypothesis()
    allow_open_files()
    platform.processor()  # asks `uname` once per process: no test is to be the one that does
    started_processes.watch()


def allow_open_files() -> None:
    """A process has one session, a test process has hundreds, and the files of each stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def set_up_hypothesis() -> None:
    """How long an example takes is the machine's matter, and examples are the same every time.

    What a new one finds is a defect to mend, but nothing to refuse an unrelated change for; to look
    for new ones there is `pytest --hypothesis-profile=exploring`.
    """
    untimed: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("exploring", **untimed)
    settings.register_profile("steady", derandomize=True, **untimed)
    settings.load_profile("steady")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is slow; all of tests/gpu is, where compilers start processes of their own."""
    if "gpu" in item.path.parts or starts_a_process(item):
        item.add_marker("slow")


@pytest.hookimpl(trylast=True)  # pytest has put together by now what shares a fixture
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}

    def turn(item: pytest.Item) -> tuple[bool, int]:
        slowest = (
            place for place, name in enumerate(SLOWEST_FILES) if item.nodeid.startswith(name)
        )
        return item.path not in slow_files, next(slowest, len(SLOWEST_FILES))

    items.sort(key=turn)


@pytest.fixture
def forbid_entry(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Have nobody look into a folder, as into one of another user: root may look into all."""

    def forbid(folder: Path) -> None:
        stat = Path.stat

        def refused(path: Path, **how: Any) -> os.stat_result:
            if folder in path.parents:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return stat(path, **how)

        monkeypatch.setattr(Path, "stat", refused)

    return forbid


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    started_processes.seen.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """In `make quick`, fail a test that starts a process and is not known to."""
    result = yield
    is_quick = "slow" in item.config.option.markexpr
    if is_quick and started_processes.seen and item.get_closest_marker("slow") is None:
        pytest.fail(
            f"this test starts a process ({started_processes.seen[0]}), but is not marked slow: "
            "give it @pytest.mark.slow",
            pytrace=False,
        )
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many workers `-n auto` means: one more than there are cores, because tests often wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min((cores or 1) + 1, MAX_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Give every worker whole files, whole folders where files share runs, single tests of some."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def remove_node(self, node: WorkerController) -> str | None:
            """Give what a worker that died had not finished to the next one, and not the files that
            it had: given such a file first, the next one waits for its tests for ever."""
            given = self.assigned_work[node]
            self.assigned_work[node] = {
                scope: tests for scope, tests in given.items() if not all(tests.values())
            }
            return super().remove_node(node)

        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(SPREAD_FILES):
                return nodeid
            shared = (folder for folder in SHARED_FOLDERS if nodeid.startswith(folder))
            return next(shared, super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # or the files with the most tests would come first
    return Scheduling(config, log)
