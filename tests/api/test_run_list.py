"""The list of runs: newest first, live state told, broken folders noted, quick to ask again."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_run
from run_folders import write_run
from traceml.api import run_files
from traceml.api.run_list import RunList
from traceml.model.run import Ending
from traceml.store import folder as folders
from traceml.store.records import RunRecords


def begun(minutes: float) -> RunRecords:
    run = make_run(steps=50)
    manifest = replace(run.manifest, started_unix_s=run.manifest.started_unix_s + 60 * minutes)
    return replace(run, manifest=manifest, ending=Ending(manifest.started_unix_s + 60, 0))


def test_runs_are_listed_the_newest_first(tmp_path: Path) -> None:
    write_run(tmp_path / "first", begun(0))
    write_run(tmp_path / "third", begun(2))
    write_run(tmp_path / "second", begun(1), ending=Ending(1_800_000_600.0, 1))
    page = RunList(tmp_path).page()
    assert [run.name for run in page.runs] == ["third", "second", "first"]
    assert [run.state for run in page.runs] == ["finished", "failed", "finished"]
    assert page.notes == ()


def test_what_has_changed_shows_and_the_rest_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "going on", begun(1), is_over=False)
    write_run(tmp_path / "over", begun(0))
    held = folders.hold(folder)
    assert held is not None
    listed = RunList(tmp_path)
    assert [run.state for run in listed.page().runs] == ["live", "finished"]
    read: list[Path] = []
    real = run_files.read_summary
    monkeypatch.setattr(run_files, "read_summary", lambda path: (read.append(path), real(path))[1])
    os.close(held)
    assert [run.state for run in listed.page().runs] == ["lost", "finished"]
    assert read == []
    shutil.rmtree(tmp_path / "over")
    write_run(tmp_path / "new", begun(2))
    assert [run.name for run in listed.page().runs] == ["new", "going on"]
    assert [path.parent.name for path in read] == ["new"]


def test_broken_folders_are_notes_and_what_is_no_run_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "good")
    (tmp_path / "no run").mkdir()
    (tmp_path / "a file").touch()
    broken = {
        "cut": b"{",
        "list": b"[]",
        "binary": b"\xff\x00",
        "deep": b"[" * 100_000,
        "other kinds": b'{"run_name": "x", "started_unix_s": "yesterday"}',
        "no names": b'{"run_name": "x", "started_unix_s": 1, "command": [1]}',
    }
    for name, content in broken.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_bytes(content)
    write_run(tmp_path / "half")
    (tmp_path / "half" / "final_summary.json").write_bytes(b"{}")
    (tmp_path / "half" / "ending.json").write_bytes(b"[1]")
    (tmp_path / "hollow").symlink_to(tmp_path / "nowhere")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    page = RunList(tmp_path).page()
    assert {run.name for run in page.runs} == {"good", "half"}
    assert len(page.notes) == 7
    assert all("\n" not in note for note in page.notes)
    assert sum("run.json is damaged" in note for note in page.notes) == 6


def test_a_run_that_its_name_does_not_lead_to_is_a_note(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write_run(logs / "good")
    (logs / "again").symlink_to("good")
    for folder in (".hidden", "-dash", os.fsdecode(b"not \xff text")):
        write_run(tmp_path / "run").rename(logs / folder)
    write_run(tmp_path / "outside")
    (logs / "link").symlink_to(tmp_path / "outside")
    page = RunList(logs).page()
    assert {run.name for run in page.runs} == {"good", "again"}
    assert len(page.notes) == 4
    assert all(" is not listed: " in note and note.isprintable() for note in page.notes)


def test_a_foreign_summary_is_listed(tmp_path: Path) -> None:
    source = next((Path(__file__).parents[1] / "data" / "peer").rglob("*.json"))
    (tmp_path / "theirs").mkdir()
    shutil.copy(source, tmp_path / "theirs" / "final_summary.json")
    (run,) = RunList(tmp_path).page().runs
    assert (run.name, run.state) == ("theirs", "finished")


def test_a_folder_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    page = RunList(tmp_path / "logs").page()
    assert page.runs == ()
    (note,) = page.notes
    assert "cannot be read" in note and "--logs-dir" in note
