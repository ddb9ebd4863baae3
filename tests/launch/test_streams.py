"""The script sees the streams, terminal, environment and folder it would have without us."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from processes import (
    PYTHON,
    STEPS,
    TERMINAL_COLUMNS,
    TERMINAL_ROWS,
    TRACEML,
    in_terminal,
    marked_environment,
    run,
    run_traceml,
    started,
    wait_until,
)

SUMMARY = "--mode=summary"
KEPT = pytest.mark.parametrize(
    "option", [(SUMMARY,), (SUMMARY, "--save-output")], ids=["as it is", "kept"]
)
SAVED = [TRACEML, "run", SUMMARY, "--save-output", "train.py"]

LOOK = """\
import json, os, signal, sys
seen = {
    "argv": sys.argv,
    "cwd": os.getcwd(),
    "path": sys.path,
    "stdin": sys.stdin.read(),
    "environment": dict(os.environ),
    "signals": [str(signal.getsignal(number)) for number in range(1, 32)],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "umask": os.umask(0o22),
}
json.dump(seen, open("seen.json", "w"))
"""


@KEPT
def test_the_script_sees_the_same_world(tmp_path: Path, option: tuple[str, ...]) -> None:
    words = ["train.py", "--args", "--lr", "0.1"]
    run_traceml(["run", *option, *words], tmp_path, LOOK, stdin=b"a\nb\n")
    ours = json.loads((tmp_path / "seen.json").read_text())
    run([PYTHON, "train.py", "--lr", "0.1"], tmp_path, stdin=b"a\nb\n")
    plain = json.loads((tmp_path / "seen.json").read_text())
    inject = ours["environment"].pop("PYTHONPATH")
    assert inject.endswith("traceml/trace/inject")
    for environment in (ours["environment"], plain["environment"]):
        for name in [name for name in environment if name.startswith("TRACEML_")]:
            del environment[name]
    assert ours == plain


def test_the_users_python_path_is_kept_behind_ours(tmp_path: Path) -> None:
    script = "import sys, os; print(sys.path); print(os.environ['PYTHONPATH'])"
    done = run_traceml(["run", "train.py"], tmp_path, script, env={"PYTHONPATH": "/x:/y"})
    plain = run([PYTHON, "train.py"], tmp_path, env={"PYTHONPATH": "/x:/y"})
    path, variable = done.stdout.splitlines()
    assert path == plain.stdout.splitlines()[0]
    assert variable.endswith(":/x:/y")


def test_descriptors_that_the_shell_opened_reach_the_script(tmp_path: Path) -> None:
    """Process substitution, job servers and the like pass open files by their number."""
    script = "import os; print(os.read(7, 100).decode())"
    (tmp_path / "train.py").write_text(script)
    done = run(["sh", "-c", f"{TRACEML} run train.py 7< train.py"], tmp_path)
    assert (done.status, done.stdout) == (0, script + "\n")


@KEPT
def test_streams_that_are_closed_stay_closed(tmp_path: Path, option: tuple[str, ...]) -> None:
    script = "import sys; open('seen', 'w').write(repr([sys.stdin, sys.stdout, sys.stderr]))"
    (tmp_path / "train.py").write_text(script)
    words = " ".join(["run", *option, "train.py", "<&- >&- 2>&-"])
    done = run(["sh", "-c", f"{TRACEML} {words}"], tmp_path)
    assert done.status == 0
    assert (tmp_path / "seen").read_text() == "[None, None, None]"
    assert done.summary["primary_diagnosis"]["kind"] == "NO_DATA"


PRINT = """\
import os, sys
for number in range(200):
    os.write(1, b"out %d \\xff\\r\\n" % number)
    os.write(2, b"err %d\\t" % number)
