"""Pages that compare runs are made from their folders, also where something is missing there."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from factories import make_run
from run_folders import write_run
from traceml.agent.close import summarise
from traceml.api.artifact_contents import find_logged_file
from traceml.api.comparison_pages import (
    comparison_page,
    find_for_page,
    finer_curves,
    found_in,
    many_page,
)
from traceml.api.inline_pictures import MAX_PICTURES, InlinePictures
from traceml.api.watch import RunWatch
from traceml.figures.page import ManyRunsPage, Part
from traceml.model.artifact import kind_of_file
from traceml.model.errors import RunNotFound, UsageError
from traceml.summaries.live_record import LiveState


def log_file(folder: Path, name: str, content: bytes) -> None:
    """Gives a run that is over a file that it logged."""
    place = folder / "artifacts/0001" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    path = folder / "final_summary.json"
    summary = json.loads(path.read_text())
    summary["artifacts"][name] = {
        "path": f"/data/{name}",
        "size_bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "kind": kind_of_file(name, content[:512]).value,
        "stored": f"artifacts/0001/{name}",
        "logged_unix_s": 1e9,
    }
    path.write_text(json.dumps(summary))


def log_metrics(folder: Path, values: dict[str, list[float]]) -> None:
    """Gives a run that is over metrics that it logged at its first steps."""
    (steps,) = folder.glob("*.steps")
    log = folder / f"{steps.name.partition('.')[0]}.messages"
    for place in range(max(map(len, values.values()))):
        known = {name: each[place] for name, each in values.items()}
        said = {"kind": "metrics", "step": place + 1, "unix_ns": place, "values": known}
        with log.open("ab") as file:
            file.write(json.dumps(said).encode() + b"\n")
    summarise(folder)


def png(shade: int, size: int = 16) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), shade, np.uint8)).save(file, format="PNG")
    return file.getvalue()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Three runs that are over."""
    for name, input_ms in (("a", 1.0), ("b", 40.0), ("c", 60.0)):
        folder = write_run(tmp_path / "logs" / name, make_run(input_ms=input_ms))
        log_metrics(folder, {"acc": [0.1, 0.2, input_ms]})
        log_file(folder, "weights.png", png(int(input_ms)))
        log_file(folder, "evil.svg", b"<svg onload=alert(1)>")
    return tmp_path / "logs"


def many(logs: Path, *names: str) -> ManyRunsPage:
    found, notes = find_for_page([logs / name for name in names])
    return many_page(found, logs, notes)[0]


def part(parts: tuple[Part, ...], name: str) -> Part:
    (found,) = [each for each in parts if each.id == name]
    return found


def test_two_runs_are_compared_and_nothing_is_written(logs: Path) -> None:
    before = sorted(logs.rglob("*"))
    page = comparison_page([found_in(logs / "b")], [found_in(logs / "a")], logs)
    assert page.verdict.status == "IMPROVEMENT"
    assert sorted(logs.rglob("*")) == before
    (picture,) = part(page.parts, "artifacts").pictures
    assert (picture.title, picture.width, picture.height) == ("weights.png", 3 * 16 + 2 * 8, 16)
    (curve,) = part(page.parts, "curves").figures
    assert (curve.title, [one.name for one in curve.series]) == ("acc", ["A: b", "B: a"])


def test_many_runs_are_one_page_with_their_curves_findings_and_images(logs: Path) -> None:
    page = many(logs, "a", "b", "c")
    assert page.verdict.status == "2 × REGRESSION"
    (curve,) = part(page.parts, "curves").figures
    assert [one.name for one in curve.series] == ["A: a", "B: b", "C: c"]
    assert {one.at for one in curve.series} == {(1.0, 2.0, 3.0)}
    pictures = part(page.parts, "artifacts").pictures
    assert [each.title for each in pictures] == [f"{x}: weights.png" for x in "ABC"]
    (grid,) = part(page.parts, "artifacts").grids
    assert [(row.name, row.differs) for row in grid.rows] == [
        ("evil.svg (other)", False),
        ("weights.png (image)", True),
    ]
    assert [cell.note for cell in grid.rows[1].cells[1:]] == [
        "100% of the pixels differ, by 15% on average, 15% at most",
        "100% of the pixels differ, by 23% on average, 23% at most",
    ]


