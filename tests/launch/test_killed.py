"""SIGKILL to launcher, agent or both: training is looked after, and no step is lost."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from processes import (
    STEPS,
    TORCH_STEPS,
    TRACEML,
    Finished,
    Running,
    kill,
    read_summary,
    run_traceml,
    started,
    wait_until,
)

WAITS = (
    STEPS
    + """\
import time, traceml
take_steps(5)
traceml.log_params({"lr": 0.1})
open("ready", "w").close()
while not __import__("os").path.exists("go"):
    time.sleep(0.01)
take_steps(5)
print("trained", flush=True)
"""
)
RUN = [TRACEML, "run", "train.py"]


def _follows_rings(running: Running) -> psutil.Process:
    """The agent, once it has drained something: killing it earlier would show nothing."""
    agent = running.agent()
    wait_until(lambda: list(running.folder.glob("rank-*.steps")), "the agent drains")
    return agent


def test_a_killed_launcher_ends_the_training_and_the_agent_writes_the_summary(
    tmp_path: Path,
) -> None:
    script = STEPS + (
        "import signal, sys, time\n"
        "def leave(*_):\n"
        "    open('terminated', 'a').write('x')\n"
        "    take_steps(2)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "take_steps(5)\nopen('ready', 'w').close()\ntime.sleep(300)\n"
    )
    with started(RUN, tmp_path, script) as running:
        running.wait_for("ready")
        _follows_rings(running)
        running.send(signal.SIGKILL)
        done = running.finish()
        done.wait_until_none_is_left()
    assert (tmp_path / "terminated").read_text() == "x"
    assert done.steps == 7
    assert done.summary["exit_status"] is None  # nobody was there to see it
    done.assert_nothing_is_left()


def test_a_killed_launcher_ends_what_a_shell_had_started(tmp_path: Path) -> None:
    """The shell dies of the SIGTERM meant for its child: the rank must not be orphaned."""
    script = STEPS + "take_steps(5)\nopen('ready', 'w').close()\nimport time; time.sleep(300)\n"
    command = [TRACEML, "run", "--", "bash", "-c", "python train.py; echo after"]
    with started(command, tmp_path, script) as running:
        running.wait_for("ready")
        _follows_rings(running)
        running.send(signal.SIGKILL)
        done = running.finish()
        done.wait_until_none_is_left()
    assert done.steps == 5
    assert done.stdout == ""
    done.assert_nothing_is_left()


def test_a_launcher_killed_with_kept_output_leaves_nothing(tmp_path: Path) -> None:
    command = [TRACEML, "run", "--save-output", "train.py"]
    with started(command, tmp_path, WAITS) as running:
        running.wait_for("ready")
        _follows_rings(running)
        running.send(signal.SIGKILL)
        done = running.finish()
        done.wait_until_none_is_left()
    assert done.steps == 5
    done.assert_nothing_is_left()


def test_a_killed_agent_is_replaced_and_no_step_is_missing(tmp_path: Path) -> None:
    with started(RUN, tmp_path, WAITS) as running:
        running.wait_for("ready")
        kill(first := _follows_rings(running))
        second = wait_until(
            lambda: (agent := running.agent()).pid != first.pid and agent, "another agent is there"
        )
        assert second
        (tmp_path / "go").touch()
        done = running.finish()
    assert (done.status, done.stdout, done.steps) == (0, "trained\n", 10)
    assert done.summary["params"] == {"lr": 0.1}
    assert done.summary["tracer"]["steps_lost"] == 0
    assert done.lines_of_ours() == []
    done.assert_nothing_is_left()


def test_an_agent_killed_again_and_again_is_given_up_and_no_step_is_missing(
    tmp_path: Path,
) -> None:
    with started(RUN, tmp_path, WAITS) as running:
        running.wait_for("ready")
        seen: set[int] = set()
        for _ in range(3):
            agent = wait_until(lambda: _another(running, seen), "another agent is there")
            seen.add(agent.pid)
            kill(agent)
        wait_until(
            lambda: "the agent died 3 times" in running.stderr_path.read_text(), "it is said"
        )
        (tmp_path / "go").touch()
        done = running.finish()
    assert (done.status, done.stdout, done.steps) == (0, "trained\n", 10)
    assert done.summary["params"] == {"lr": 0.1}
    assert len(done.lines_of_ours()) == 1
    done.assert_nothing_is_left()


def _another(running: Running, seen: set[int]) -> psutil.Process | None:
    for child in psutil.Process(running.pid).children():
        with suppress(ProcessLookupError):  # killed and, by now, waited for
            if os.getsid(child.pid) == child.pid and child.pid not in seen:
                return child
    return None


def test_an_agent_killed_at_the_very_end_is_replaced_by_the_launcher(tmp_path: Path) -> None:
    """Stopped, it cannot write the summary; killed then, nobody is left to but the launcher."""
    script = (
        WAITS
        + "import traceml; open('weights', 'w').write('w' * 10)\n"
        + ("traceml.log_artifact('weights')\n")
    )
    with started(RUN, tmp_path, script) as running:
        running.wait_for("ready")
        agent = _follows_rings(running)
        agent.send_signal(signal.SIGSTOP)
        (tmp_path / "go").touch()
        wait_until((running.folder / "ending.json").exists, "the training has ended")
        kill(agent)
        done = running.finish()
    assert (done.status, done.steps) == (0, 10)
    assert done.summary["artifacts"]["weights"]["size_bytes"] == 10
    assert done.summary["artifacts"]["weights"]["sha256"] is not None
    (line,) = done.lines_of_ours()
    assert "the agent did not write the summary" in line
    done.assert_nothing_is_left()


def test_everything_killed_and_the_run_is_recovered(tmp_path: Path) -> None:
    script = TORCH_STEPS + (
        "import time, traceml\ntake_steps(20)\ntraceml.log_metrics({'loss': 0.5}, step=20)\n"
        "open('ready', 'w').close()\ntime.sleep(300)\n"
    )
    with started(RUN, tmp_path, script) as running:
        running.wait_for("ready")
        agent, training = running.agent(), running.training()
        # Stopped first: whoever died last would otherwise look after the others.
        for process in (agent, psutil.Process(running.pid)):
            process.send_signal(signal.SIGSTOP)
        for process in (training, agent):
            kill(process)
        running.send(signal.SIGKILL)
        done = running.finish()
        assert done.left() == []
        assert not (done.folder / "final_summary.json").exists()
        recovered = run_traceml(["recover", done.folder.name], tmp_path)
        assert recovered.status == 0
        assert recovered.stdout.startswith("TraceML · train-")
        assert recovered.steps == 20
        assert recovered.summary["metrics"]["loss"]["last"] == 0.5
        assert recovered.summary["duration_s"] > 0
        recovered.assert_nothing_is_left()
        first = recovered.summary
        assert run_traceml(["recover", str(done.folder)], tmp_path).summary == first


def test_a_summary_built_again_is_equal_field_by_field(tmp_path: Path) -> None:
    script = STEPS + (
        "import traceml, time\n"
        "open('weights', 'w').write('w')\n"
        "traceml.log_params({'lr': 0.1, 'name': 'a'})\n"
        "for step in range(1500):\n"
        "    take_steps(1)\n"
        "    traceml.log_metrics({'loss': 1 / (step + 1)}, step=step)\n"
        "    with traceml.trace_time('pause'):\n"
        "        time.sleep(0.001)\n"
        "from pathlib import Path\n"
        "while not any('pid' in p.read_text() for p in Path('logs').glob('*/samples.jsonl')):\n"
        "    time.sleep(0.05)\n"  # until the agent has seen the process
        "traceml.log_artifact('weights')\n"
    )
    done = run_traceml(["run", "train.py"], tmp_path, script)
    before, text = done.summary, (done.folder / "final_summary.txt").read_text()
    assert done.steps == 1500
    assert len(before["process"]["groups"]["rows"]) == 1
    for name in ("final_summary.json", "final_summary.txt"):
        (done.folder / name).unlink()
    recovered = run_traceml(["recover", done.folder.name], tmp_path)
    assert recovered.status == 0
    _assert_equal(recovered.summary, before, "summary")
    assert (done.folder / "final_summary.txt").read_text() == text


def _assert_equal(found: Any, expected: Any, where: str) -> None:
    """Equal, and if not, where."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name in expected:
            _assert_equal(found[name], expected[name], f"{where}.{name}")
    else:
        assert found == expected, where


