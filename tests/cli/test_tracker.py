"""The process that logs to a tracker: what is printed there reaches the agent's log masked."""

from __future__ import annotations

import subprocess

from processes import PYTHON

PRINTS = """\
import atexit, os, subprocess, sys
from traceml.cli import tracker
tracker._LAST_OUTPUT_S = 120.0
tracker.mask_output()
atexit.register(print, "at exit: http://me:hunter2@127.0.0.1:9")
print("a package: http://me:hunter2@127.0.0.1:9")
print("password=hunter2, and no end of line", end="", file=sys.stderr)
subprocess.run(["echo", "; a child: http://me:hunter2@127.0.0.1:9"])
raise ValueError("http://me:hunter2@127.0.0.1:9")
"""


def test_what_is_printed_there_is_masked_and_nothing_is_lost() -> None:
    done = subprocess.run([PYTHON, "-c", PRINTS], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert "hunter2" not in done.stderr
    for words in ("a package: ", "and no end of line", "a child: ", "ValueError: ", "at exit: "):
        assert words in done.stderr
    assert done.stderr.count("127.0.0.1:9") == 4