def test_a_run_that_is_not_over_takes_part_with_its_last_steps(logs: Path) -> None:
    summary = found_in(logs / "b").summary
    (logs / "b/final_summary.json").unlink()
    (logs / "b/ending.json").unlink()
    (logs / "b/live.json").write_bytes(msgspec.json.encode(LiveState(1.0, 7, (), summary)))
    assert not found_in(logs / "b").is_over
    page = many(logs, "a", "b", "c")
    assert any(note.startswith("b is not over") for note in page.notes)
    assert page.verdict.status == "2 × REGRESSION"


def test_a_run_without_a_summary_is_left_out_and_named(logs: Path) -> None:
    (logs / "b/final_summary.json").unlink()
    write_run(logs / "d", make_run(input_ms=3.0))
    page = many(logs, "a", "b", "c", "d")
    assert [row.cells[0] for row in part(page.parts, "runs").tables[0].rows] == [
        "A: a",
        "B: c",
        "C: d",
    ]
    assert any("b has no summary yet" in note for note in page.notes)
    with pytest.raises(RunNotFound, match="b has no summary yet"):
        find_for_page([logs / "b", logs / "a"])  # there is nothing to compare with


def test_a_file_that_was_deleted_or_damaged_costs_only_itself(logs: Path) -> None:
    (logs / "a/artifacts/0001/weights.png").unlink()
    (logs / "b/artifacts/0001/weights.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 50)
    page = many(logs, "a", "b", "c")
    assert [each.title for each in part(page.parts, "artifacts").pictures] == ["C: weights.png"]
    assert any("A: weights.png, B: weights.png" in note for note in page.notes)


def test_more_runs_than_a_page_holds_are_refused(logs: Path) -> None:
    found, _ = find_for_page([logs / "a", logs / "b"])
    with pytest.raises(UsageError, match="21 runs are too many for one page: expected up to 20"):
        many_page([*found, *[found[1]] * 19], logs)


def test_an_images_colours_stay_and_a_large_one_is_made_smaller() -> None:
    pictures = InlinePictures()
    pictures.add("large", np.full((800, 1600, 3), 200, np.uint8), None, 280)
    (picture,) = pictures.kept
    assert (picture.width, picture.height) == (280, 140)
    assert picture.caption == "shown smaller: 1600 × 800 pixels"


def test_a_page_has_no_more_than_so_many_pictures() -> None:
    pictures = InlinePictures()
    for number in range(MAX_PICTURES + 2):
        pictures.add(str(number), np.zeros((2, 2, 3), np.uint8), None, 280)
    assert len(pictures.kept) == MAX_PICTURES
    assert pictures.note == "Images that cannot be shown here, or have no place: 80, 81."


def test_the_page_of_a_run_lists_its_files_and_shows_its_images(logs: Path) -> None:
    found = part(RunWatch(logs / "a").page().parts, "artifacts")
    (table,) = found.tables
    rows = {row.cells[0]: row for row in table.rows}
    assert rows["evil.svg"].cells[1:4] == ("other", "21 B", "2001-09-09 01:46:40 UTC")
    assert rows["evil.svg"].link == "/runs/a/file?name=evil.svg"
    assert [picture.title for picture in found.pictures] == ["weights.png"]


def test_a_logged_file_is_found_by_its_name_alone(logs: Path) -> None:
    assert find_logged_file(logs / "a", "evil.svg").read_bytes() == b"<svg onload=alert(1)>"
    for name in ("../b/final_summary.json", "final_summary.json", "evil.svg/x", ""):
        with pytest.raises(RunNotFound, match="has logged no file"):
            find_logged_file(logs / "a", name)


def test_a_logged_file_that_leads_elsewhere_is_not_sent(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"<svg onload=alert(1)>")
    place = logs / "a/artifacts/0001/evil.svg"
    place.unlink()
    place.symlink_to(tmp_path / "secret")
    with pytest.raises(RunNotFound, match="cannot be sent"):
        find_logged_file(logs / "a", "evil.svg")
    shutil.rmtree(logs / "a/artifacts")
    with pytest.raises(RunNotFound, match="copy is gone"):
        find_logged_file(logs / "a", "evil.svg")


def test_a_part_of_the_curves_is_read_in_a_finer_resolution(logs: Path) -> None:
    found, _ = find_for_page([logs / name for name in "abc"])
    drawn = part(many(logs, "a", "b", "c").parts, "curves").figures
    ids = [figure.id for figure in drawn]
    (finer,) = finer_curves(found, ["A", "B", "C"], ids, (2, 3))
    assert (finer.id, {one.at for one in finer.series}) == (drawn[0].id, {(2.0, 3.0)})
    assert finer_curves(found, ["A", "B", "C"], ["metric-0"], (2, 3)) == ()
