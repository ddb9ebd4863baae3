"""The list of runs as a page: windows of it, newest first, broken folders noted."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_run
from run_folders import write_run
from traceml.api.query_runs import RunSearch
from traceml.api.run_list_page import MAX_COLUMNS, ListQuery, RunLister
from traceml.figures.page import RunsPage
from traceml.model.run import Ending
from traceml.store import folder as folders
from traceml.store.query_language import QueryError
from traceml.store.records import RunRecords
from traceml.store.tags import change_tags


def begun(minutes: float) -> RunRecords:
    run = make_run(steps=50)
    manifest = replace(run.manifest, started_unix_s=run.manifest.started_unix_s + 60 * minutes)
    return replace(run, manifest=manifest, ending=Ending(manifest.started_unix_s + 60, 0))


def page_of(logs: Path, **asked: object) -> RunsPage:
    return RunLister(logs, RunSearch(logs)).page(ListQuery(**asked))  # type: ignore[arg-type]


def names(page: RunsPage) -> list[str]:
    return [row.name for row in page.rows]


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten runs, the last of which is the newest."""
    logs = tmp_path_factory.mktemp("ten")
    first = write_run(logs / "run-0", begun(0))
    for number in range(1, 10):
        write_run(logs / f"run-{number}", begun(number))
    change_tags(first, ["good", "paper"], [], "the <b>first</b>", "ada")
    return logs


def test_runs_are_listed_the_newest_first(tmp_path: Path) -> None:
    write_run(tmp_path / "first", begun(0))
    write_run(tmp_path / "third", begun(2))
    write_run(tmp_path / "second", begun(1), ending=Ending(1_800_000_600.0, 1))
    page = page_of(tmp_path)
    assert names(page) == ["third", "second", "first"]
    assert [row.state for row in page.rows] == ["finished", "failed", "finished"]
    assert page.notes == ()


def test_a_window_is_a_part_of_all_that_match(ten: Path) -> None:
    page = page_of(ten, offset=3, limit=4)
    assert names(page) == ["run-6", "run-5", "run-4", "run-3"]
    assert (page.total, page.run_count, page.offset) == (10, 10, 3)
    assert names(page_of(ten, offset=8, limit=4, sort="name")) == ["run-8", "run-9"]
    assert names(page_of(ten, offset=50)) == []


def test_words_and_filters_let_through_what_they_say(ten: Path) -> None:
    assert names(page_of(ten, words="RUN-3")) == ["run-3"]
    assert names(page_of(ten, words="paper")) == ["run-0"]
    assert names(page_of(ten, words='tags contains "good"')) == ["run-0"]
    assert names(page_of(ten, words="run-3 finished nobody")) == []
    page = page_of(ten, words='name in ("run-1", "run-2") and steps > 3')
    assert (names(page), page.total, page.run_count) == (["run-2", "run-1"], 2, 10)
    with pytest.raises(QueryError, match="did you mean step"):
        page_of(ten, words="stepz > 1")


def test_the_baseline_is_there_whatever_the_filter_is(ten: Path) -> None:
    page = page_of(ten, words="run-3", baseline="run-0")
    assert page.baseline is not None
    assert (page.baseline.name, page.baseline.tags) == ("run-0", ("good", "paper"))
    assert page.baseline.note == "the <b>first</b>"
    assert page_of(ten, baseline="nobody").baseline is None


def test_columns_are_chosen_and_the_name_is_always_the_first(ten: Path) -> None:
    page = page_of(ten, columns="steps,step_time_ms", limit=1)
    assert [column.key for column in page.columns] == ["name", "steps", "step_time_ms"]
    assert page.rows[0].cells[:2] == ("run-9", "50")
    with pytest.raises(QueryError, match="no run has 'nothing'"):
        page_of(ten, columns="nothing")
    usual = [column.key for column in page_of(ten).columns]
    assert {"name", "status", "verdict", "started", "step_time_ms", "tags"} <= set(usual)
    assert [column.key for column in page_of(ten, words="run-3").columns] == usual


def test_groups_have_windows_too(ten: Path) -> None:
    page = page_of(ten, group="name", columns="steps", offset=2, limit=3)
    assert page.groups is not None and page.rows == ()
    assert [group.names for group in page.groups] == [("run-2",), ("run-3",), ("run-4",)]
    assert (page.total, page.run_count) == (10, 10)
    assert names(page_of(ten, words=page.groups[0].filter)) == ["run-2"]


def test_columns_are_found_by_their_names(ten: Path) -> None:
    lister = RunLister(ten, RunSearch(ten))
    found = lister.columns("STEP time", 3)
    assert len(found.columns) == 3 < found.total
    assert all("step" in each.key and "time" in each.key for each in found.columns)
    assert lister.columns("status", 9).columns[0].key == "status"
    assert lister.columns("nothing of it", 9).total == 0


def test_more_columns_than_a_page_shows_are_said(ten: Path) -> None:
    words = ",".join([*["steps"], "*"])
    page = page_of(ten, columns=words)
    assert len(page.columns) <= MAX_COLUMNS
    assert len(page.rows[0].cells) == len(page.columns)


def test_what_has_changed_shows_and_the_rest_is_not_read_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "going on", begun(1), is_over=False)
    write_run(tmp_path / "over", begun(0))
    held = folders.hold(folder)
    assert held is not None
    lister = RunLister(tmp_path, RunSearch(tmp_path))
    assert [row.state for row in lister.page(ListQuery()).rows] == ["live", "finished"]
    os.close(held)
    assert [row.state for row in lister.page(ListQuery()).rows] == ["lost", "finished"]
    shutil.rmtree(tmp_path / "over")
    write_run(tmp_path / "new", begun(2))
    assert names(lister.page(ListQuery())) == ["new", "going on"]


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
    page = page_of(tmp_path)
    assert set(names(page)) == {"good", "half"}
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
    page = page_of(logs)
    assert set(names(page)) == {"good", "again"}
    assert len(page.notes) == 4
    assert all(" is not listed: " in note and note.isprintable() for note in page.notes)


def test_a_foreign_summary_is_listed(tmp_path: Path) -> None:
    source = next((Path(__file__).parents[1] / "data" / "peer").rglob("*.json"))
    (tmp_path / "theirs").mkdir()
    shutil.copy(source, tmp_path / "theirs" / "final_summary.json")
    (row,) = page_of(tmp_path).rows
    assert (row.name, row.state) == ("theirs", "finished")


def test_a_folder_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    page = page_of(tmp_path / "logs")
    assert (page.rows, page.run_count) == ((), 0)
    (note,) = page.notes
    assert "cannot be read" in note and "--logs-dir" in note
