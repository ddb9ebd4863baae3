"""`traceml run --mode=cli` in a real terminal: what is seen, typed, interrupted and left behind."""

from __future__ import annotations

import json
import re
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from processes import (
    PYTHON,
    STEPS,
    TRACEML,
    fill,
    in_terminal,
    is_alive,
    kill,
    run_traceml,
    small_disk,
    started,
    wait_until,
)
from screens import Watched

LIVE = [TRACEML, "run", "--mode=cli", "train.py"]
ROWS, COLUMNS = 30, 100

TRAINS = (
    STEPS
    + """\
import os, sys, time
print("the training begins")
done = 0
while not os.path.exists("go"):
    time.sleep(0.02)
    take_steps(1)
    done += 1
    print(f"\\rprogress {done:04d} |", end="", flush=True)
print("\\nthe training ends")
open("ended", "w").close()
"""
)


@contextmanager
def live(
    cwd: Path,
    script: str,
    command: list[str] = LIVE,
    env: Mapping[str, str | None] | None = None,
) -> Iterator[Watched]:
    """A run with its live view, once that is on the screen."""
    with in_terminal(command, cwd, script, env, ROWS, COLUMNS) as terminal:
        watched = Watched(terminal, ROWS, COLUMNS)
        watched.wait_for("? keys", "Output")
        yield watched


def mode_of(folder: Path) -> str:
    mode: str = json.loads((folder / "run.json").read_bytes())["mode"]
    return mode


def view_of(launcher: int) -> psutil.Process:
    """The process that draws."""
    children = psutil.Process(launcher).children()
    (found,) = (process for process in children if "watch" in process.cmdline())
    return found


def progress_in(text: str) -> int:
    """What `TRAINS` says on the screen that it has done."""
    found = re.search(r"progress (\d+)", text)
    return int(found[1]) if found else 0


def test_the_verdict_the_table_and_the_output_are_seen_while_it_trains(tmp_path: Path) -> None:
    with live(tmp_path, TRAINS) as watched:
        watched.wait_for("the training begins", "Input wait", "Mean", "Share of step", "Why")
        begun = progress_in(watched.wait_for("progress"))
        seen = wait_until(
            lambda: text if progress_in(text := watched.text) > begun else None,
            "the output goes on",
        )
        assert seen.count("progress") == 1  # drawn over itself
        (tmp_path / "go").touch()
        done = watched.finish()
    assert done.status == 0
    assert b"the training ends" in (done.folder / "output.log").read_bytes()  # the summary is long
    assert "Where a step goes" in watched.text
    assert "? keys" not in watched.text
    assert mode_of(done.folder) == "cli"
    assert (done.folder / "output.log").read_bytes().startswith(b"the training begins\n")
    done.assert_nothing_is_left()


INTERRUPTED = (
    STEPS
    + """\
import time
take_steps(5)
try:
    print("the training waits", flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    interrupts = 1
    try:
        time.sleep(0.5)  # writing the checkpoint; a second interrupt would end it
    except KeyboardInterrupt:
        interrupts += 1
    open("interrupts", "w").write(str(interrupts))
    raise
"""
)


def test_ctrl_c_is_one_keyboard_interrupt_and_leaves_a_clean_screen(tmp_path: Path) -> None:
    with live(tmp_path, INTERRUPTED) as watched:
        watched.wait_for("the training waits")
        watched.terminal.press(b"\x03")
        done = watched.finish()
    assert (tmp_path / "interrupts").read_text() == "1"
    assert (done.status, done.summary["exit_status"], done.steps) == (130, 130, 5)
    after = done.stdout.rpartition("\x1b[?1049l")[2]
    assert after.count("KeyboardInterrupt") == 1  # the script's own traceback, and then
    assert "Verdict" in after
    assert "traceml/" not in (done.folder / "output.log").read_text()  # no traceback of ours
    done.assert_nothing_is_left()


def test_ctrl_c_before_the_view_is_there_reaches_the_script(tmp_path: Path) -> None:
    waits = "    time.sleep(300)"
    script = INTERRUPTED.replace(waits, f"    open('ready', 'w').close()\n{waits}")
    with in_terminal(LIVE, tmp_path, script, rows=ROWS, columns=COLUMNS) as terminal:
        terminal.wait_for("ready")
        terminal.press(b"\x03")
        done = Watched(terminal, ROWS, COLUMNS).finish()
    assert (tmp_path / "interrupts").read_text() == "1"
    assert (done.status, done.steps) == (130, 5)
    done.assert_nothing_is_left()


