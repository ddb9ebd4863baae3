"""What the workers of a test run do when one of them dies, as in a crash of torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from processes import run

CONFTEST = Path(__file__).with_name("conftest.py")

FINE = "def test_first(): pass\ndef test_second(): pass\n"
DIES = """
import os, pathlib, time

def test_that_kills_its_worker():
    died = pathlib.Path(__file__).with_name("died")
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), 9)

def test_after_it(): pass
def test_at_the_end(): pass
"""


@pytest.mark.slow
def test_a_worker_that_dies_holds_no_test_run_up(tmp_path: Path) -> None:
    """Also one that has finished other files before, when the other workers have nothing left."""
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    for name in ("test_a.py", "test_b.py", "test_c.py"):
        (tmp_path / name).write_text(FINE)
    (tmp_path / "test_d.py").write_text(DIES)
    finished = run(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", str(tmp_path)],
        tmp_path,
        env={**os.environ, "PYTHONPATH": str(CONFTEST.parent)},
    )
    assert finished.status == 1, finished.stderr
    assert "1 failed, 9 passed" in finished.stdout, finished.stdout
