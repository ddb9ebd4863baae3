"""What is logged of a run, whichever tracker it is, and what a tracker that fails leads to."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from factories import make_run
from failing import failed, report
from run_folders import write_run
from traceml.agent.close import summarise
from traceml.api import log_to_tracker
from traceml.api.log_to_tracker import RunLogger
from traceml.model.tracker import (
    OVER_MESSAGE,
    SAID_MARK,
    SCRIPT_RUN_MARK,
    STOPPED_MARK,
    WANDB_VALUES_MARK,
    Tracker,
)
from traceml.store import folder as folders
from traceml.store.line_files import LIVE_CHANGES, LIVE_STATE
from traceml.store.told_findings import TOLD_MARK
from traceml.store.tracker_writer import LoggedEnd, LoggedFinding, LoggedRun
from traceml.store.wandb_writer import WandbWriter, why_disabled
from traceml.summaries.build import build, flat_numbers
from traceml.summaries.live_record import LiveChange, LiveState
from traceml.summaries.record import FailureSummary, Summary


@dataclass
class Recording:
    """A tracker that keeps what is logged, and fails when it is told to."""

    fails: int = 0
    run: LoggedRun | None = None
    values: list[tuple[Mapping[str, float], int]] = field(default_factory=list)
    findings: list[LoggedFinding] = field(default_factory=list)
    end: LoggedEnd | None = None
    is_closed: bool = False
    where: str = "somewhere"

    def open(self, tracker: str, run: LoggedRun) -> Recording:
        self.run = run
        return self

    def _fail(self) -> None:
        if self.fails:
            self.fails -= 1
            raise ZeroDivisionError("https://user:hunter2@host is down")

    def log_values(self, values: Mapping[str, float], step: int) -> None:
        self._fail()
        self.values.append((values, step))

    def log_finding(self, finding: LoggedFinding) -> None:
        self.findings.append(finding)

    def finish(self, end: LoggedEnd) -> None:
        self._fail()
        self.end = end

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Recording:
    found = Recording()
    monkeypatch.setattr(log_to_tracker, "_open_writer", found.open)
    monkeypatch.setattr(Tracker, "version", lambda self: None)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that is over, with what live views were shown of it."""
    folder = write_run(tmp_path / "logs" / "run", make_run())
    summary = summarise(folder)
    live = LiveState(unix_s=1.0, step=40, findings=(), summary=summary)
    (folder / LIVE_STATE).write_bytes(msgspec.json.encode(live))
    kinds = (("INPUT_BOUND", "warn", "step_time"), ("BALANCED", "info", "step_memory"))
    changes = [
        LiveChange(1.0, 30, section, kind, severity, 7, (0,), "It waits.", "Add workers.")
        for kind, severity, section in kinds
    ]
    lines = [msgspec.json.encode(change) + b"\n" for change in changes]
    (folder / LIVE_CHANGES).write_bytes(b"".join([*lines, b"{}\n"]))
    return folder


@contextmanager
def agent_says(words: bytes) -> Iterator[int]:
    """The pipe from an agent that has said so and is gone."""
    reader, writer = os.pipe()
    os.write(writer, words)
    os.close(writer)
    try:
        yield reader
    finally:
        os.close(reader)


def make_report(folder: Path) -> Path | None:
    (folder / "report.html").write_text("a report")
    return folder / "report.html"


def log(folder: Path, words: bytes = OVER_MESSAGE, live: int = 0) -> str | None:
    """Logs a run with so many looks at its live state; what the user is told."""
    logger = RunLogger("wandb", folder, make_report)
    for _ in range(live):
        logger._rests_until_s = 0.0
        logger._send_live()
    with agent_says(words) as control:
        logger.run(control)
    return folders.read_mark(folder, f"{SAID_MARK}wandb")


