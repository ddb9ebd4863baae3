"""Signals reach the script as they would without us: once, as what they are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from processes import PYTHON, STEPS, TRACEML, Running, in_terminal, started, wait_until

SUMMARY = "--mode=summary"
KEPT = pytest.mark.parametrize(
    "option", [(SUMMARY,), (SUMMARY, "--save-output")], ids=["as it is", "kept"]
)

CHECKPOINTS = (
    STEPS
    + """\
import time
take_steps(5)
interrupts = 0
try:
    open("ready", "w").close()
    time.sleep(300)
except KeyboardInterrupt:
    interrupts += 1
    try:
        time.sleep(0.5)  # writing the checkpoint; a second interrupt would end it
        open("checkpoint", "w").write("saved")
    except KeyboardInterrupt:
        interrupts += 1
    open("interrupts", "w").write(str(interrupts))
    raise
"""
)


@KEPT
def test_ctrl_c_is_one_keyboard_interrupt(tmp_path: Path, option: tuple[str, ...]) -> None:
    with in_terminal([TRACEML, "run", *option, "train.py"], tmp_path, CHECKPOINTS) as terminal:
        terminal.wait_for("ready")
        terminal.press(b"\x03")
        done = terminal.finish()
    assert (tmp_path / "interrupts").read_text() == "1"
    assert (tmp_path / "checkpoint").read_text() == "saved"
    assert done.status == 130
    assert done.stdout.count("KeyboardInterrupt") == 1  # the script's own traceback, none of ours
    assert done.steps == 5
    assert done.summary["exit_status"] == 130
    done.assert_nothing_is_left()


@KEPT
def test_a_closed_terminal_tells_the_script(tmp_path: Path, option: tuple[str, ...]) -> None:
    """Without a shell we lead the terminal's session, and are told alone (`ssh -t`, `tmux new`)."""
    script = STEPS + (
        "import signal, sys, time\ntake_steps(5)\n"
        "def leave(*_):\n    open('hung-up', 'a').write('x')\n    sys.exit(3)\n"
        "signal.signal(signal.SIGHUP, leave)\nopen('ready', 'w').close()\ntime.sleep(300)\n"
    )
    with in_terminal([TRACEML, "run", *option, "train.py"], tmp_path, script) as terminal:
        terminal.wait_for("ready")
        terminal.hang_up()
        done = terminal.finish()
        done.wait_until_none_is_left()
    assert (tmp_path / "hung-up").read_text() == "x"
    assert (done.steps, done.summary["exit_status"]) == (5, 3)


def test_ctrl_c_on_a_program_that_dies_of_it(tmp_path: Path) -> None:
    """The interrupt may be waiting for us still when the program is gone: the summary comes."""
    script = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "open('ready', 'w').close()\ntime.sleep(300)\n"
    )
    with in_terminal([TRACEML, "run", SUMMARY, "train.py"], tmp_path, script) as terminal:
        terminal.wait_for("ready")
        terminal.press(b"\x03")
        done = terminal.finish()
    assert done.status == 130
    assert "Traceback" not in done.stdout
    assert "not waiting" not in done.stdout
    assert done.summary["exit_status"] == 130
    done.assert_nothing_is_left()


def test_ctrl_c_into_tee_leaves_nothing_running(tmp_path: Path) -> None:
    """`tee` dies of the same Ctrl-C, with or without us; the checkpoint is written all the same."""
    (tmp_path / "train.py").write_text(CHECKPOINTS)
    shell = f"{TRACEML} run train.py | tee out; echo ${{PIPESTATUS[0]}} > status"
    with in_terminal(["bash", "-c", shell], tmp_path) as terminal:
        terminal.wait_for("ready")
        terminal.press(b"\x03")
        done = terminal.finish()
    assert (tmp_path / "interrupts").read_text() == "1"
    assert (tmp_path / "checkpoint").read_text() == "saved"
    assert (tmp_path / "status").read_text() == "130\n"
    assert done.steps == 5
    done.assert_nothing_is_left()


