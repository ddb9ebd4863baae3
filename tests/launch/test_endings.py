"""However a Python script ends, traced or not, what ended it is the verdict, with its traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from processes import TORCH_STEPS, TRACEML, Finished, run, run_traceml, started, wait_until

PYTHON = sys.executable
SECRET = "sk-abcdefghijklmnopqrstuvwxyz123456"


def failure_of(done: Finished) -> dict[str, Any]:
    """What ended the run, which is also the verdict."""
    found: dict[str, Any] = done.summary["failure"]
    assert done.summary["primary_diagnosis"]["kind"] == found["kind"]
    return found


def primary_of(done: Finished) -> tuple[str, str, str]:
    found = done.summary["primary_diagnosis"]
    return found["kind"], found["severity"], found["summary"]


@pytest.mark.parametrize(
    ("script", "error", "where"),
    [
        pytest.param("import os\nx = (\n", "SyntaxError", "train.py:2", id="cannot be read"),
        pytest.param(
            "def load():\n    return missing\nload()\n",
            "NameError",
            "train.py:2 in load",
            id="before torch",
        ),
        pytest.param(
            "import no_such_module\n",
            "ModuleNotFoundError",
            "train.py:1 in <module>",
            id="a missing module",
        ),
        pytest.param(
            "import sys\nsys.excepthook = lambda *_: None\nraise ValueError('no')\n",
            "ValueError",
            "train.py:3 in <module>",
            id="an excepthook of its own",
        ),
        pytest.param(
            "import subprocess, sys\n"
            "subprocess.check_call([sys.executable, '-c', 'raise KeyError(5)'])\n",
            "KeyError",
            "<string>:1 in <module>",
            id="in a helper that mattered",
        ),
    ],
)
def test_a_script_that_raised_before_training_is_an_exception(
    tmp_path: Path, script: str, error: str, where: str
) -> None:
    (tmp_path / "train.py").write_text(script)
    plain = run([PYTHON, "train.py"], tmp_path)
    # With the interpreter of `plain`: a traceback may name it, and the one that the installed
    # `traceml` begins with may be the same one by another path.
    done = run([PYTHON, "-m", "traceml", "run", "train.py"], tmp_path)
    assert done.status == plain.status == 1
    assert done.stderr.startswith(plain.stderr)
    failure = failure_of(done)
    assert (failure["kind"], failure["error"], failure["where"]) == ("EXCEPTION", error, where)
    assert failure["traceback"].splitlines()[-1].startswith(error)
    assert failure["traceback"] in plain.stderr or "excepthook" in script
    assert failure["traceback"].splitlines()[-1] in (done.folder / "final_summary.txt").read_text()
    done.assert_nothing_is_left()


@pytest.mark.parametrize("mode", ["-c", "-m"])
def test_python_c_and_m_are_scripts_too(tmp_path: Path, mode: str) -> None:
    (tmp_path / "job.py").write_text("raise ValueError('no')\n")
    what = "raise ValueError('no')" if mode == "-c" else "job"
    done = run_traceml(["run", "--", PYTHON, mode, what], tmp_path)
    assert (failure_of(done)["error"], done.status) == ("ValueError", 1)


def test_causes_are_in_the_traceback_and_secrets_are_not(tmp_path: Path) -> None:
    script = (
        "try:\n    {}['epoch']\nexcept KeyError as error:\n"
        f"    raise ValueError('api_key=\"{SECRET}\"') from error\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    traceback = failure_of(done)["traceback"]
    assert "KeyError: 'epoch'" in traceback
    assert "direct cause" in traceback
    for path in (*done.folder.glob("*.*"), *done.folder.glob("marks/*")):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("script", "status", "kind", "words"),
    [
        pytest.param(
            "import argparse\nargparse.ArgumentParser().parse_args(['--nope'])\n",
            2,
            "NO_DATA",
            "It ended with exit status 2 before its first training step.",
            id="argparse",
        ),
        pytest.param(
            "import sys\nsys.exit('no data folder')\n",
            1,
            "NO_DATA",
            "It ended with exit status 1 before its first training step.",
            id="sys.exit with a message",
        ),
        pytest.param(
            "import os\nos._exit(4)\n", 4, "NO_DATA", "It ended with exit status 4", id="os._exit"
        ),
        pytest.param(
            "raise KeyboardInterrupt\n",
            130,
            "KILLED",
            "The run was ended by SIGINT before its first training step.",
            id="KeyboardInterrupt",
        ),
        pytest.param(
            "import os\nos.kill(os.getpid(), 9)\n",
            137,
            "KILLED",
            "The script was killed by SIGKILL before its first training step",
            id="SIGKILL",
        ),
        pytest.param(
            "import subprocess, sys\n"
            "subprocess.run([sys.executable, '-c', 'raise KeyError(5)'])\nsys.exit(3)\n",
            3,
            "NO_DATA",
            "It ended with exit status 3",
            id="a helper's failure that was dealt with",
        ),
    ],
)
def test_an_end_without_an_exception_is_said_with_its_status(
    tmp_path: Path, script: str, status: int, kind: str, words: str
) -> None:
    done = run_traceml(["run", "train.py"], tmp_path, script)
    found, _, claim = primary_of(done)
    assert (done.status, found) == (status, kind)
    assert words in claim
    assert "trace_step" not in done.summary["primary_diagnosis"]["action"]


def test_a_helper_that_fails_in_a_good_run_is_no_failure(tmp_path: Path) -> None:
    script = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'raise KeyError(5)'])\n"
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert (done.status, done.summary["failure"]) == (0, None)


def test_a_shell_around_the_script_hides_no_exception(tmp_path: Path) -> None:
    command = ["run", "--", "bash", "-c", f"{PYTHON} train.py; exit 3"]
    done = run_traceml(command, tmp_path, "raise ValueError('no')\n")
    assert done.status == 3
    assert (failure_of(done)["error"], failure_of(done)["rank"]) == ("ValueError", None)


@pytest.mark.parametrize("has_trained", [True, False], ids=["in training", "before it"])
def test_a_timeout_is_told_whatever_stands_between(tmp_path: Path, has_trained: bool) -> None:
    """timeout is ended, which ends its command, as when the time is up."""
    steps = TORCH_STEPS + "take_steps(5)\n" if has_trained else ""
    script = steps + "import time\nopen('ready', 'w').close()\ntime.sleep(300)\n"
    command = [TRACEML, "run", "--", "timeout", "300", PYTHON, "train.py"]
    with started(command, tmp_path, script) as running:
        running.wait_for("ready")
        wait_until(lambda: _is_followed(running.folder, has_trained), "the agent knows of it")
        (trainer,) = running.training().children()
        trainer.terminate()
        done = running.finish()
    found, severity, claim = primary_of(done)
    stability = done.summary["stability"]["diagnosis"]
    assert done.status == 143
    assert stability["kind"] == "KILLED"
    assert "SIGTERM" in stability["summary"]
    if not has_trained:
        assert (found, severity) == ("KILLED", "info")
        assert claim == "The run was ended by SIGTERM before its first training step."


def _is_followed(folder: Path, has_trained: bool) -> bool:
    return bool(list(folder.glob("rank-*.steps"))) or not has_trained


def test_the_same_error_on_both_ranks_is_one_finding(tmp_path: Path) -> None:
    script = (
        "import os\nrank = os.environ['RANK']\n"
        "open(f'here-{rank}', 'w').close()\n"
        "while not (os.path.exists('here-0') and os.path.exists('here-1')):\n    pass\n"
        "raise ValueError(f'no data for rank {rank}')\n"
    )
    done = run_traceml(["run", "--nproc-per-node", "2", "train.py"], tmp_path, script)
    failure = failure_of(done)
    assert failure["kind"] == "EXCEPTION"
    assert "no data for rank" in failure["message"]
    assert "followed" not in failure["action"]
    assert failure["where"] == "train.py:6 in <module>"
