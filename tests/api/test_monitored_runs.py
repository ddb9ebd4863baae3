"""The runs that a monitoring system is told of."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec

from factories import make_run
from run_folders import write_run
from traceml.api.monitored_runs import MAX_RUNS, RECENT_S, MonitoredRuns
from traceml.model.exported_metric import LOGGED, STATE
from traceml.store import folder as folders
from traceml.store.line_files import LiveFiles, append_lines
from traceml.store.logged import line
from traceml.summaries.build import build
from traceml.summaries.live_record import LiveState


def runs_in(monitored: MonitoredRuns) -> set[str]:
    return {dict(each.labels)["run"] for each in monitored.values()}


def states_in(monitored: MonitoredRuns) -> dict[str, str]:
    found = (dict(each.labels) for each in monitored.values() if each.metric is STATE)
    return {each["run"]: each["state"] for each in found}


def logged_in(monitored: MonitoredRuns) -> dict[str, float]:
    found = [each for each in monitored.values() if each.metric is LOGGED]
    return {dict(each.labels)["metric"]: each.value for each in found}


def make_old(folder: Path, by_s: float) -> None:
    then_s = time.time() - by_s
    os.utime(folder / folders.SUMMARY, (then_s, then_s))


def test_a_run_in_progress_is_told_with_its_last_steps(tmp_path: Path):
    folder = write_run(tmp_path / "a", is_over=False)
    live = LiveState(unix_s=1.0, step=7, findings=(), summary=build(make_run(), 0.0, "1"))
    LiveFiles(folder).write(msgspec.json.encode(live))
    monitored = MonitoredRuns(tmp_path)
    lock = folders.hold(folder)
    assert lock is not None
    assert states_in(monitored) == {"a": "live"}
    os.close(lock)
    assert states_in(monitored) == {"a": "lost"}


def test_what_a_script_logs_is_told_while_the_run_goes_on(tmp_path: Path):
    folder = write_run(tmp_path / "a", is_over=False)
    live = LiveState(unix_s=1.0, step=7, findings=(), summary=build(make_run(), 0.0, "1"))
    LiveFiles(folder).write(msgspec.json.encode(live))
    lock = folders.hold(folder)
    assert lock is not None
    monitored = MonitoredRuns(tmp_path)
    messages = folder / "rank-0-1.messages"
    for step, accuracy in enumerate((0.25, 0.5), start=1):
        said = {"kind": "metrics", "step": step, "unix_ns": step, "values": {"accuracy": accuracy}}
        append_lines(messages, line(step, json.dumps(said).encode()))
        assert logged_in(monitored)["accuracy"] == accuracy
    os.close(lock)


def test_runs_that_ended_long_ago_are_left_out(tmp_path: Path):
    write_run(tmp_path / "new")
    make_old(write_run(tmp_path / "old"), RECENT_S + 60)
    assert runs_in(MonitoredRuns(tmp_path)) == {"new"}


def test_a_damaged_run_and_a_deleted_one_do_not_hide_the_others(tmp_path: Path):
    write_run(tmp_path / "fine")
    (write_run(tmp_path / "damaged") / folders.MANIFEST).write_bytes(b"{")
    gone = write_run(tmp_path / "gone")
    monitored = MonitoredRuns(tmp_path)
    assert runs_in(monitored) == {"fine", "gone"}
    for path in gone.iterdir():
        path.unlink()
    gone.rmdir()
    assert runs_in(monitored) == {"fine"}


def test_a_folder_that_is_not_there_yet_has_no_runs(tmp_path: Path):
    assert MonitoredRuns(tmp_path / "logs").values() == []


def test_of_very_many_runs_the_latest_are_told(tmp_path: Path):
    summary = (write_run(tmp_path / "run-0") / folders.SUMMARY).read_bytes()
    for number in range(1, MAX_RUNS + 3):
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        (folder / folders.SUMMARY).write_bytes(summary)
    make_old(tmp_path / "run-0", 60)
    found = runs_in(MonitoredRuns(tmp_path))
    assert len(found) == MAX_RUNS
    assert "run-0" not in found
