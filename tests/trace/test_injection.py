"""The tracer comes into every interpreter below `traceml run`, and changes nothing there."""

from __future__ import annotations

import os
import shutil
import signal
import site
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import traceml
from processes import (
    PATIENT,
    PYTHON,
    TORCH_STEPS,
    TRACEML,
    Finished,
    in_terminal,
    run,
    run_traceml,
    started,
)

TRAIN = TORCH_STEPS + "take_steps(6)\n"
DISTRIBUTED = f"""\
import os
{PATIENT}
import torch
import torch.distributed as dist
import traceml

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
steps = traceml.summary()["traceml/steps"]
whole = traceml.final_summary()
told = f"{{steps}} {{whole['meta']['world_size']}}"
open(f"rank-{{dist.get_rank()}}", "w").write(told)
dist.destroy_process_group()
"""


def _assert_two_ranks(done: Finished) -> None:
    assert done.status == 0, done.stderr
    assert done.summary["meta"]["world_size"] == 2
    rows = done.summary["step_time"]["groups"]["rows"]
    assert [row["identity"]["global_rank"] for row in rows.values()] == [0, 1]
    assert done.steps == 6
    for rank in (0, 1):  # each asked, in the middle of the run, and was told
        assert (done.cwd / f"rank-{rank}").read_text() == "6 2"
    done.assert_nothing_is_left()


def test_a_script_is_traced(tmp_path: Path) -> None:
    """Also when somebody asks `find_spec("torch")` first, as transformers does."""
    script = (
        "import importlib.util\n"
        "assert importlib.util.find_spec('torch') is not None\n"
        "assert importlib.util.find_spec('torch') is not None\n" + TRAIN + "import sys\n"
        "assert 'exec_module' not in vars(torch.__spec__.loader)\n"
        "assert not [f for f in sys.meta_path if type(f).__name__ == 'AfterTorch']\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert (done.status, done.steps) == (0, 6), done.stderr
    done.assert_nothing_is_left()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["python", "-m", "train"], id="python -m"),
        pytest.param(["python", "-c", "import torch"], id="python -c"),
        pytest.param(["python", "-c", "__import__('torch')"], id="__import__"),
        pytest.param(["python", "-s", "train.py"], id="python -s"),
        pytest.param(["sh", "-c", "cd /; python $OLDPWD/train.py"], id="from a shell"),
        pytest.param(["env", "A=1", "nice", "python", "train.py"], id="behind other programs"),
    ],
)
def test_the_tracer_comes_with_torch_however_python_is_started(
    tmp_path: Path, command: list[str]
) -> None:
    _fake_torch(tmp_path, "__version__ = '1.0'")  # what it says of this one shows that it came
    done = run_traceml(["run", "--", *command], tmp_path, "import torch")
    assert done.status == 0
    assert done.why == "torch 1.0 is too old: tracing needs 2.1 or newer"


def test_a_trainer_that_cannot_be_joined_is_said_once_and_used_as_it_is(tmp_path: Path) -> None:
    """As a version of transformers may be that has renamed what our callback is made from."""
    package = tmp_path / "transformers"
    (package / "integrations").mkdir(parents=True)
    for name in ("__init__.py", "integrations/__init__.py"):
        (package / name).write_text("")
    (package / "trainer.py").write_text("Trainer = 'theirs'")
    script = f"{TRAIN}from transformers.trainer import Trainer\nprint(Trainer)\n"
    done = run_traceml(["run", "--mode=summary", "train.py"], tmp_path, script)
    assert (done.status, done.steps) == (0, 6), done.stderr
    assert "theirs\n" in done.stdout
    assert done.stderr.count("the phases of transformers.trainer have no names") == 1


def test_two_processes_per_node(tmp_path: Path) -> None:
    done = run_traceml(["run", "--nproc-per-node", "2", "train.py"], tmp_path, DISTRIBUTED)
    _assert_two_ranks(done)


