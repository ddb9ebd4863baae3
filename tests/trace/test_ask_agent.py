"""`traceml.summary()` and `final_summary()` from inside the training process."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from processes import (
    PATIENT,
    PYTHON,
    STEPS,
    TRACEML,
    is_alive,
    kill,
    run,
    run_traceml,
    started,
    wait_until,
)
from traceml.model.environment import RUN_FOLDER
from traceml.trace import ask_agent

ASKS = (PATIENT + STEPS) + (
    "import json, traceml\n"
    "take_steps(5)\nfirst = traceml.summary()\n"
    "take_steps(5)\nsecond = traceml.summary()\nwhole = traceml.final_summary()\n"
    "print(json.dumps([first, second, whole]))\n"
    "take_steps(5)\n"
)


def test_the_run_so_far_is_told_whenever_it_is_asked_for(tmp_path: Path) -> None:
    done = run_traceml(["run", "train.py"], tmp_path, ASKS)
    first, second, whole = json.loads(done.stdout)
    assert (first["traceml/steps"], second["traceml/steps"]) == (5, 10)
    assert all(isinstance(value, (int, float)) for value in second.values())
    assert whole["step_time"]["metadata"]["training_total_steps"] == 10
    assert whole["meta"]["run_name"] == done.folder.name
    assert done.steps == 15
    assert list(done.folder.glob("summary-*")) == []


def test_without_a_run_the_answer_is_empty_and_at_once(tmp_path: Path) -> None:
    script = "import traceml; print(traceml.summary(), traceml.final_summary())"
    done = run([PYTHON, "-c", script], tmp_path)
    assert (done.stdout, done.stderr) == ("{} {}\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["gone", "a file"])
def test_a_run_folder_that_is_not_there_is_an_empty_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path / place))
    assert ask_agent.summary() == {}
    assert ask_agent.final_summary() == {}


def test_a_dead_agent_is_waited_for_no_longer_than_agreed(tmp_path: Path) -> None:
    """Launcher and agent are stopped for good: nobody answers, and nobody starts another agent.

    How long is agreed is shown below, by a clock that no busy machine delays.
    """
    script = (
        "import time, traceml\n"
        "open('ready', 'w').close()\n"
        "while not __import__('os').path.exists('go'): time.sleep(0.01)\n"
        "began = time.monotonic()\n"
        "print(traceml.summary(), time.monotonic() - began < 60)\n"
    )
    with started([TRACEML, "run", "train.py"], tmp_path, script) as running:
        running.wait_for("ready")
        agent, training = running.agent(), running.training()
        running.send(signal.SIGSTOP)
        kill(agent)
        (tmp_path / "go").touch()
        wait_until(lambda: not is_alive(training), "the script has ended")
        running.send(signal.SIGCONT)
        done = running.finish()
    assert (done.status, done.stdout) == (0, "{} True\n")
    assert list(done.folder.glob("summary-*")) == []


def test_an_answer_is_waited_for_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's part is played here: the answer is written, then the request vanishes."""
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))

    def answer(seconds: float) -> None:
        (request,) = tmp_path.glob("summary-request-*")
        (tmp_path / "summary-answer.json").write_text('{"traceml/steps": 3}')
        request.unlink()

    monkeypatch.setattr(time, "sleep", answer)
    assert ask_agent.summary() == {"traceml/steps": 3}


def test_nobody_answering_takes_the_request_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    clock = iter(float(second) for second in range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert ask_agent.final_summary() == {}
    assert list(tmp_path.iterdir()) == []
    assert next(clock) <= ask_agent.PATIENCE_S + 3
