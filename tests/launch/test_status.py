"""The exit status is the training command's own, and the summary is there whatever it was."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from processes import STEPS, TORCH_STEPS, run_traceml


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param("take_steps(3)", 0, id="falls off its end"),
        pytest.param("import sys; take_steps(3); sys.exit(7)", 7, id="sys.exit(7)"),
        pytest.param("take_steps(3); raise ValueError('no')", 1, id="uncaught exception"),
        pytest.param("import os; take_steps(3); os._exit(9)", 9, id="os._exit"),
        pytest.param("import os; take_steps(3); os.kill(os.getpid(), 9)", 137, id="killed"),
        pytest.param("import os; take_steps(3); os.kill(os.getpid(), 15)", 143, id="terminated"),
        pytest.param("import os; take_steps(3); os.abort()", 134, id="aborted"),
    ],
)
def test_the_status_is_the_scripts_and_every_step_is_kept(
    tmp_path: Path, body: str, status: int
) -> None:
    done = run_traceml(["run", "train.py"], tmp_path, STEPS + body)
    assert done.status == status
    assert done.steps == 3
    assert done.summary["exit_status"] == status
    assert done.stdout == ""
    done.assert_nothing_is_left()


def test_a_trainer_killed_in_mid_step_loses_that_step_alone(tmp_path: Path) -> None:
    script = TORCH_STEPS + (
        "import os\ntake_steps(20)\nmodel(torch.ones(2, 4)).sum().backward()\n"
        "os.kill(os.getpid(), 9)"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert done.status == 128 + signal.SIGKILL
    assert done.steps == 20
    done.assert_nothing_is_left()


def test_a_users_error_shows_the_users_frames(tmp_path: Path) -> None:
    script = TORCH_STEPS + "take_steps(2)\noptimizer.step(closure=lambda: 1 / 0)\n"
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert done.status == 1
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "traceml" not in done.stderr.partition("ZeroDivisionError")[0]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        pytest.param("print('hi')", "The script never imported torch.", id="no torch imported"),
        pytest.param(
            "import torch",
            "The script imported torch, but no optimizer step and no backward pass completed "
            "a step.",
            id="no step",
        ),
    ],
)
def test_a_run_without_steps_says_why(tmp_path: Path, script: str, why: str) -> None:
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert done.status == 0
    assert done.summary["primary_diagnosis"]["kind"] == "NO_DATA"
    assert done.why == why
    assert list(done.folder.glob("rank-*")) == []
    assert "Verdict  NO DATA" in done.stderr  # the summary is shown, and not on stdout


ECHO = "import json, sys, os; print(json.dumps([sys.argv, os.getcwd()]))"


def test_everything_after_args_goes_to_the_script(tmp_path: Path) -> None:
    words = ["run", "--run-name", "a", "train.py", "--overwrite", "--args", "--run-name", "--", "x"]
    done = run_traceml(words, tmp_path, ECHO)
    assert done.status == 0
    assert json.loads(done.stdout) == [["train.py", "--run-name", "--", "x"], str(tmp_path)]
    assert done.folder.name == "a"


def test_options_stand_before_and_after_the_script(tmp_path: Path) -> None:
    before = run_traceml(["run", "--run-name=before", "train.py"], tmp_path, ECHO)
    after = run_traceml(["run", "train.py", "--run-name=after"], tmp_path)
    assert [before.status, after.status] == [0, 0]
    assert {folder.name for folder in after.folders} == {"before", "after"}


def test_a_command_runs_as_it_stands(tmp_path: Path) -> None:
    done = run_traceml(["run", "--", "sh", "-c", "echo $0 $1; exit 3", "a b", "--args"], tmp_path)
    assert (done.status, done.stdout) == (3, "a b --args\n")
    assert "No Python interpreter loaded the tracer" in done.why
    done.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "train.py"), "train-"),
        (("python", "-m", "train"), "train-"),
        (("python", "-c", "pass"), "python-"),
    ],
)
def test_a_run_without_a_name_is_named_after_what_runs(
    tmp_path: Path, command: tuple[str, ...], name: str
) -> None:
    done = run_traceml(["run", "--", *command], tmp_path, "")
    assert done.folder.name.startswith(name)


def test_disabled_means_no_trace_at_all(tmp_path: Path) -> None:
    script = (
        "import os, sys, traceml\n"
        "traceml.init()\n"
        "traceml.log_metrics({'loss': 1.0})\n"
        "assert traceml.summary() == {}\n"
        "print(sorted(name for name in os.environ if name.startswith('TRACEML_R')))\n"
        "print('sitecustomize' in sys.modules)\n"
        "sys.exit(5)"
    )
    done = run_traceml(["run", "--disable-traceml", "train.py"], tmp_path, script)
    assert (done.status, done.stdout, done.stderr) == (5, "[]\nFalse\n", "")
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


def test_a_disabled_command_that_is_killed_has_its_status(tmp_path: Path) -> None:
    done = run_traceml(["run", "--disable-traceml", "--", "sh", "-c", "kill -9 $$"], tmp_path)
    assert done.status == 137


@pytest.mark.parametrize("option", [(), ("--disable-traceml",)], ids=["traced", "disabled"])
def test_a_command_that_cannot_be_started_is_said(tmp_path: Path, option: tuple[str, ...]) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    done = run_traceml(["run", *option, "--", "./broken"], tmp_path)
    assert done.status == 127
    assert done.lines_of_ours() == [
        "traceml: ./broken could not be started: No such file or directory"
    ]
    done.assert_nothing_is_left()