def test_output_into_tee_is_whole(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("for number in range(1000): print(number)")
    with started(["bash", "-c", f"{TRACEML} run train.py | tee out"], tmp_path) as running:
        done = running.finish()
    assert done.stdout == (tmp_path / "out").read_text() == "".join(f"{n}\n" for n in range(1000))
    done.assert_nothing_is_left()


def test_ctrl_c_while_the_summary_is_written_does_not_lose_it(tmp_path: Path) -> None:
    """The user may leave; the agent goes on and the summary comes."""
    script = STEPS + "take_steps(5)\nopen('ending', 'w').close()\n"
    with in_terminal([TRACEML, "run", SUMMARY, "train.py"], tmp_path, script) as terminal:
        terminal.wait_for("ending")
        for _ in range(20):
            terminal.press(b"\x03")
        done = terminal.finish()
        done.wait_until_none_is_left()
    assert done.status in (0, 130, -signal.SIGINT)  # by who was doing what when they came
    assert done.summary["exit_status"] in (0, 130)
    assert "traceml/launch" not in done.stdout  # no traceback of ours
    assert done.steps == 5
    done.assert_nothing_is_left()


COUNTS = (
    STEPS
    + """\
import signal, time
seen = []
for name in {names}:
    signal.signal(getattr(signal, name), lambda number, frame: seen.append(number))
take_steps(5)
open("ready", "w").close()
deadline = time.monotonic() + 60
while not seen and time.monotonic() < deadline:
    time.sleep(0.01)
signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
for _ in range(20):  # whatever came a second time is pending by now
    time.sleep(0.01)
seen += signal.sigpending()
open("seen", "w").write(str([int(number) for number in seen]))
"""
)


@pytest.mark.parametrize(
    "name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU"]
)
def test_a_signal_to_the_launcher_alone_reaches_the_script_once(tmp_path: Path, name: str) -> None:
    script = COUNTS.replace("{names}", str([name]))
    with started([TRACEML, "run", "train.py"], tmp_path, script) as running:
        running.wait_for("ready")
        running.send(signal.Signals[name])
        done = running.finish()
    assert (tmp_path / "seen").read_text() == str([signal.Signals[name].value])
    assert done.status == 0
    assert done.steps == 5
    done.assert_nothing_is_left()


def test_a_signal_to_the_whole_group_reaches_the_script_once(tmp_path: Path) -> None:
    """Without a terminal: batch systems and supervisors signal process groups."""
    script = COUNTS.replace("{names}", str(["SIGUSR1"]))
    command = [TRACEML, "run", "train.py"]
    with started(command, tmp_path, script, start_new_session=True) as running:
        running.wait_for("ready")
        os.killpg(running.pid, signal.SIGUSR1)
        done = running.finish()
    assert (tmp_path / "seen").read_text() == str([signal.SIGUSR1.value])
    assert (done.status, done.steps) == (0, 5)
    assert done.summary["failure"] is None  # as Slurm's --signal=USR1@60 warns a job
    done.assert_nothing_is_left()


def test_a_script_that_dies_of_a_signal_to_the_launcher(tmp_path: Path) -> None:
    script = STEPS + "take_steps(5)\nopen('ready', 'w').close()\nimport time; time.sleep(300)"
    with started([TRACEML, "run", "train.py"], tmp_path, script) as running:
        running.wait_for("ready")
        running.send(signal.SIGTERM)
        done = running.finish()
    assert done.status == 143
    assert (done.steps, done.summary["exit_status"]) == (5, 143)
    done.assert_nothing_is_left()


def test_a_disabled_run_passes_signals_on_too(tmp_path: Path) -> None:
    script = COUNTS.replace("take_steps(5)\n", "").replace("{names}", str(["SIGUSR1"]))
    with started([TRACEML, "run", "--disable-traceml", "train.py"], tmp_path, script) as running:
        running.wait_for("ready")
        running.send(signal.SIGUSR1)
        assert running.finish().status == 0
    assert (tmp_path / "seen").read_text() == str([signal.SIGUSR1.value])


def test_signals_the_caller_ignores_stay_ignored(tmp_path: Path) -> None:
    """A job in the background of a shell script ignores Ctrl-C; `nohup` ignores SIGHUP."""
    script = "import signal; print(signal.getsignal(2), signal.getsignal(1), signal.getsignal(17))"
    (tmp_path / "train.py").write_text(script)
    shell = f"trap '' INT HUP; {TRACEML} run train.py"
    with started(["bash", "-c", shell], tmp_path, preexec_fn=_ignore_children) as running:
        done = running.finish()
    assert done.stdout == "1 1 1\n"