def test_torchrun(tmp_path: Path) -> None:
    command = ["run", "--", "torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]
    _assert_two_ranks(run_traceml(command, tmp_path, DISTRIBUTED))


@pytest.mark.parametrize("mode", ["summary", "cli"])
def test_ctrl_c_under_torchrun_leaves_nothing(tmp_path: Path, mode: str) -> None:
    """torchrun forwards it to its workers and ends with 1, with or without us."""
    script = TRAIN + "import time\nopen('ready', 'w').close()\ntime.sleep(300)\n"
    command = [TRACEML, "run", f"--mode={mode}", "--", "torchrun", "--standalone", "train.py"]
    with in_terminal(command, tmp_path, script) as terminal:
        terminal.wait_for("ready")
        terminal.press(b"\x03")
        done = terminal.finish()
    assert done.status == 1
    assert done.steps == 6
    done.assert_nothing_is_left()


def test_a_launcher_killed_over_torchrun_leaves_nothing(tmp_path: Path) -> None:
    """torchrun gets the SIGTERM, and ends its workers."""
    script = TRAIN + "import time\nopen('ready', 'w').close()\ntime.sleep(300)\n"
    command = [TRACEML, "run", "--", "torchrun", "--standalone", "train.py"]
    with started(command, tmp_path, script) as running:
        running.wait_for("ready")
        running.send(signal.SIGKILL)
        done = running.finish()
        done.wait_until_none_is_left()
    assert done.steps == 6
    done.assert_nothing_is_left()


def test_spawned_ranks_are_traced_and_loader_workers_are_not(tmp_path: Path) -> None:
    script = """\
import os
import torch
import torch.multiprocessing as mp

def train(rank):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2, num_workers=1)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert done.status == 0, done.stderr
    rows = done.summary["step_time"]["groups"]["rows"]
    assert len(rows) == 2
    assert done.steps == 6
    done.assert_nothing_is_left()


# Another interpreter than ours


def _base_python() -> Path:
    """The interpreter that our environment was made from: it has nothing of ours."""
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    if sys.prefix == sys.base_prefix or not base.exists():
        pytest.skip("this Python has no environment of its own, so there is no other beside it")
    return base


def test_another_interpreter_is_traced_though_it_has_no_traceml(tmp_path: Path) -> None:
    script = (TRAIN + PATIENT) + (
        "import sys, traceml\n"
        "print(traceml.summary()['traceml/steps'])\n"
        "print([name for name in ('msgspec', 'psutil', 'traceml.store') if name in sys.modules])\n"
    )
    packages = site.getsitepackages()[0]  # torch is there; as a plain path it installs nothing
    command = ["run", "--", str(_base_python()), "train.py"]
    done = run_traceml(command, tmp_path, script, env={"PYTHONPATH": packages})
    assert done.status == 0, done.stderr
    assert done.stdout == "6\n[]\n"
    assert done.steps == 6
    done.assert_nothing_is_left()


def _fake_torch(folder: Path, content: str) -> None:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(content)


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        pytest.param("__version__ = '1.13.1+cu117'", "torch 1.13.1+cu117 is too old", id="too old"),
        pytest.param(
            "__version__ = '2.3.0'", "torch 2.3.0 lacks something that tracing needs", id="odd"
        ),
        pytest.param("", "torch of no version is too old", id="no torch at all"),
    ],
)
def test_a_torch_that_cannot_be_traced_is_said_once(tmp_path: Path, torch: str, words: str) -> None:
    _fake_torch(tmp_path, torch)
    script = (
        "import subprocess, sys, torch\n"
        "if len(sys.argv) == 1:\n    subprocess.run([sys.executable, 'train.py', 'again'])\n"
        "print('trained')\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert (done.status, done.stdout) == (0, "trained\ntrained\n")
    (line,) = done.lines_of_ours()
    assert line.startswith(f"traceml: tracing is off: {words}")
    assert done.why.startswith(words)
    done.assert_nothing_is_left()


def test_no_torch_in_the_scripts_environment_is_said(tmp_path: Path) -> None:
    base = _base_python()
    if (
        subprocess.run([base, "-c", "import torch"], capture_output=True, check=False).returncode
        == 0
    ):
        pytest.skip(f"{base} has torch")
    script = "try:\n    import torch\nexcept ImportError as error:\n    print(error)\nimport torch"
    done = run_traceml(["run", "--", base, "train.py"], tmp_path, script)
    assert (done.status, done.stdout) == (1, "No module named 'torch'\n")
    assert done.why.endswith("ModuleNotFoundError: No module named 'torch'.")
    action = done.summary["primary_diagnosis"]["action"]
    assert "The script asked for torch, which " in action
    assert action.endswith(" does not have.")


def _python_of(version: str) -> str:
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], check=False).returncode:
        for place in (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"):
            return str(place)
        pytest.skip(f"there is no Python {version} here")
    return found


@pytest.mark.parametrize("version", ["3.6", "3.8", "3.9"])
def test_a_python_that_is_too_old_is_said(tmp_path: Path, version: str) -> None:
    python = _python_of(version)
    _fake_torch(tmp_path, "__version__ = '2.1'")
    done = run_traceml(
        ["run", "--", python, "train.py"], tmp_path, "import torch; print('trained')"
    )
    assert (done.status, done.stdout) == (0, "trained\n")
    (line,) = done.lines_of_ours()
    assert f"the script runs under Python {version}; tracing needs 3.10 or newer" in line
    assert line.endswith(done.why)


def test_a_python_two_runs_untouched(tmp_path: Path) -> None:
    python = _python_of("2.7")
    no_bytecode = {"PYTHONDONTWRITEBYTECODE": "1"}  # it would lie beside our sources
    command = ["run", "--", python, "train.py"]
    done = run_traceml(command, tmp_path, "print('trained')", env=no_bytecode)
    assert (done.status, done.stdout) == (0, "trained\n")
    assert "Error in sitecustomize" not in done.stderr


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_other_pythons_load_the_tracer(tmp_path: Path, version: str) -> None:
    """Without a torch of their own: the tracer itself must load, and log."""
    python = _python_of(version)
    script = PATIENT + (
        "import traceml; traceml.log_params({'lr': 0.1}); print(sorted(traceml.summary()) != [])"
    )
    done = run_traceml(["run", "--", python, "train.py"], tmp_path, script)
    assert done.status == 0, done.stderr
    assert done.stdout == "True\n"
    assert done.summary["params"] == {"lr": 0.1}


def test_a_folder_that_is_called_traceml_is_no_package(tmp_path: Path) -> None:
    """A checkout of ours beside the script, say."""
    (tmp_path / "traceml").mkdir()
    (tmp_path / "traceml" / "README.md").touch()
    script = "import traceml; traceml.log_params({'lr': 0.1})"
    done = run_traceml(["run", "--", _base_python(), "train.py"], tmp_path, script)
    assert done.status == 0, done.stderr
    assert done.summary["params"] == {"lr": 0.1}


def test_another_package_called_traceml_is_said(tmp_path: Path) -> None:
    (tmp_path / "traceml").mkdir()
    (tmp_path / "traceml" / "__init__.py").write_text("theirs = True")
    _fake_torch(tmp_path, "__version__ = '2.1'")
    script = "import torch, traceml; print(traceml.theirs)"
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert (done.status, done.stdout) == (0, "True\n")
    (line,) = done.lines_of_ours()
    assert f"traceml is {tmp_path}/traceml/__init__.py" in line


# What keeps us out, and what must not notice us


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_an_isolated_interpreter_is_detected_and_said(tmp_path: Path, option: str) -> None:
    done = run_traceml(["run", "--", "python", option, "train.py"], tmp_path, "print('trained')")
    assert (done.status, done.stdout) == (0, "trained\n")
    assert done.lines_of_ours() == [
        f"traceml: python {option} keeps the tracer out: the script runs untraced"
    ]
    assert "No Python interpreter loaded the tracer" in done.why
    assert option in done.why


SEES = """\
import sys
print(sys.path)
print(getattr(sys.modules.get("sitecustomize"), "mine", None), getattr(sys, "touched", None))
"""


def test_a_sitecustomize_of_the_users_own_runs(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; mine = 1; sys.touched = __file__")
    done = run_traceml(["run", "train.py"], tmp_path, SEES, env={"PYTHONPATH": str(own)})
    plain = run([PYTHON, "train.py"], tmp_path, env={"PYTHONPATH": str(own)})
    assert done.stdout == plain.stdout
    assert done.stdout.endswith(f"1 {own}/sitecustomize.py\n")
    assert done.why == "The script never imported torch."  # so the tracer is there as well


def test_a_sitecustomize_that_raises_does_so_as_without_us(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise ValueError('of the user')")
    done = run_traceml(["run", "train.py"], tmp_path, SEES, env={"PYTHONPATH": str(own)})
    plain = run([PYTHON, "train.py"], tmp_path, env={"PYTHONPATH": str(own)})
    assert plain.stderr == (
        "Error in sitecustomize; set PYTHONVERBOSE for traceback:\nValueError: of the user\n"
    )
    assert done.stderr.count(plain.stderr) >= 1
    assert (done.status, done.stdout) == (plain.status, plain.stdout)
    assert done.why == "The script never imported torch."


def test_what_an_interpreter_leaves_behind_names_its_machine(tmp_path):
    """Two machines that share a folder may have processes of the same number."""
    folder = tmp_path / "run"
    folder.mkdir()
    inject = Path(traceml.__file__).parent / "trace" / "inject"
    environment = {**os.environ, "TRACEML_RUN_FOLDER": str(folder), "PYTHONPATH": str(inject)}
    failing = subprocess.Popen(
        [sys.executable, "-c", "1 / 0"], env=environment, stderr=subprocess.DEVNULL
    )
    failing.wait()
    left = {path.name for path in (folder / "marks").iterdir()}
    me = f"{failing.pid}-{socket.gethostname()}"
    assert {f"script-{me}", f"failure-{me}.json"} <= left
