"""Whatever goes wrong on our side: training ends as it would have, and one line says what."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from processes import (
    PYTHON,
    STEPS,
    TRACEML,
    Finished,
    Running,
    fill,
    run,
    run_traceml,
    small_disk,
    started,
    wait_until,
)

TRAIN = STEPS + "import sys\ntake_steps(5)\nprint('trained')\nsys.exit(7)\n"


def _assert_trained(done: Finished) -> str:
    """The script had its way; the one line that we said."""
    assert (done.status, done.stdout) == (7, "trained\n")
    assert done.left() == []
    (line,) = done.lines_of_ours()
    return line


LAUNCHER = """\
import sys
from traceml.launch import supervise
{change}
from traceml.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A launcher with one thing changed about it."""


# The logs folder


def test_a_file_where_the_logs_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    line = _assert_trained(run_traceml(["run", "train.py"], tmp_path, TRAIN))
    assert line.startswith("traceml: the run cannot be recorded ([Errno 20] Not a directory")
    assert line.endswith("training runs without tracing")
    assert (tmp_path / "logs").read_text() == "a file"


def test_a_logs_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "logs", 64, options=",ro"):
        line = _assert_trained(run_traceml(["run", "train.py"], tmp_path, TRAIN))
    assert "Read-only file system" in line


@pytest.mark.parametrize("name", [(), ("--run-name", "a")], ids=["without a name", "with a name"])
def test_a_disk_that_is_full_at_the_start(tmp_path: Path, name: tuple[str, ...]) -> None:
    with small_disk(tmp_path / "logs", 64) as logs:
        fill(logs)
        with started([TRACEML, "run", *name, "train.py"], tmp_path, TRAIN) as running:
            line = _assert_trained(running.finish())
        assert [path.name for path in logs.iterdir()] == ["filler"]
    assert "No space left on device" in line
    assert _shared_memory(running) == []


def _shared_memory(running: Running) -> list[Path]:
    """The rings of a launcher whose run folder is not there to name them."""
    return list(Path("/dev/shm").glob(f"traceml-{running.pid}-*"))


@pytest.mark.parametrize("option", [(), ("--save-output",)], ids=["as it is", "kept"])
def test_a_disk_that_fills_up_in_mid_run(tmp_path: Path, option: tuple[str, ...]) -> None:
    script = STEPS + (
        "import os, sys, time, traceml\n"
        "take_steps(5)\n"
        "traceml.log_params({'lr': 0.1})\n"
        "open('ready', 'w').close()\n"
        "while not os.path.exists('full'): time.sleep(0.01)\n"
        "take_steps(2000)\nprint('trained')\nsys.exit(7)\n"
    )
    command = [TRACEML, "run", *option, "train.py"]
    with small_disk(tmp_path / "logs", 1024) as logs, started(command, tmp_path, script) as running:
        running.wait_for("ready")
        wait_until(lambda: list(running.folder.glob("rank-*.steps")), "the agent drains")
        filler = fill(logs)
        (tmp_path / "full").touch()
        done = running.finish()
        assert (done.status, done.stdout) == (7, "trained\n")
        *before, line = done.lines_of_ours()
        assert before == (
            ["traceml: the output is no longer kept: No space left on device"] if option else []
        )
        assert line == (
            f"traceml: the disk of {done.folder} is full: the summary lacks the last steps; make "
            f"room, then `traceml recover {done.folder}` adds them"
        )
        assert done.steps < 2005
        assert done.summary["exit_status"] == 7
        assert "The disk was full" in done.summary["tracer"]["notes"][0]
        assert len(done.rings()) == 1  # what has no room on the disk is still here
        filler.unlink()
        recovered = run_traceml(["recover", done.folder], tmp_path)
        assert recovered.status == 0
        assert recovered.steps == 2005
        assert recovered.summary["params"] == {"lr": 0.1}
        recovered.assert_nothing_is_left()


def test_a_disk_that_is_too_small_for_the_steps_keeps_what_fits(tmp_path: Path) -> None:
    """The first drain alone is larger than the disk."""
    script = STEPS + "take_steps(3000)\nprint('trained')\n"
    command = [TRACEML, "run", "train.py"]
    with small_disk(tmp_path / "logs", 200) as logs, started(command, tmp_path, script) as running:
        done = running.finish()
        assert (done.status, done.stdout) == (0, "trained\n")
        (line,) = done.lines_of_ours()
        assert "is full: the summary lacks the last steps" in line
        kept, text = done.steps, (done.folder / "final_summary.txt").read_text()
        assert 100 < kept < 3000
        assert f"The disk was full: only {kept:,} of the 3,000 steps" in " ".join(text.split())
        assert "no optimizer step" not in text
        subprocess.run(["mount", "-o", "remount,size=4m", str(logs)], check=True)
        recovered = run_traceml(["recover", done.folder], tmp_path)
        assert recovered.status == 0, recovered.stderr
        assert recovered.steps == 3000
        assert recovered.summary["tracer"]["notes"] == []
        recovered.assert_nothing_is_left()


def test_a_run_folder_that_is_removed_in_mid_run(tmp_path: Path) -> None:
    script = STEPS + (
        "import shutil, sys\ntake_steps(5)\nshutil.rmtree('logs')\n"
        "take_steps(5)\nprint('trained')\nsys.exit(7)\n"
    )
    with started([TRACEML, "run", "train.py"], tmp_path, script) as running:
        line = _assert_trained(running.finish())
    assert line.endswith("was removed while it ran: there is no summary")
    assert _shared_memory(running) == []


# Shared memory


@pytest.mark.parametrize("options", ["size=64k", "size=1m,ro"], ids=["too small", "not writable"])
def test_without_shared_memory_rings_go_to_the_run_folder(tmp_path: Path, options: str) -> None:
    script = STEPS + (
        "import sys\ntake_steps(5)\n"
        "from traceml.trace.current import current\n"
        "print(current().ring.path.parent == current().run_folder, flush=True)\n"
        "__import__('os').kill(__import__('os').getpid(), 9)\n"
    )
    (tmp_path / "train.py").write_text(script)
    shell = f"mount -t tmpfs -o {options} tmpfs /dev/shm || exit 99; exec {TRACEML} run train.py"
    done = run(["unshare", "-m", "sh", "-c", shell], tmp_path)
    if done.status == 99 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    assert (done.status, done.stdout) == (137, "True\n")
    assert done.steps == 5
    done.assert_nothing_is_left()


def test_a_system_without_shared_memory_has_rings_in_the_run_folder(tmp_path: Path) -> None:
    change = "from traceml.store import folder; folder.SHARED_MEMORY = folder.Path('/no/such')"
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launcher.py").write_text(LAUNCHER.format(change=change))
    done = run([PYTHON, "launcher.py", "run", "--", "python", "train.py"], tmp_path)
    assert (done.status, done.stdout, done.lines_of_ours()) == (7, "trained\n", [])
    assert done.steps == 5
    assert json.loads((done.folder / "run.json").read_bytes())["ring_folder"] == ""
    done.assert_nothing_is_left()


def test_no_room_for_a_ring_at_all_is_said_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    with small_disk(tmp_path / "logs", 256):
        shell = f"mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 99; exec {TRACEML} run train.py"
        done = run(["unshare", "-m", "sh", "-c", shell], tmp_path)
        if done.status == 99 or "unshare" in done.stderr:
            pytest.skip(f"no file system can be mounted here: {done.stderr}")
        assert "no room for the records" in _assert_trained(done)
        assert done.summary["primary_diagnosis"]["kind"] == "NO_DATA"
        assert "no room for the records" in done.summary["primary_diagnosis"]["summary"]
        done.assert_nothing_is_left()


# The agent


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(
            "supervise.AGENT = 'raise SystemExit(3)'", "the agent died 3 times", id="ends at once"
        ),
        pytest.param(
            "sys.executable = '/no/such/python'", "the agent could not be started", id="no program"
        ),
    ],
)
def test_an_agent_that_cannot_start(tmp_path: Path, change: str, words: str) -> None:
    (tmp_path / "launcher.py").write_text(LAUNCHER.format(change=change))
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    command = [PYTHON, "launcher.py", "run", "--", "python", "train.py"]
    with started(command, tmp_path, waits + TRAIN) as running:
        wait_until(lambda: words in running.stderr_path.read_text(), "it is said at once")
        (tmp_path / "go").touch()
        done = running.finish()
    assert words in _assert_trained(done)
    assert done.steps == 5
    done.assert_nothing_is_left()


def test_an_agent_that_hangs_at_the_end_is_replaced(tmp_path: Path) -> None:
    change = "supervise.CLOSING_S = 0.2; supervise.AGENT = 'import time; time.sleep(300)'"
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launcher.py").write_text(LAUNCHER.format(change=change))
    done = run([PYTHON, "launcher.py", "run", "--", "python", "train.py"], tmp_path)
    assert "the agent did not write the summary" in _assert_trained(done)
    assert done.steps == 5
    done.assert_nothing_is_left()


def test_a_bug_of_ours_while_summing_up_changes_no_status(tmp_path: Path) -> None:
    change = (
        "supervise.AGENT = 'raise SystemExit(3)'\n"
        "import traceml.agent.close as close\n"
        "close.summarise = lambda *_: 1 / 0"
    )
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launcher.py").write_text(LAUNCHER.format(change=change))
    done = run([PYTHON, "launcher.py", "run", "--", "python", "train.py"], tmp_path)
    assert (done.status, done.stdout) == (7, "trained\n")
    assert "(ZeroDivisionError: division by zero)" in done.stderr
    assert "Traceback" not in done.stderr
    recovered = run_traceml(["recover", done.folder], tmp_path)
    assert recovered.steps == 5
    recovered.assert_nothing_is_left()


# What scripts do


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "pid = os.fork()\n"
            "if not pid:\n    print('child', flush=True); take_steps(3); sys.exit(3)\n"
            "print(os.waitpid(pid, 0)[1] >> 8)\n",
            id="forks, and the child leaves by sys.exit",
        ),
        pytest.param(
            "pid = os.fork()\nif not pid:\n    os._exit(3)\nprint(os.waitpid(pid, 0)[1] >> 8)\n",
            id="forks, and the child leaves by os._exit",
        ),
        pytest.param(
            "import multiprocessing\n"
            "process = multiprocessing.get_context('fork').Process(target=take_steps, args=(0,))\n"
            "process.start(); process.join(); print(process.exitcode)\n",
            id="has a worker",
        ),
        pytest.param("os.mkdir('x'); os.chdir('x')", id="changes directory"),
        pytest.param("os.closerange(3, 256)", id="closes descriptors"),
        pytest.param("os.closerange(0, 256)", id="closes its streams too"),
        pytest.param("sys.stdout = open('out', 'w')", id="redirects sys.stdout"),
        pytest.param("os.dup2(os.open('o', os.O_CREAT | os.O_RDWR), 1)", id="redirects stdout"),
        pytest.param("os.environ.clear()", id="clears its environment"),
        pytest.param("import gc; gc.disable(); sys.setrecursionlimit(50)", id="is short of stack"),
        pytest.param(
            "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)", id="no SIGCHLD"
        ),
    ],
)
def test_what_scripts_do_changes_nothing(tmp_path: Path, body: str) -> None:
    script = STEPS + f"import os, sys\ntake_steps(5)\n{body}\ntake_steps(5)\nprint('trained')\n"
    script += "os._exit(7)" if "_exit" in body else "sys.exit(7)"
    ours, plain = tmp_path / "ours", tmp_path / "plain"
    ours.mkdir()
    plain.mkdir()
    done = run_traceml(["run", "train.py"], ours, script)
    (plain / "train.py").write_text(script)
    without = run([PYTHON, "train.py"], plain)
    assert (done.status, done.stdout) == (without.status, without.stdout)
    assert done.steps >= 10
    assert done.lines_of_ours() == []
    assert done.summary["tracer"]["failures"] == 0
    done.assert_nothing_is_left()


def test_a_traced_script_computes_what_it_would_have(tmp_path: Path) -> None:
    """The same numbers to the last bit, from a script that does everything at once."""
    script = (
        "import os, sys\n"
        "import torch\n"
        "torch.manual_seed(0)\n"
        "os.closerange(3, 256)\n"
        "os.mkdir('x'); os.chdir('x')\n"
        "data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))\n"
        "loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=1)\n"
        "from torch.nn import Dropout, Linear, Sequential\n"
        "model = Sequential(Linear(4, 8), Dropout(), Linear(8, 1))\n"
        "optimizer = torch.optim.Adam(model.parameters())\n"
        "for epoch in range(2):\n"
        "    for x, y in loader:\n"
        "        optimizer.zero_grad()\n"
        "        loss = torch.nn.functional.mse_loss(model(x), y)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "torch.save(model.state_dict(), 'weights.pt')\n"
        "weights = [p.detach().numpy().tobytes().hex() for p in model.parameters()]\n"
        "print(weights, loss.item(), flush=True)\n"
        "os._exit(7)\n"
    )
    ours, plain = tmp_path / "ours", tmp_path / "plain"
    ours.mkdir()
    plain.mkdir()
    done = run_traceml(["run", "train.py"], ours, script)
    (plain / "train.py").write_text(script)
    without = run([PYTHON, "train.py"], plain)
    assert (done.status, done.stdout) == (without.status, without.stdout)
    assert done.status == 7
    assert done.steps == 16
    done.assert_nothing_is_left()


def test_a_torch_that_fails_to_import_fails_as_without_us(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.12')")
    script = (
        "try:\n    import torch\nexcept ImportError as error:\n    print(error)\nimport torch\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    assert (done.status, done.stdout) == (1, "libcudart.so.12\n")
    assert "ImportError: libcudart.so.12" in done.stderr
    said = "The script failed before its first training step: ImportError: libcudart.so.12."
    assert done.why == said
    assert "sitecustomize" not in done.summary["failure"]["traceback"]