"""


def test_kept_output_is_the_scripts_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PRINT)
    plain = subprocess.run([PYTHON, "train.py"], cwd=tmp_path, capture_output=True, check=True)
    with started([TRACEML, "run", "--save-output", "train.py"], tmp_path) as running:
        done = running.process.wait()
        shown_out = running.stdout_path.read_bytes()
        shown_err = running.stderr_path.read_bytes()
    assert done == 0
    assert shown_out == plain.stdout
    assert shown_err.startswith(plain.stderr)  # the summary follows
    kept = (running.folder / "output.log").read_bytes()
    assert sorted(kept) == sorted(plain.stdout + plain.stderr)
    assert kept.startswith((b"out 0 \xff\r\n", b"err 0\t"))
    running.assert_nothing_is_left()


def test_streams_that_go_to_one_place_are_kept_in_order(tmp_path: Path) -> None:
    """Two pipes cannot keep the order between them; one terminal can."""
    with in_terminal(SAVED, tmp_path, PRINT) as terminal:
        assert terminal.finish().status == 0
    expected = b"".join(b"out %d \xff\r\nerr %d\t" % (n, n) for n in range(200))
    assert (terminal.folder / "output.log").read_bytes() == expected


def test_a_slow_reader_gets_everything(tmp_path: Path) -> None:
    """The script is long gone when its last output is read: it must not be lost."""
    (tmp_path / "train.py").write_text("print('x' * 1_000_000, flush=True); open('done', 'w')")
    process = subprocess.Popen(
        [TRACEML, "run", "--save-output", "train.py"],
        cwd=tmp_path,
        env=marked_environment("slow"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    content = process.stdout.read(900_000)
    wait_until((tmp_path / "done").exists, "the script has printed everything")
    content += process.stdout.read()
    assert process.wait() == 0
    assert content == b"x" * 1_000_000 + b"\n"


def test_of_much_output_the_last_is_kept(tmp_path: Path) -> None:
    """More than a pipe holds, so that it comes in many pieces."""
    (tmp_path / "train.py").write_text("for n in range(50_000): print(f'line {n:05}')")
    launcher = (
        "import sys; from traceml.launch import kept_output; kept_output.MAX_FILE_BYTES = 2_000\n"
        "from traceml.cli import main\n"
        "sys.exit(main(['run', '--save-output', '--run-name', 'a', 'train.py']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", launcher], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stderr.count("the script prints a lot") == 1
    assert len(done.stdout.splitlines()) == 50_000  # the user has seen it all
    kept = [tmp_path / "logs" / "a" / name for name in ("output.earlier.log", "output.log")]
    text = "".join(file.read_text() for file in kept)
    assert done.stdout.endswith(text) and len(text) >= 2_000


def test_a_grandchild_that_keeps_the_stream_does_not_hold_up_the_end(tmp_path: Path) -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '300']).pid, flush=True)"
    with started([TRACEML, "run", "--save-output", "train.py"], tmp_path, script) as running:
        done = running.finish()
        assert done.status == 0
        (left,) = done.left()
        assert left.pid == int(done.stdout)  # the user's own, and alive as without us


@pytest.mark.parametrize("pause_s", [0.1, 0.0], ids=["now and then", "all the time"])
def test_a_grandchild_that_talks_does_not_hold_up_the_end(tmp_path: Path, pause_s: float) -> None:
    talk = f"import time\nwhile True: print('talk', flush=True); time.sleep({pause_s})"
    script = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {talk!r}])\n"
        "print('last words', flush=True)\nraise SystemExit(3)\n"
    )
    with started([TRACEML, "run", "--save-output", "train.py"], tmp_path, script) as running:
        done = running.finish()
        assert done.status == 3
        assert "last words" in done.stdout


TTY = """\
import json, os, sys
assert os.getpgrp() == os.tcgetpgrp(0)  # in the foreground: it may read, and Ctrl-C reaches it
seen = [os.isatty(n) for n in (0, 1, 2)] + list(os.get_terminal_size(1))
json.dump(seen, open("tty.json", "w"))
print("on the screen")
"""


@KEPT
def test_under_a_terminal_all_three_are_one(tmp_path: Path, option: tuple[str, ...]) -> None:
    with in_terminal([TRACEML, "run", *option, "train.py"], tmp_path, TTY) as terminal:
        done = terminal.finish()
    assert done.status == 0
    seen = json.loads((tmp_path / "tty.json").read_text())
    assert seen == [True, True, True, TERMINAL_COLUMNS, TERMINAL_ROWS]
    assert "on the screen\r\n" in done.stdout
    assert "Verdict  NO DATA" in done.stdout
    if "--save-output" in option:
        assert (done.folder / "output.log").read_bytes() == b"on the screen\n"
    done.assert_nothing_is_left()


@KEPT
def test_only_the_redirected_stream_is_no_terminal(tmp_path: Path, option: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(TTY.replace("get_terminal_size(1)", "get_terminal_size(2)"))
    words = " ".join([TRACEML, "run", *option, "train.py", ">", "out"])
    with in_terminal(["sh", "-c", words], tmp_path) as terminal:
        assert terminal.finish().status == 0
    assert json.loads((tmp_path / "tty.json").read_text())[:3] == [True, False, True]
    assert (tmp_path / "out").read_text() == "on the screen\n"


def test_a_terminal_that_changes_its_size_tells_the_script(tmp_path: Path) -> None:
    script = """\