def test_the_end_has_the_numbers_of_the_summary_its_verdict_and_the_files(
    folder: Path, tracker: Recording
) -> None:
    assert log(folder) == "logged to wandb: somewhere"
    summary = summarise(folder)
    assert tracker.end is not None and tracker.end.numbers == flat_numbers(summary)
    assert tracker.end.texts["traceml/verdict"] == summary.primary_diagnosis.status
    assert tracker.end.step == summary.step_time.metadata.training_total_steps  # type: ignore[union-attr]
    names = [path.name for path in tracker.end.files]
    assert names == ["report.html", "final_summary.json", "final_summary.txt"]
    assert not tracker.end.has_failed


def test_a_run_that_raised_has_failed_though_nobody_saw_its_exit_status(
    folder: Path, tracker: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = Summary(failure=FailureSummary(kind="EXCEPTION"))
    monkeypatch.setattr(log_to_tracker, "read_summary", lambda path: summary)
    log(folder)
    assert tracker.end is not None and tracker.end.has_failed


def test_live_values_are_sent_once_for_a_step_under_names_of_their_own(
    folder: Path, tracker: Recording
) -> None:
    log(folder, live=3)
    ((values, step),) = tracker.values
    assert step == 40 and values["traceml/live/step_time_ms"] > 0
    assert all(name.startswith("traceml/live/") for name in values)


def test_findings_are_sent_but_not_that_nothing_was_found(folder: Path, tracker: Recording) -> None:
    log(folder, live=2)
    expected = "from step 7: It waits. Add workers."
    first, of_the_end = tracker.findings
    assert first == LoggedFinding("INPUT_BOUND", "warn", expected, 30)
    assert (of_the_end.kind, of_the_end.severity) == ("COMPUTE_BOUND", "info")


def test_what_only_the_whole_run_shows_is_a_finding_too(folder: Path, tracker: Recording) -> None:
    """What ended the run, and the verdict of one that was too short for live findings."""
    (folder / LIVE_CHANGES).unlink()
    summary = build(failed(report(step=40, message="boom")), 1.0, "1.2.3")
    (folder / folders.SUMMARY).write_bytes(msgspec.json.encode(summary))
    log(folder)
    sections = (summary.stability, summary.step_time)
    leads = [section.diagnosis for section in sections if section is not None]
    assert [lead.severity for lead in leads if lead is not None] == ["crit", "info"]
    assert {found.kind for found in tracker.findings} == {lead.kind for lead in leads if lead}
    (stopped,) = [found for found in tracker.findings if found.severity == "crit"]
    assert stopped.text.startswith("at step 40: ") and "boom" in stopped.text


def test_a_finding_that_was_told_live_is_told_at_the_end_only_where_it_became_worse(
    folder: Path, tracker: Recording
) -> None:
    lead = summarise(folder).step_time
    assert lead is not None and lead.diagnosis is not None
    kind = str(lead.diagnosis.kind)
    change = LiveChange(1.0, 30, "step_time", kind, "info", 7, (0,), "So it is.", "")
    (folder / LIVE_CHANGES).write_bytes(msgspec.json.encode(change) + b"\n")
    log(folder, live=1)
    assert [found.text for found in tracker.findings] == ["from step 7: So it is."]


def test_what_happened_in_one_step_is_said_to_be_at_that_step(
    folder: Path, tracker: Recording
) -> None:
    failed = LiveChange(1.0, 60, "stability", "EXCEPTION", "crit", 61, (0,), "It failed.", "", 61)
    (folder / LIVE_CHANGES).write_bytes(msgspec.json.encode(failed) + b"\n")
    RunLogger("wandb", folder, make_report)._send_live()
    (found,) = tracker.findings
    assert (found.text, found.step) == ("at step 61: It failed.", 60)


def test_the_run_that_the_script_has_open_is_passed_on(folder: Path, tracker: Recording) -> None:
    folders.write_mark(folder, f"{SCRIPT_RUN_MARK}wandb", json.dumps({"id": "abc"}))
    log(folder)
    assert tracker.run is not None and tracker.run.script_run == {"id": "abc"}


def test_the_next_run_that_the_script_opens_is_followed(folder: Path, tracker: Recording) -> None:
    logger = RunLogger("wandb", folder, make_report)
    for name in ("first", "second"):
        folders.write_mark(folder, f"{SCRIPT_RUN_MARK}wandb", json.dumps({"id": name}))
        logger._send_live()
        assert tracker.run is not None and tracker.run.script_run == {"id": name}
    assert tracker.is_closed


def test_a_run_of_our_own_is_kept(folder: Path, tracker: Recording) -> None:
    logger = RunLogger("wandb", folder, make_report)
    logger._send_live()
    folders.write_mark(folder, f"{SCRIPT_RUN_MARK}wandb", json.dumps({"id": "late"}))
    logger._send_live()
    assert tracker.run is not None and tracker.run.script_run == {} and not tracker.is_closed


def test_a_tracker_that_fails_at_first_misses_nothing(folder: Path, tracker: Recording) -> None:
    tracker.fails = 2
    said = log(folder, live=3)
    assert len(tracker.values) == 1 and tracker.end is not None
    assert [found.kind for found in tracker.findings] == ["INPUT_BOUND", "COMPUTE_BOUND"]
    assert said is not None and "live values could not be sent 2 times" in said


def test_after_a_failure_the_tracker_is_left_alone_for_a_while(
    folder: Path, tracker: Recording
) -> None:
    tracker.fails = 1
    logger = RunLogger("wandb", folder, make_report)
    logger._send_live()
    logger._send_live()
    assert tracker.values == []


def test_a_tracker_that_fails_at_the_end_is_said_without_secrets(
    folder: Path, tracker: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker.fails = 1
    said = log(folder)
    logged = capsys.readouterr().err
    assert "in finish" in logged and "ZeroDivisionError" in logged and "hunter2" not in logged
    assert said is not None and said.startswith("not logged to wandb")
    assert "ZeroDivisionError" in said and str(folder) in said and "hunter2" not in said


def test_why_the_training_process_stopped_is_said(folder: Path, tracker: Recording) -> None:
    folders.write_mark(folder, f"{STOPPED_MARK}wandb", "CommError: quota")
    assert log(folder) == "logged to wandb: somewhere; live values stopped: CommError: quota"


def test_an_unknown_version_is_used_and_named(
    folder: Path, tracker: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracker, "version", lambda self: "99.0")
    said = log(folder)
    assert tracker.end is not None
    assert said is not None and said.count("wandb 99.0 is outside the versions") == 1


def test_without_its_agent_it_closes_what_it_opened_and_says_nothing(
    folder: Path, tracker: Recording
) -> None:
    assert log(folder, words=b"", live=1) is None
    assert tracker.is_closed and tracker.end is None


def test_what_was_sent_before_the_agent_was_restarted_is_sent_once(
    folder: Path, tracker: Recording
) -> None:
    """The agent that takes over finds again what holds, and adds a line for it."""
    log(folder, words=b"", live=2)
    changes = folder / LIVE_CHANGES
    again = LiveChange(9.0, 90, "step_time", "INPUT_BOUND", "warn", 80, (0,), "It waits.", "Add.")
    worse = LiveChange(10.0, 95, "step_time", "INPUT_BOUND", "crit", 80, (0,), "It waits.", "Add.")
    with changes.open("ab") as file:
        file.write(msgspec.json.encode(again) + b"\n")
    log(folder, words=b"", live=2)
    assert [(found.kind, found.severity) for found in tracker.findings] == [("INPUT_BOUND", "warn")]
    assert [step for _, step in tracker.values] == [40]
    with changes.open("ab") as file:
        file.write(msgspec.json.encode(worse) + b"\n")
    log(folder, live=2)
    found = [(found.kind, found.severity) for found in tracker.findings]
    assert found == [("INPUT_BOUND", "warn"), ("INPUT_BOUND", "crit"), ("COMPUTE_BOUND", "info")]


def test_findings_are_sent_once_where_the_list_of_changes_has_lost_its_older_half(
    folder: Path, tracker: Recording
) -> None:
    def change(unix_s: float, kind: str) -> bytes:
        found = LiveChange(unix_s, 30, "step_time", kind, "warn", 7, (0,), "Words.", "")
        return msgspec.json.encode(found) + b"\n"

    logger = RunLogger("wandb", folder, make_report)
    changes = folder / LIVE_CHANGES
    changes.write_bytes(change(1.0, "A") + change(2.0, "B") + change(2.0, "C"))
    logger._send_live()
    folders.write_atomically(changes, change(2.0, "B") + change(2.0, "C") + change(3.0, "D"))
    logger._send_live()
    assert [found.kind for found in tracker.findings] == ["A", "B", "C", "D"]


def test_what_could_not_be_sent_before_a_restart_is_sent_after_it(
    folder: Path, tracker: Recording
) -> None:
    tracker.fails = 1
    log(folder, words=b"", live=1)
    assert tracker.findings == []
    log(folder, words=b"", live=1)
    assert [found.kind for found in tracker.findings] == ["INPUT_BOUND"]


@pytest.mark.parametrize("content", ["[]", "{", '{"findings": {"A": 1}}', '{"step": "x"}'])
def test_a_damaged_list_of_what_was_sent_counts_as_none(
    folder: Path, tracker: Recording, content: str
) -> None:
    folders.write_mark(folder, f"{TOLD_MARK}wandb", content)
    log(folder, words=b"", live=1)
    assert [found.kind for found in tracker.findings] == ["INPUT_BOUND"]


def test_a_report_that_cannot_be_written_is_left_out(folder: Path, tracker: Recording) -> None:
    def fails(folder: Path) -> Any:
        return None

    with agent_says(OVER_MESSAGE) as control:
        RunLogger("wandb", folder, fails).run(control)
    assert tracker.end is not None
    assert [path.name for path in tracker.end.files] == ["final_summary.json", "final_summary.txt"]


@pytest.mark.parametrize(
    ("script_run", "variables", "why"),
    [
        ({"mode": "disabled"}, {}, "the script's run has mode=disabled"),
        ({}, {"WANDB_MODE": "disabled"}, "WANDB_MODE=disabled"),
        ({}, {"WANDB_DISABLED": "true"}, "WANDB_DISABLED=true"),
    ],
)
def test_where_wandb_is_switched_off_that_is_said_and_nothing_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script_run: Any, variables: Any, why: str
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # nor imported
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if script_run:
        folders.write_mark(folder, f"{SCRIPT_RUN_MARK}wandb", json.dumps(script_run))
    assert log(folder, live=1) == f"W&B is disabled ({why}), nothing was logged"


def test_what_the_script_opened_counts_before_the_environment() -> None:
    theirs = {"id": "1", "mode": "online"}
    run = LoggedRun("mine", "0" * 32, Path(), 0.0, "", script_run=theirs)
    assert why_disabled(run, {"WANDB_MODE": "disabled"}) is None


def test_what_is_left_for_the_scripts_wandb_run_keeps_what_was_left_before_a_restart(
    folder: Path,
) -> None:
    """The training process may not have read it yet, and the end has the findings of all."""

    def left_by(run_id: str, kind: str) -> dict[str, Any]:
        run = LoggedRun("mine", "0" * 32, folder, 0.0, "", script_run={"id": run_id})
        WandbWriter(run).log_finding(LoggedFinding(kind, "warn", "words", 1))
        mark = json.loads(folders.read_mark(folder, WANDB_VALUES_MARK) or "")
        found: dict[str, Any] = mark["values"]
        return found

    assert set(left_by("first", "A")) == {"traceml/finding/A"}
    assert set(left_by("first", "B")) == {"traceml/finding/A", "traceml/finding/B"}
    assert set(left_by("second", "C")) == {"traceml/finding/C"}, "another run of the script's"
