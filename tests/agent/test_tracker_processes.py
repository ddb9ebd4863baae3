"""The processes that log to trackers, as the agent starts and ends them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from factories import make_run
from processes import PATIENCE_S
from run_folders import write_run
from traceml.agent import tracker_processes
from traceml.agent.tracker_processes import TrackerProcesses
from traceml.model.environment import NOTIFY, TOKEN
from traceml.model.tracker import LOG_TO_MARK, SAID_MARK
from traceml.store import folder as folders

SAYS = """\
import sys
from pathlib import Path
said = sys.stdin.buffer.read()
Path(sys.argv[3], "marks", "tracker-said-" + sys.argv[2]).write_text(repr(said))
"""
SAYS_VARIABLES = """\
import os, sys
from pathlib import Path
sys.stdin.buffer.read()
names = "TRACEML_NOTIFY", "TRACEML_TOKEN", "WANDB_API_KEY", "WANDB_SERVICE", "_WANDB_SERVICE"
found = [name for name in names if name in os.environ]
Path(sys.argv[3], "marks", "tracker-said-" + sys.argv[2]).write_text(" ".join(found))
"""
HANGS = "import time; time.sleep(600)"
FAILS = "raise SystemExit(3)"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"  # as where memory runs out

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "logs" / "run", make_run())


def finish(
    folder: Path, program: str, monkeypatch: pytest.MonkeyPatch, timeout_s: float = PATIENCE_S
) -> TrackerProcesses:
    monkeypatch.setattr(tracker_processes, "TRACKER", program)
    found = TrackerProcesses(folder)
    found.start_wanted()
    found.start_wanted()  # nobody is started twice
    found.send_end()
    found.wait(time.monotonic() + timeout_s)
    return found


def test_each_is_told_when_the_run_is_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.write_mark(folder, LOG_TO_MARK, "wandb,mlflow")
    finish(folder, SAYS, monkeypatch)
    for name in ("wandb", "mlflow"):
        assert folders.read_mark(folder, f"{SAID_MARK}{name}") == repr(b"over\n")


def test_a_trackers_package_gets_its_own_secrets_and_none_of_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (NOTIFY, TOKEN, "WANDB_API_KEY"):
        monkeypatch.setenv(name, "secret")
    folders.write_mark(folder, LOG_TO_MARK, "wandb")
    finish(folder, SAYS_VARIABLES, monkeypatch)
    assert folders.read_mark(folder, f"{SAID_MARK}wandb") == "WANDB_API_KEY"


def test_the_scripts_own_wandb_service_which_ends_with_it_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_SERVICE", "_WANDB_SERVICE"):
        monkeypatch.setenv(name, "3-1234-unix-/tmp/socket")
    folders.write_mark(folder, LOG_TO_MARK, "wandb")
    finish(folder, SAYS_VARIABLES, monkeypatch)
    assert folders.read_mark(folder, f"{SAID_MARK}wandb") == "WANDB_API_KEY"


def test_one_that_hangs_is_ended_and_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.write_mark(folder, LOG_TO_MARK, "wandb")
    found = finish(folder, HANGS, monkeypatch, timeout_s=0.1)
    said = folders.read_mark(folder, f"{SAID_MARK}wandb")
    assert said is not None and "did not end in time" in said and str(folder) in said
    assert all(process.poll() is not None for process in found._started.values())


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (FAILS, "its process ended with exit status 3"),
        (KILLED, "its process was killed by SIGKILL"),
    ],
)
def test_one_that_dies_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, why: str
) -> None:
    folders.write_mark(folder, LOG_TO_MARK, "trackio")
    finish(folder, program, monkeypatch)
    said = folders.read_mark(folder, f"{SAID_MARK}trackio")
    assert said is not None and f"({why})" in said


def test_a_run_that_asks_for_none_starts_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finish(folder, FAILS, monkeypatch)._started == {}