ASKS = """\
import os, time
print("the training begins", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
for number in range(3):
    print("line", number, flush=True)
open("answer", "w").write(input("name? "))
"""


@pytest.mark.parametrize("way", ["killed", "left"])
def test_a_view_that_is_gone_gives_the_terminal_back_and_the_output_follows(
    tmp_path: Path, way: str
) -> None:
    with live(tmp_path, ASKS) as watched:
        watched.wait_for("the training begins")
        if way == "killed":
            kill(view_of(watched.terminal.pid))
        else:
            watched.terminal.press(b"q")
        watched.wait_for("training goes on and its output follows")
        watched.assert_shows_the_first_screen()
        (tmp_path / "go").touch()
        watched.wait_for("line 0\nline 1\nline 2\nname?")
        watched.terminal.press(b"Ada\n")
        done = watched.finish()
    assert (tmp_path / "answer").read_text() == "Ada"
    assert watched.text.count("name? Ada") == 1
    assert done.status == 0
    assert (done.folder / "output.log").read_text().count("line 2") == 1
    done.assert_nothing_is_left()


def test_a_secret_is_not_seen_after_the_view_is_gone(tmp_path: Path) -> None:
    script = ASKS.replace("input(", "__import__('getpass').getpass(")
    with live(tmp_path, script) as watched:
        watched.wait_for("the training begins")
        watched.terminal.press(b"q")
        watched.wait_for("training goes on and its output follows")
        (tmp_path / "go").touch()
        watched.wait_for("name?")
        watched.terminal.press(b"sesame\r")
        done = watched.finish()
    assert (tmp_path / "answer").read_text() == "sesame"
    assert "sesame" not in done.stdout
    assert "sesame" not in (done.folder / "output.log").read_text()


def test_without_its_view_a_run_goes_on_in_the_background(tmp_path: Path) -> None:
    """Nobody reads the keyboard there: that would stop the launcher, and then the training."""
    script = """\
import os, time
print("the training begins", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
for number in range(200):
    print("x" * 1000)
print("all is printed", flush=True)
print("got " + input("name? "))
raise SystemExit(3)
"""
    (tmp_path / "train.py").write_text(script)
    shell = ["bash", "--norc", "--noprofile", "-i"]
    with in_terminal(shell, tmp_path, env={"PS1": "$ "}, rows=ROWS, columns=COLUMNS) as terminal:
        watched = Watched(terminal, ROWS, COLUMNS)
        terminal.press(" ".join(LIVE).encode() + b"\n")
        watched.wait_for("? keys", "the training begins")
        terminal.press(b"q")
        watched.wait_for("training goes on and its output follows")
        terminal.press(b"\x1a")
        watched.wait_for("Stopped")
        terminal.press(b"bg\n")
        watched.wait_for("&")
        (tmp_path / "go").touch()
        watched.wait_for("all is printed")
        terminal.press(b"fg\n")
        watched.wait_for("name?")
        wait_until(lambda: not _echoes(terminal.master), "the keyboard is the script's again")
        terminal.press(b"Ada\r")
        watched.wait_for("got Ada", "Verdict")
        terminal.press(b"exit $?\n")
        assert terminal.finish().status == 3


def _echoes(terminal: int) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


def test_ctrl_c_after_the_view_is_gone_is_one_interrupt(tmp_path: Path) -> None:
    with live(tmp_path, INTERRUPTED) as watched:
        watched.wait_for("the training waits")
        watched.terminal.press(b"q")
        watched.wait_for("training goes on")
        watched.terminal.press(b"\x03")
        done = watched.finish()
    assert (tmp_path / "interrupts").read_text() == "1"
    assert (done.status, done.steps) == (130, 5)
    done.assert_nothing_is_left()


def test_a_script_gets_what_is_typed_in_the_view(tmp_path: Path) -> None:
    script = """\
import getpass, sys
name = input("name? ")
secret = getpass.getpass("secret? ")
print("thanks", flush=True)
rest = sys.stdin.read()
open("answers", "w").write(repr((name, secret, rest)))
"""
    with live(tmp_path, script) as watched:
        watched.wait_for("name?")
        watched.terminal.press(b"i")
        watched.wait_for("Enter sends the line")
        watched.terminal.press(b"Ada\r")
        watched.wait_for("name? Ada", "secret?")
        watched.terminal.press(b"sesame")
        watched.wait_for("••••••")
        assert "sesame" not in watched.text
        watched.terminal.press(b"\r")
        watched.wait_for("thanks")
        watched.terminal.press(b"more\r")
        watched.wait_for("more")
        watched.terminal.press(b"\x04")
        assert watched.finish().status == 0
    assert (tmp_path / "answers").read_text() == repr(("Ada", "sesame", "more\n"))
    assert "sesame" not in (watched.terminal.folder / "output.log").read_text()


