"""Marks say which scripts and ranks were started, whatever became of them."""

import pytest

from traceml.model.rank import ScriptStart
from traceml.store.failures import script_pids, script_starts


def mark(folder, name, text=""):
    (folder / "marks").mkdir(exist_ok=True)
    (folder / "marks" / name).write_text(text)


def test_starts_are_read_in_order_of_time(tmp_path):
    mark(tmp_path, "script-12-node-a", "1 0 1794850750.5")
    mark(tmp_path, "script-11-node-a", "- - 1794850748.25")
    assert script_starts(tmp_path) == (
        ScriptStart(11, "node-a", None, None, 1794850748.25),
        ScriptStart(12, "node-a", 1, 0, 1794850750.5),
    )
    assert script_pids(tmp_path, "node-a") == [11, 12]


@pytest.mark.parametrize(
    "text", ["", "1", "x y z", "-1 -1 nan", "9" * 400 + " 1 inf", "1 1 1e400", "\0\0"]
)
def test_a_mark_that_says_nothing_is_still_a_start(tmp_path, text):
    mark(tmp_path, "script-12", text)
    (found,) = script_starts(tmp_path)
    assert found.pid == 12
    assert found.unix_s is None


def test_other_marks_are_no_starts(tmp_path):
    mark(tmp_path, "script-x-node", "1 0 5")
    mark(tmp_path, "torch")
    assert script_starts(tmp_path) == ()
