"""The files of live findings: changes are appended and bounded, the state is replaced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from traceml.store import line_files
from traceml.store.line_files import LiveFiles


def lines(folder: Path) -> list[int]:
    return [
        json.loads(line) for line in (folder / line_files.LIVE_CHANGES).read_text().splitlines()
    ]


def test_changes_are_added_and_the_state_is_replaced(tmp_path: Path) -> None:
    files = LiveFiles(tmp_path)
    files.append([b"1", b"2"])
    LiveFiles(tmp_path).append([b"3"])
    files.write(b'{"step": 1}')
    files.write(b'{"step": 2}')
    assert lines(tmp_path) == [1, 2, 3]
    assert json.loads((tmp_path / line_files.LIVE_STATE).read_bytes()) == {"step": 2}


def test_without_a_change_there_is_no_file(tmp_path: Path) -> None:
    LiveFiles(tmp_path).append([])
    assert list(tmp_path.iterdir()) == []


def test_of_very_many_changes_the_latest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "MAX_LIVE_BYTES", 1000)
    files = LiveFiles(tmp_path)
    for number in range(1000, 3000):
        files.append([b"%d" % number])
    kept = lines(tmp_path)
    assert kept == list(range(kept[0], 3000))
    assert (tmp_path / line_files.LIVE_CHANGES).stat().st_size <= 1010