def test_the_script_has_a_terminal_of_its_own_as_wide_as_its_pane(tmp_path: Path) -> None:
    script = """\
import json, os, time
open("/dev/tty").close()  # prompts for passwords go there
assert os.getpgrp() == os.tcgetpgrp(0)
assert all(os.isatty(stream) for stream in (0, 1, 2))
deadline = time.monotonic() + 60
while not 130 < os.get_terminal_size(1).columns <= 150 and time.monotonic() < deadline:
    time.sleep(0.01)
    if os.get_terminal_size(1).columns < 100:
        open("narrow", "w").close()
open("columns", "w").write(str(os.get_terminal_size(1).columns))
"""
    with live(tmp_path, script) as watched:
        watched.terminal.wait_for("narrow")
        watched.resize(45, 150)
        assert watched.finish().status == 0
    assert 130 < int((tmp_path / "columns").read_text()) <= 150


def test_a_script_does_to_its_processes_what_a_shell_would_let_it(tmp_path: Path) -> None:
    """Have a group of its own, leave something in the background, die of a signal."""
    script = """\
import os, signal, subprocess
os.setpgrp()
assert os.getpgrp() == os.getpid() == os.tcgetpgrp(0)
left = subprocess.Popen(["sleep", "300"])
open("left", "w").write(str(left.pid))
print("last words", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with in_terminal(LIVE, tmp_path, script, rows=ROWS, columns=COLUMNS) as terminal:
        done = Watched(terminal, ROWS, COLUMNS).finish()
        assert (done.status, done.summary["exit_status"]) == (137, 137)
        (left,) = done.left()
        assert left.pid == int((tmp_path / "left").read_text())
    assert "last words" in done.stdout


def test_a_command_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("no program")
    (tmp_path / "program").chmod(0o755)
    command = [TRACEML, "run", "--mode=cli", "--", "./program"]
    with in_terminal(command, tmp_path) as terminal:
        done = terminal.finish()
    assert done.status == 126
    assert "./program could not be started" in done.stdout
    done.assert_nothing_is_left()


def test_a_script_that_closes_its_streams_still_has_its_terminal(tmp_path: Path) -> None:
    script = """\
import os, time
for stream in (0, 1, 2):
    os.close(stream)
time.sleep(0.2)
terminal = os.open("/dev/tty", os.O_RDWR)
for _ in range(100):
    os.write(terminal, b"x" * 1000)  # more than a terminal takes that nobody reads
os.write(terminal, b"\\nlast words\\n")
os._exit(3)
"""
    with in_terminal(LIVE, tmp_path, script, rows=ROWS, columns=COLUMNS) as terminal:
        done = Watched(terminal, ROWS, COLUMNS).finish()
    assert done.status == 3
    assert "last words" in (done.folder / "output.log").read_text()


def test_the_view_follows_the_terminals_size(tmp_path: Path) -> None:
    with live(tmp_path, TRAINS) as watched:
        watched.wait_for("Share of step")
        watched.resize(50, 160)
        wait_until(
            lambda: any(
                "Step time" in one for one in watched.text.splitlines() if "Findings" in one
            ),
            "there are two columns",
        )
        (tmp_path / "go").touch()
        assert watched.finish().status == 0


def test_a_terminal_that_hangs_up_tells_the_script(tmp_path: Path) -> None:
    script = (
        STEPS
        + """\
import signal, sys, time
def leave(*_):
    open("hung-up", "a").write("x")
    print("hung up", flush=True)
    sys.exit(3)
signal.signal(signal.SIGHUP, leave)
take_steps(5)
print("the training waits", flush=True)
time.sleep(300)
"""
    )
    with live(tmp_path, script) as watched:
        watched.wait_for("the training waits")
        watched.terminal.hang_up()
        done = watched.terminal.finish()
        done.wait_until_none_is_left()
    assert (tmp_path / "hung-up").read_text() == "x"
    assert (done.steps, done.summary["exit_status"]) == (5, 3)
    assert (done.folder / "output.log").read_text() == "the training waits\nhung up\n"
    done.assert_nothing_is_left()


def test_a_killed_launcher_ends_the_training_and_the_view(tmp_path: Path) -> None:
    """The training is asked to end, as without a view; it is not hung up on."""
    script = (
        STEPS
        + """\
