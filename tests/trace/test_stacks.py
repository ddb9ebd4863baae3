"""The signal for stacks is taken only where nobody else has it."""

import subprocess
import sys

import pytest

BEGIN = """\
import ctypes, os, signal, sys
from pathlib import Path
from traceml.model.failure import STACKS_SIGNAL_ABOVE_FIRST
from traceml.trace.stacks import answer_with_stacks

number = signal.SIGRTMIN + STACKS_SIGNAL_ABOVE_FIRST
libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
IGNORED = 1
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux says who handles a signal")


def answers(tmp_path, script):
    """What a process prints that does something first; it needs no torch."""
    command = [sys.executable, "-c", BEGIN + script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param("signal.signal(number, print)", id="a handler in Python"),
        pytest.param("libc.signal(number, ctypes.cast(libc.abs, ctypes.c_void_p))", id="in C"),
        pytest.param("libc.signal(number, IGNORED)", id="ignored"),
    ],
)
def test_a_signal_that_somebody_has_taken_stays_theirs(tmp_path, taken):
    script = f"{taken}\nprint(answer_with_stacks(Path('stacks')) is None)"
    assert answers(tmp_path, script) == ["True"]
    assert not (tmp_path / "stacks").exists()


def test_a_free_signal_is_answered(tmp_path):
    script = "kept = answer_with_stacks(Path('stacks'))\nos.kill(os.getpid(), number)"
    answers(tmp_path, script)
    assert 'File "<string>", line' in (tmp_path / "stacks").read_text()


def test_a_forked_child_answers_in_a_file_of_its_own(tmp_path):
    script = (
        "kept = answer_with_stacks(Path('parent'))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    own = answer_with_stacks(Path('child'))\n"
        "    os.kill(os.getpid(), number)\n"
        "    os._exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert answers(tmp_path, script) == ["0"]
    assert "line" in (tmp_path / "child").read_text()
    assert "line" not in (tmp_path / "parent").read_text()


ALLOW = """\
import os, socket
from traceml.trace import stacks

allowed = []
class Libc:
    def __init__(self, name): pass
    def prctl(self, *arguments):
        allowed.append(arguments)
        return 0
ctypes.CDLL = Libc
stacks._YAMA = Path("scope")
Path("marks").mkdir()
"""


@pytest.mark.parametrize(
    ("scope", "agent", "expected"),
    [
        pytest.param("1", "f'77 {socket.gethostname()}'", "77", id="Yama asks for it"),
        pytest.param("0", "f'77 {socket.gethostname()}'", "none", id="everybody may"),
        pytest.param("2", "f'77 {socket.gethostname()}'", "none", id="nobody may"),
        pytest.param("1", "'77 elsewhere'", "none", id="an agent on another machine"),
        pytest.param("1", "''", "none", id="no agent"),
        pytest.param(None, "f'77 {socket.gethostname()}'", "none", id="no Yama"),
    ],
)
def test_the_agent_is_allowed_to_look_only_where_that_is_needed(tmp_path, scope, agent, expected):
    if scope is not None:
        (tmp_path / "scope").write_text(f"{scope}\n")
    script = (
        f"{ALLOW}\nPath('marks/agent').write_text({agent})\n"
        "said = stacks.let_agent_look(Path('.'))\n"
        "assert said == bool(allowed)\n"
        "print(allowed[0][1] if allowed else 'none')"
    )
    assert answers(tmp_path, script) == [expected]