def _ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def test_a_caller_that_ignores_its_children_gets_the_status_all_the_same(tmp_path: Path) -> None:
    """An ignored SIGCHLD is inherited, and throws our children's statuses away."""
    command = [TRACEML, "run", "--", "sh", "-c", "exit 6"]
    with started(command, tmp_path, preexec_fn=_ignore_children) as running:
        assert running.finish().status == 6


def test_a_signal_to_every_process_does_not_end_the_agent(tmp_path: Path) -> None:
    """Slurm and systemd signal all processes of a job; the agent outlives the training."""
    script = STEPS + (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "take_steps(5)\nopen('ready', 'w').close()\nimport time; time.sleep(300)"
    )
    with started([TRACEML, "run", "train.py"], tmp_path, script) as running:
        running.wait_for("ready")
        _wait_until_sampled(running)
        agent = running.agent()
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            agent.send_signal(number)
        running.send(signal.SIGTERM)
        done = running.finish()
    assert done.status == 3
    assert done.steps == 5
    assert done.lines_of_ours() == []
    done.assert_nothing_is_left()


def _wait_until_sampled(running: Running) -> None:
    samples = running.folder / "samples.jsonl"
    wait_until(lambda: samples.exists() and samples.stat().st_size > 0, "the agent samples")


def test_ctrl_z_stops_and_fg_goes_on(tmp_path: Path) -> None:
    """A shell with job control stops and continues launcher and script together."""
    script = STEPS + "take_steps(5)\nopen('ready', 'w').close()\nopen(0).readline()\nprint('on')"
    (tmp_path / "train.py").write_text(script)
    shell = (
        f"set -m; {TRACEML} run {SUMMARY} train.py; echo stopped $? > stopped; fg; echo $? > status"
    )
    with in_terminal(["bash", "-mc", shell], tmp_path) as terminal:
        terminal.wait_for("ready")
        terminal.press(b"\x1a")
        terminal.wait_for("stopped")
        terminal.press(b"\n")
        done = terminal.finish()
    assert (tmp_path / "stopped").read_text() == f"stopped {128 + signal.SIGTSTP}\n"
    assert (tmp_path / "status").read_text() == "0\n"
    assert done.steps == 5
    done.assert_nothing_is_left()


LAUNCHER_WITHOUT_SIGTIMEDWAIT = """\
import sys
from traceml.launch import signals
signals._CAN_WAIT = False
from traceml.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_waiting_without_sigtimedwait_passes_signals_on(tmp_path: Path) -> None:
    """macOS knows no `sigtimedwait`: handlers note what came, and nothing is lost."""
    (tmp_path / "launcher.py").write_text(LAUNCHER_WITHOUT_SIGTIMEDWAIT)
    script = COUNTS.replace("{names}", str(["SIGTERM"]))
    command = [PYTHON, "launcher.py", "run", "train.py"]
    with started(command, tmp_path, script, start_new_session=True) as running:
        running.wait_for("ready")
        running.send(signal.SIGTERM)
        done = running.finish()
    assert (tmp_path / "seen").read_text() == str([signal.SIGTERM.value])
    assert (done.status, done.steps) == (0, 5)
    done.assert_nothing_is_left()


def test_ctrl_c_without_sigtimedwait_is_one_interrupt(tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(LAUNCHER_WITHOUT_SIGTIMEDWAIT)
    command = [PYTHON, "launcher.py", "run", SUMMARY, "train.py"]
    with in_terminal(command, tmp_path, CHECKPOINTS) as terminal:
        terminal.wait_for("ready")
        terminal.press(b"\x03")
        done = terminal.finish()
    assert (tmp_path / "interrupts").read_text() == "1"
    assert (done.status, done.steps) == (130, 5)
    done.assert_nothing_is_left()


def test_a_signal_to_the_group_and_to_us_ends_the_run_as_it_should(tmp_path: Path) -> None:
    """`timeout` signals its child, then its whole group."""
    script = STEPS + "take_steps(5)\nopen('ready', 'w').close()\nimport time; time.sleep(300)"
    command = [TRACEML, "run", "train.py"]
    with started(command, tmp_path, script, start_new_session=True) as running:
        running.wait_for("ready")
        running.send(signal.SIGTERM)
        os.killpg(running.pid, signal.SIGTERM)
        done = running.finish()
    assert (done.status, done.steps, done.summary["exit_status"]) == (143, 5, 143)
    done.assert_nothing_is_left()