import signal, sys, time
def leave(*_):
    for _ in range(100):
        print("saved", "x" * 1000)  # more than a terminal takes that nobody reads
    open("terminated", "a").write("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
take_steps(5)
print("the training waits", flush=True)
time.sleep(300)
"""
    )
    shell = ["bash", "-c", f"{' '.join(LIVE)}; read"]
    with live(tmp_path, script, shell) as watched:
        watched.wait_for("the training waits")
        (launcher,) = psutil.Process(watched.terminal.pid).children()
        view = view_of(launcher.pid)
        launcher.kill()
        wait_until(lambda: watched.text and not is_alive(view), "the view has left")
        watched.assert_is_as_it_was()
        watched.terminal.press(b"\n")
        done = watched.finish()
        done.wait_until_none_is_left()
    assert (tmp_path / "terminated").read_text() == "x"
    assert (done.folder / "output.log").read_text().count("saved") == 100
    assert done.steps == 5
    done.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("program", "status"),
    [("raise SystemExit(3)", 3), ("import time; time.sleep(300)", None)],
    ids=["ends at once", "does not answer"],
)
def test_a_view_that_does_not_work_costs_nothing_but_itself(
    tmp_path: Path, program: str, status: int | None
) -> None:
    launcher = (
        "import sys\nfrom traceml.launch import views\n"
        f"views._PROGRAM, views.LEAVING_S = {program!r}, 0.2\n"
        "from traceml.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    (tmp_path / "launcher.py").write_text(launcher)
    script = STEPS + (
        "import os, time\ntake_steps(5)\nopen('ready', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nprint('trained')\n"
    )
    command = [PYTHON, "launcher.py", "run", "--mode=cli", "train.py"]
    with in_terminal(command, tmp_path, script) as terminal:
        terminal.wait_for("ready")
        if status is not None:  # its end is noticed while the training runs
            wait_until(lambda: terminal.read() or b"exited" in terminal.shown, "the view has ended")
        (tmp_path / "go").touch()
        done = terminal.finish()
    assert (done.status, done.steps) == (0, 5)
    assert done.stdout.count("trained") == 1
    assert ("exited (status 3)" in done.stdout) == (status == 3)
    done.assert_nothing_is_left()


@pytest.mark.parametrize("answers", [True, False], ids=["that leaves", "that does not answer"])
def test_output_that_cannot_be_kept_is_shown_instead_of_a_view(
    tmp_path: Path, answers: bool
) -> None:
    script = STEPS + (
        "import os, time\ntake_steps(5)\nprint('the training begins', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
        "for number in range(2000): print('line', number, 'x' * 1000)\nprint('trained')\n"
    )
    with small_disk(tmp_path / "disk", 1024) as disk:
        command = [*LIVE, "--logs-dir", str(disk)]
        with live(tmp_path, script, command) as watched:
            watched.wait_for("the training begins")
            if not answers:
                view_of(watched.terminal.pid).suspend()
            (tmp_path / "go").touch()
            done = watched.finish()
    assert done.status == 0
    assert "the output is no longer kept" in done.stdout
    assert "trained" in done.stdout


def test_last_words_that_cannot_be_kept_are_shown(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1024) as disk:
        command = [*LIVE, "--logs-dir", str(disk)]
        with live(
            tmp_path, ASKS.partition("for number")[0] + "print('last words')", command
        ) as watched:
            watched.wait_for("the training begins")
            fill(disk)
            (tmp_path / "go").touch()
            done = watched.finish()
    assert done.status == 0
    assert "last words" in watched.text


SEES_TERMINALS = "import os; print([os.isatty(stream) for stream in (0, 1, 2)])"


@pytest.mark.parametrize(
    ("shell", "env"),
    [
        ("{traceml} run train.py | cat", {}),
        ("{traceml} run train.py < /dev/null", {}),
        ("{traceml} run train.py", {"TERM": "dumb"}),
        ("{traceml} run train.py", {"CI": "true"}),
        ("{traceml} run train.py", {"JPY_PARENT_PID": "1"}),
        ("set -m; {traceml} run train.py & wait", {}),
        ("{traceml} run --mode=cli train.py | cat", {}),
    ],
    ids=[
        "piped",
        "no input",
        "a dumb terminal",
        "CI",
        "a notebook's cell",
        "in the background",
        "piped, and asked for",
    ],
)
def test_where_nobody_can_look_there_is_no_view(
    tmp_path: Path, shell: str, env: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SEES_TERMINALS)
    with in_terminal(["bash", "-c", shell.format(traceml=TRACEML)], tmp_path, env=env) as terminal:
        done = terminal.finish()
    assert done.status == 0
    assert mode_of(done.folder) == "summary"
    assert "\x1b[?1049h" not in done.stdout
    refusal = "--mode=cli is not possible here: stdout is no terminal"
    assert (refusal in done.stdout) == ("=cli" in shell)


def test_a_terminal_gets_the_view_by_itself(tmp_path: Path) -> None:
    with live(tmp_path, TRAINS, [TRACEML, "run", "train.py"]) as watched:
        (tmp_path / "go").touch()
        assert watched.finish().status == 0


def test_a_terminal_without_colours_gets_none(tmp_path: Path) -> None:
    with live(tmp_path, TRAINS, env={"NO_COLOR": "1", "COLORTERM": "truecolor"}) as watched:
        watched.wait_for("Share of step", "progress")
        (tmp_path / "go").touch()
        done = watched.finish()
    looks = re.findall(r"\x1b\[([\d;]*)m", done.stdout)
    parameters = {int(one) for look in looks for one in look.split(";") if one}
    assert not parameters & {38, 48, *range(30, 38), *range(40, 48), *range(90, 108)}


WITHOUT_TEXTUAL = """\
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *_: None if name == "textual" else find(name)
from traceml.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_textual_the_run_goes_on_and_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "without.py").write_text(WITHOUT_TEXTUAL)
    command = [PYTHON, "without.py", "run", "--mode=cli", "train.py"]
    with in_terminal(command, tmp_path, "print('trained')") as terminal:
        done = terminal.finish()
    assert done.status == 0
    assert "pip install 'traceml-insight[tui]'" in done.stdout
    assert mode_of(done.folder) == "summary"