import os, time
open("ready", "w").close()
deadline = time.monotonic() + 30  # our own copy of the size comes a moment after the terminal's
while os.get_terminal_size(1).columns != 99 and time.monotonic() < deadline:
    time.sleep(0.01)
open("size", "w").write(str(os.get_terminal_size(1).columns))
"""
    with in_terminal(SAVED, tmp_path, script) as terminal:
        terminal.wait_for("ready")
        terminal.resize(rows=20, columns=99)
        assert terminal.finish().status == 0
    assert (tmp_path / "size").read_text() == "99"


def test_a_script_can_ask_a_question(tmp_path: Path) -> None:
    script = "open('asks', 'w').close(); open('answer', 'w').write(input('name? '))"
    with in_terminal(SAVED, tmp_path, script) as terminal:
        terminal.wait_for("asks")
        terminal.press(b"Ada\n")
        assert terminal.finish().status == 0
    assert (tmp_path / "answer").read_text() == "Ada"


ENDLESS = """\
import sys
number = 0
while True:
    print("line", number, flush=True)
    number += 1
"""


@pytest.mark.parametrize(
    "pipe",
    [
        pytest.param("{traceml} run {option} train.py | head -1", id="stdout"),
        pytest.param("{traceml} run {option} train.py 2>&1 | head -1", id="both"),
    ],
)
@KEPT
def test_a_reader_that_leaves_ends_the_script_as_without_us(
    tmp_path: Path, pipe: str, option: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(STEPS + "take_steps(3)\n" + ENDLESS)
    plain = run(["bash", "-c", f"{PYTHON} train.py | head -1; echo ${{PIPESTATUS[0]}}"], tmp_path)
    shell = pipe.format(traceml=TRACEML, option=" ".join(option))
    done = run(["bash", "-c", f"{shell}; echo ${{PIPESTATUS[0]}}"], tmp_path)
    assert done.stdout == plain.stdout
    first, status = done.stdout.splitlines()
    assert first == "line 0"
    assert done.summary["exit_status"] == int(status)
    assert done.steps == 3
    done.assert_nothing_is_left()


@KEPT
def test_a_program_that_dies_of_its_reader_says_so(tmp_path: Path, option: tuple[str, ...]) -> None:
    shell = f"{TRACEML} run {' '.join(option)} -- yes | head -1; echo ${{PIPESTATUS[0]}}"
    done = run(["bash", "-c", shell], tmp_path)
    assert done.stdout == "y\n141\n"
    done.assert_nothing_is_left()


def test_nobody_listening_to_stderr_changes_no_status(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; sys.exit(4)")
    shell = f"{{ {TRACEML} run train.py; echo $? > status; }} 2>&1 | true; wait"
    run(["bash", "-c", shell], tmp_path)
    status = tmp_path / "status"
    wait_until(lambda: status.exists() and status.read_text(), "the launcher has ended")
    assert status.read_text() == "4\n"
