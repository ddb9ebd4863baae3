"""Who holds a run, and who only looks whether somebody does."""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from traceml.store import folder as folders


def test_a_run_is_going_on_while_somebody_holds_it(tmp_path: Path) -> None:
    assert not folders.is_going_on(tmp_path)
    held = folders.hold(tmp_path)
    assert held is not None
    assert folders.is_going_on(tmp_path)
    assert folders.hold(tmp_path) is None
    os.close(held)
    assert not folders.is_going_on(tmp_path)


def test_one_who_looks_is_no_holder_for_another_who_looks(tmp_path: Path) -> None:
    looking = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert not folders.is_going_on(tmp_path)
    os.close(looking)


def test_one_who_looks_keeps_nobody_from_holding(tmp_path: Path) -> None:
    looking = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    with ThreadPoolExecutor(1) as thread:
        holding = thread.submit(folders.hold, tmp_path)
        os.close(looking)
        held = holding.result(timeout=60)
    assert held is not None
    os.close(held)