# Watching from another terminal


@contextmanager
def watching(cwd: Path, name: str) -> Iterator[Watched]:
    command = [TRACEML, "watch", name]
    with in_terminal(command, cwd, rows=ROWS, columns=COLUMNS) as terminal:
        yield Watched(terminal, ROWS, COLUMNS)


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_a_run_is_watched_from_another_terminal_and_left_to_itself(
    tmp_path: Path, key: bytes
) -> None:
    command = [TRACEML, "run", "--save-output", "--run-name", "one", "train.py"]
    with started(command, tmp_path, TRAINS) as running:
        wait_until(lambda: running.folders, "the run is there")
        with watching(tmp_path, "one") as watched:
            watched.wait_for("one", "Share of step", "progress")
            watched.terminal.press(key)
            assert watched.finish().status == 0
        assert running.process.poll() is None
        (tmp_path / "go").touch()
        assert running.finish().status == 0


def test_a_watched_run_that_ends_leaves_its_summary(tmp_path: Path) -> None:
    with started([TRACEML, "run", "--run-name", "one", "train.py"], tmp_path, TRAINS) as running:
        wait_until(lambda: running.folders, "the run is there")
        with watching(tmp_path, "one") as watched:
            watched.wait_for("Share of step", "The output is not kept")
            (tmp_path / "go").touch()
            done = watched.finish()
        assert done.status == 0
        assert "Where a step goes" in done.stdout
        assert running.finish().status == 0


def test_a_watched_run_that_is_deleted_says_so(tmp_path: Path) -> None:
    with started([TRACEML, "run", "--run-name", "one", "train.py"], tmp_path, TRAINS) as running:
        wait_until(lambda: running.folders, "the run is there")
        with watching(tmp_path, "one") as watched:
            watched.wait_for("Share of step")
            (tmp_path / "logs" / "one").rename(tmp_path / "elsewhere")
            done = watched.finish()
        assert done.status == 2
        assert "was deleted" in watched.text
        assert "Traceback" not in done.stdout
        (tmp_path / "go").touch()
        assert running.finish().status == 0


def test_a_finished_run_is_shown_as_view_does(tmp_path: Path) -> None:
    run_traceml(["run", "--run-name", "one", "train.py"], tmp_path, STEPS + "take_steps(5)")
    done = run_traceml(["watch", "one"], tmp_path)
    assert done.status == 0
    assert done.stdout == run_traceml(["view", "one"], tmp_path).stdout
    assert done.lines_of_ours() == ["traceml: the run one is over; this is its summary"]


def test_watching_without_a_terminal_is_one_line(tmp_path: Path) -> None:
    with started([TRACEML, "run", "--run-name", "one", "train.py"], tmp_path, TRAINS) as running:
        wait_until(lambda: running.folders, "the run is there")
        done = run_traceml(["watch", "one"], tmp_path)
        assert (done.status, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert "no terminal" in done.stderr and "traceml view one" in done.stderr
        (tmp_path / "go").touch()
        assert running.finish().status == 0
