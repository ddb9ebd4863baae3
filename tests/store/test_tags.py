"""Tags and notes: nothing that anybody said is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from traceml.model.errors import UsageError
from traceml.store.folder import TAGS
from traceml.store.tags import MAX_NOTE_CHARS, RunTags, change_tags, read_tags


def change(
    folder: Path, *add: str, remove: tuple[str, ...] = (), note: str | None = None
) -> RunTags:
    return change_tags(folder, add, remove, note, "ada")


def test_tags_are_added_removed_and_kept_in_their_order(tmp_path: Path):
    assert read_tags(tmp_path) == RunTags()
    assert change(tmp_path, "good", "best").tags == ("good", "best")
    assert change(tmp_path, "good", "new", remove=("best", "never there")).tags == ("good", "new")
    assert read_tags(tmp_path) == RunTags(("good", "new"), None)


def test_a_note_is_replaced_and_removed(tmp_path: Path):
    change(tmp_path, "good", note="two\nlines")
    assert change(tmp_path, note="another \x1b[31mred").note == "another red"
    assert read_tags(tmp_path).tags == ("good",)
    assert change(tmp_path, note="").note is None


def test_asking_changes_nothing(tmp_path: Path):
    assert change(tmp_path) == RunTags()
    assert not (tmp_path / TAGS).exists()


@pytest.mark.parametrize("tag", ["", " x", "a,b", "a\nb", "x" * 101, "\x1b[31m"])
def test_what_cannot_be_a_tag_is_refused(tmp_path: Path, tag: str):
    with pytest.raises(UsageError, match="cannot be a tag"):
        change(tmp_path, tag)
    assert not (tmp_path / TAGS).exists()


def test_a_note_that_is_too_long_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="at most"):
        change(tmp_path, note="x" * (MAX_NOTE_CHARS + 1))


def test_a_line_of_a_writer_that_was_killed_costs_that_line_alone(tmp_path: Path):
    change(tmp_path, "first")
    with (tmp_path / TAGS).open("ab") as file:
        file.write(b'{"add":["half')
    assert change(tmp_path, "second").tags == ("first", "second")
    with (tmp_path / TAGS).open("ab") as file:
        file.write(b'\xff\n[1]\n{"add":3}\n')
    assert read_tags(tmp_path).tags == ("first", "second")


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_a_file_that_is_something_else_is_neither_read_nor_written(tmp_path: Path, kind: str):
    path, elsewhere = tmp_path / TAGS, tmp_path / "elsewhere"
    elsewhere.write_bytes(b'{"add":["x"]}\n')
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir()
    assert read_tags(tmp_path) == RunTags()
    with pytest.raises(UsageError, match="cannot be written"):
        change(tmp_path, "y")
    assert elsewhere.read_bytes() == b'{"add":["x"]}\n'


def test_the_folders_time_changes_with_its_tags(tmp_path: Path):
    """By it the index of runs knows that there is something new."""
    change(tmp_path, "first")
    os.utime(tmp_path, (1, 1))
    change(tmp_path, "second")
    assert tmp_path.stat().st_mtime > 1000


def test_ten_people_at_once_lose_no_tag(tmp_path: Path):
    script = """
import sys
from pathlib import Path
from traceml.store.tags import change_tags
sys.stdin.readline()
for number in range(20):
    change_tags(Path(sys.argv[1]), [f"{sys.argv[2]}-{number}"], [], None, "x")
"""
    people = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(own)],
            stdin=subprocess.PIPE,
            text=True,
        )
        for own in range(10)
    ]
    for person in people:
        person.communicate("go\n", timeout=120)
    assert [person.returncode for person in people] == [0] * 10
    expected = {f"{own}-{number}" for own in range(10) for number in range(20)}
    assert set(read_tags(tmp_path).tags) == expected