def test_a_run_that_is_going_on_is_neither_recovered_nor_overwritten(tmp_path: Path) -> None:
    with started([*RUN, "--run-name", "a"], tmp_path, WAITS) as running:
        running.wait_for("ready")
        recovered = run_traceml(["recover", "a"], tmp_path)
        overwritten = run_traceml(["run", "train.py", "--run-name", "a", "--overwrite"], tmp_path)
        (tmp_path / "go").touch()
        done = running.finish()
    for refused in (recovered, overwritten):
        assert refused.status == 2
        (line,) = refused.lines_of_ours()
        assert "is still going on" in line
    assert (done.status, done.steps) == (0, 10)
    done.assert_nothing_is_left()


def test_recovering_beside_a_trainer_that_lives_takes_nothing_from_it(tmp_path: Path) -> None:
    """Launcher and agent are gone, the training goes on: its ring must stay."""
    script = "import signal\nsignal.signal(15, signal.SIG_IGN)\n" + WAITS
    with started(RUN, tmp_path, script) as running:
        running.wait_for("ready")
        agent = _follows_rings(running)
        os.kill(running.pid, signal.SIGSTOP)
        kill(agent)
        running.send(signal.SIGKILL)
        half = running.finish()
        assert run_traceml(["recover", half.folder], tmp_path).steps == 5
        assert len(half.rings()) == 1
        (tmp_path / "go").touch()
        half.wait_until_none_is_left()
        whole = run_traceml(["recover", half.folder], tmp_path)
        assert whole.steps == 10
        whole.assert_nothing_is_left()


def _recover(folder: Path) -> Finished:
    return run_traceml(["recover", folder], folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(lambda f: (f / "run.json").unlink(), "there is no run", id="no manifest"),
        pytest.param(
            lambda f: (f / "run.json").write_text("{"), "run.json is damaged", id="half a manifest"
        ),
        pytest.param(
            lambda f: (f / "run.json").write_text("[]"), "run.json is damaged", id="another thing"
        ),
    ],
)
def test_what_cannot_be_recovered_is_said_in_one_line(
    tmp_path: Path, damage: Any, words: str
) -> None:
    run_traceml(["run", "train.py"], tmp_path, "")
    (folder,) = (tmp_path / "logs").iterdir()
    damage(folder)
    done = _recover(folder)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith("traceml recover: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_damaged_record_file_is_passed_over_and_said(tmp_path: Path) -> None:
    done = run_traceml(["run", "train.py"], tmp_path, STEPS + "take_steps(5)")
    (steps,) = done.folder.glob("rank-*.steps")
    shutil.copy(steps, steps.with_name("rank-1-1.0000.steps"))
    steps.write_bytes(b"not a record file")
    recovered = _recover(done.folder)
    assert recovered.status == 0
    summary = read_summary(done.folder)
    assert summary["step_time"]["metadata"]["training_total_steps"] == 5
    (note,) = summary["tracer"]["notes"]
    assert steps.name in note
