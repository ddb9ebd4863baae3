"""The index of runs: always what the folders hold, whatever happened to its files."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceml.model.errors import RunNotFound, UnreadableRecords
from traceml.model.run_values import RunValue
from traceml.store import run_index
from traceml.store.folder import write_atomically
from traceml.store.index_columns import DamagedIndex
from traceml.store.query_language import parse_filter
from traceml.store.query_names import KnownColumns, resolve_filter
from traceml.store.run_index import HEAD, IndexedRun, RunIndex, index_folder
from traceml.store.run_table import RunTable


class Reader:
    """Reads the made-up runs of these tests, and counts how often."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, folder: Path) -> IndexedRun:
        self.read.append(folder.name)
        content = json.loads((folder / "final_summary.json").read_text())
        if content == "no run":
            raise RunNotFound("no run")
        if content == "damaged":
            raise UnreadableRecords(f"{folder} is damaged")
        values = {key: _value(value) for key, value in content.items()}
        return IndexedRun(values, is_final=values.get("facts.status") != "live")


def _value(value: object) -> RunValue:
    return tuple(value) if isinstance(value, list) else value  # type: ignore[return-value]


def write_run(logs: Path, name: str, values: object, age_s: float = 100.0) -> Path:
    folder = logs / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "final_summary.json"
    write_atomically(path, json.dumps(values).encode())  # as agents do
    then = time.time() - age_s
    os.utime(path, (then, then))
    os.utime(folder, (then, then))
    return folder


def write_runs(logs: Path, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        values = {"facts.status": "finished", "facts.started": number, "params.lr": number / 10}
        write_run(logs, f"run-{number:04}", values)


def open_index(logs: Path, reader: Reader | None = None, schema: str = "1") -> RunIndex:
    return RunIndex(logs, reader or Reader(), schema)


def contents(table: RunTable) -> dict[str, dict[str, RunValue]]:
    rows = table.select()
    found: dict[str, dict[str, RunValue]] = {name: {} for name in table.names(rows)}
    for key in table.keys:
        for name, value in zip(found, table.read(rows, key), strict=True):
            if value is not None:
                found[name][key] = value
    return found


def truth(logs: Path) -> dict[str, dict[str, RunValue]]:
    return {
        path.parent.name: {k: _value(v) for k, v in json.loads(path.read_text()).items()}
        for path in logs.glob("*/final_summary.json")
    }


def test_an_index_holds_what_the_folders_hold(tmp_path: Path):
    write_runs(tmp_path, 5)
    index = open_index(tmp_path)
    assert contents(index.refresh()) == truth(tmp_path)


def test_what_has_not_changed_is_not_read_again(tmp_path: Path):
    write_runs(tmp_path, 5)
    open_index(tmp_path).refresh()
    write_run(tmp_path, "run-0002", {"params.lr": 7})
    write_runs(tmp_path, 1, first=9)
    reader = Reader()
    index = open_index(tmp_path, reader)
    assert contents(index.refresh()) == truth(tmp_path)
    assert sorted(reader.read) == ["run-0002", "run-0009"]
    assert index.refresh() is index.refresh()
    assert len(reader.read) == 2


def test_a_run_that_was_deleted_or_renamed_is_so_in_the_index(tmp_path: Path):
    write_runs(tmp_path, 3)
    index = open_index(tmp_path)
    index.refresh()
    (tmp_path / "run-0001").rename(tmp_path / "other")
    (tmp_path / "run-0002" / "final_summary.json").unlink()
    (tmp_path / "run-0002").rmdir()
    assert set(contents(index.refresh())) == {"run-0000", "other"}


def test_a_run_in_progress_is_read_every_time_and_never_kept(tmp_path: Path):
    write_runs(tmp_path, 1)
    write_run(tmp_path, "live", {"facts.status": "live"})
    reader = Reader()
    index = open_index(tmp_path, reader)
    for _ in range(2):
        assert set(contents(index.refresh())) == {"live", "run-0000"}
    assert reader.read.count("live") == 2
    again = Reader()
    open_index(tmp_path, again).refresh()
    assert again.read == ["live"]


def test_a_run_that_was_written_just_now_is_read_again(tmp_path: Path):
    """Its clock may tick too seldom to tell the next change from this one."""
    folder = write_run(tmp_path, "run", {"params.lr": 1}, age_s=0)
    index = open_index(tmp_path)
    index.refresh()
    version = folder.stat().st_mtime_ns
    (folder / "final_summary.json").write_text(json.dumps({"params.lr": 2}))
    os.utime(folder, ns=(version, version))
    assert contents(index.refresh()) == {"run": {"params.lr": 2}}


def test_what_is_no_run_or_cannot_be_read_is_left_out_and_the_latter_is_said(tmp_path: Path):
    write_runs(tmp_path, 1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    write_run(tmp_path, "foreign", "no run")
    write_run(tmp_path, "broken", "damaged")
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / "final_summary.json")
    (tmp_path / "loop").symlink_to("loop")
    index = open_index(tmp_path, _refusing_fifos())
    table = index.refresh()
    assert table.names(table.select()) == ["run-0000"]
    assert table.notes == (f"{tmp_path / 'broken'} is damaged",)


def _refusing_fifos() -> Reader:
    class Refusing(Reader):
        def __call__(self, folder: Path) -> IndexedRun:
            if folder.name == "fifo":
                raise RunNotFound("a pipe")
            return super().__call__(folder)

    return Refusing()


def test_the_index_of_another_user_hides_no_run(
    tmp_path: Path, forbid_entry: Callable[[Path], None]
):
    """In a logs folder that several people write to, each one's index is for that one alone."""
    write_runs(tmp_path, 2)
    others = tmp_path / ".traceml-index-99999"
    others.mkdir()
    forbid_entry(others)
    table = open_index(tmp_path).refresh()
    assert len(contents(table)) == 2 and not table.notes


def test_a_missing_logs_folder_has_no_runs(tmp_path: Path):
    assert len(open_index(tmp_path / "nowhere").refresh()) == 0
    assert not (tmp_path / "nowhere").exists()


STRANGE = {
    "params.text": "ünï\ncode",
    "params.mixed": 1,
    "metrics.val/loss": 1e308,
    "metrics.損失.平均": -0.0,
    "metrics." + "x" * 200: 3.5,
    "params.big": 12345678901234567890,
    "params.seed": 9007199254740993,
    "facts.tags": ("a", "b c"),
    "facts.dirty": False,
}


def test_strange_names_and_values_come_back_as_they_were(tmp_path: Path):
    write_run(tmp_path, "a", STRANGE)
    write_run(tmp_path, "b", {"params.mixed": "auto", "params.seed": 3})
    write_run(tmp_path, "c", {"params.mixed": True, "metrics.val/loss": 2})
    expected = truth(tmp_path)
    assert contents(open_index(tmp_path).refresh()) == expected
    reader = Reader()
    assert contents(open_index(tmp_path, reader).refresh()) == expected  # from its files
    assert reader.read == []
    assert expected["a"]["params.seed"] == 9007199254740993


def test_nan_and_infinity_stay_apart_from_what_is_missing(tmp_path: Path):
    for name, value in (("nan", math.nan), ("inf", math.inf), ("minus", -math.inf)):
        write_run(tmp_path, name, {"metrics.loss": value})
    write_run(tmp_path, "missing", {"params.lr": 1})
    open_index(tmp_path).refresh()
    table = open_index(tmp_path).refresh()
    rows = table.sort(table.select(), "metrics.loss", descending=False)
    assert table.names(rows) == ["minus", "inf", "nan", "missing"]
    values = table.read(rows, "metrics.loss")
    assert values[:2] == [-math.inf, math.inf]
    assert math.isnan(values[2])  # type: ignore[arg-type]
    assert values[3] is None


def test_ten_thousand_names_can_be_queried_and_more_than_fit_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    many: dict[str, RunValue] = {
        f"metrics.step_{number}": float(number) for number in range(10_000)
    }
    write_run(tmp_path, "many", {"facts.status": "finished", **many})
    write_runs(tmp_path, 2)
    table = open_index(tmp_path).refresh()
    assert len(table.keys) >= 10_000
    known = KnownColumns(table.keys, ())
    node = resolve_filter(parse_filter("step_9999 = 9999"), known)
    assert table.names(table.select(node)) == ["many"]
    assert table.notes == ()

    monkeypatch.setattr(run_index, "MAX_COLUMNS", 100)
    index = open_index(tmp_path, schema="2")
    table = index.refresh()
    assert len(table.keys) <= 103
    assert "facts.status" in table.keys
    (note,) = open_index(tmp_path, schema="2").refresh().notes  # also from its files
    assert note == table.notes[0]
    assert "cannot be queried" in note and "many" in note


def test_many_updates_leave_few_files(tmp_path: Path):
    for number in range(40):
        write_runs(tmp_path, 1, first=number)
        index = open_index(tmp_path)
        index.refresh()
    reader = Reader()
    assert contents(open_index(tmp_path, reader).refresh()) == truth(tmp_path)
    assert reader.read == []
    assert len(list(index_folder(tmp_path).glob("*.runs"))) <= 4


def test_more_runs_than_a_segment_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_index, "MAX_ROWS", 8)
    write_runs(tmp_path, 30)
    open_index(tmp_path).refresh()
    for number in range(0, 30, 2):  # half of each segment is replaced
        write_run(tmp_path, f"run-{number:04}", {"params.lr": -number, "params.new": "x"})
    index = open_index(tmp_path)
    assert contents(index.refresh()) == truth(tmp_path)
    reader = Reader()
    table = open_index(tmp_path, reader).refresh()
    assert contents(table) == truth(tmp_path)
    assert reader.read == []
    rows = table.sort(table.select(), "params.lr", descending=True)
    values = table.read(rows, "params.lr")
    assert values == sorted(values, reverse=True)  # type: ignore[type-var]


def _damages() -> list[str]:
    return ["head empty", "head newer", "head json", "segment cut", "segment gone", "segment head"]


@pytest.mark.parametrize("damage", [*_damages(), "head escapes", "head folder"])
def test_a_damaged_or_newer_index_is_built_again(tmp_path: Path, damage: str):
    write_runs(tmp_path, 6)
    open_index(tmp_path).refresh()
    folder = index_folder(tmp_path)
    head, segment = folder / HEAD, next(folder.glob("*.runs"))
    said = json.loads(head.read_text())
    if damage == "head empty":
        head.write_bytes(b"")
    elif damage == "head newer":
        head.write_text(json.dumps({**said, "format": 99, "segments": {"by": "another design"}}))
    elif damage == "head json":
        head.write_bytes(b"\xff{[")
    elif damage == "head escapes":
        head.write_text(json.dumps({**said, "segments": ["../../run-0000/final_summary.json"]}))
    elif damage == "head folder":
        head.unlink()
        head.mkdir()
    elif damage == "segment cut":
        segment.write_bytes(segment.read_bytes()[:200])
    elif damage == "segment head":
        content = bytearray(segment.read_bytes())
        content[60] ^= 255
        segment.write_bytes(content)
    else:
        segment.unlink()
    reader = Reader()
    assert contents(open_index(tmp_path, reader).refresh()) == truth(tmp_path)
    assert len(reader.read) == 6
    if damage != "head folder":  # that cannot be replaced, and everything is read every time
        again = Reader()
        assert contents(open_index(tmp_path, again).refresh()) == truth(tmp_path)
        assert again.read == []


def test_a_damaged_column_is_noticed_when_it_is_read(tmp_path: Path):
    write_runs(tmp_path, 6)
    open_index(tmp_path).refresh()
    segment = next(index_folder(tmp_path).glob("*.runs"))
    content = bytearray(segment.read_bytes())
    content[-20] ^= 255
    segment.write_bytes(content)
    index = open_index(tmp_path)
    table = index.refresh()
    with pytest.raises(DamagedIndex):
        for key in table.keys:
            table.read(np.arange(6), key)
    index.rebuild()
    assert contents(index.refresh()) == truth(tmp_path)


def test_another_version_of_the_columns_reads_all_runs_again(tmp_path: Path):
    write_runs(tmp_path, 2)
    open_index(tmp_path, schema="1").refresh()
    reader = Reader()
    open_index(tmp_path, reader, schema="2").refresh()
    assert len(reader.read) == 2


def test_an_index_that_cannot_be_written_is_kept_in_memory(tmp_path: Path):
    write_runs(tmp_path, 3)
    (tmp_path / "blocked").write_text("a file where the index should be")
    reader = Reader()
    index = RunIndex(tmp_path, reader, "1", folder=tmp_path / "blocked")
    for _ in range(2):
        assert contents(index.refresh()) == truth(tmp_path)
    assert len(reader.read) == 3


def test_a_full_disk_costs_the_file_and_not_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(path: Path, segment: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "no space left on device")

    write_runs(tmp_path, 3)
    monkeypatch.setattr(run_index, "write_segment", full)
    assert contents(open_index(tmp_path).refresh()) == truth(tmp_path)
    assert list(index_folder(tmp_path).glob("*.runs")) == []


def test_what_others_put_in_the_indexs_place_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    logs = tmp_path / "logs"
    write_runs(logs, 1)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    index_folder(logs).symlink_to(theirs)
    assert index_folder(logs).parent == tmp_path / "cache" / "traceml"
    assert contents(open_index(logs).refresh()) == truth(logs)
    assert list(theirs.iterdir()) == []


def test_who_waits_too_long_for_another_writer_works_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_index, "LOCK_TIMEOUT_S", 0.05)
    write_runs(tmp_path, 3)
    folder = index_folder(tmp_path)
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        index = open_index(tmp_path)
        assert contents(index.refresh()) == truth(tmp_path)
        assert not (folder / HEAD).exists()
    write_run(tmp_path, "run-0001", {"params.lr": 42})
    assert contents(index.refresh()) == truth(tmp_path)  # and not what it read before
    write_run(tmp_path, "run-0001", {"params.lr": 43}, age_s=50)
    open_index(tmp_path).refresh()
    assert contents(index.refresh()) == truth(tmp_path)


def test_a_reader_goes_on_while_another_process_replaces_the_files(tmp_path: Path):
    write_runs(tmp_path, 3)
    index = open_index(tmp_path)
    before = index.refresh()
    write_runs(tmp_path, 3, first=3)
    other = open_index(tmp_path)
    other.refresh()
    assert len(contents(before)) == 3
    assert contents(index.refresh()) == truth(tmp_path)


def test_the_index_is_its_owners_alone(tmp_path: Path):
    write_runs(tmp_path, 1)
    open_index(tmp_path).refresh()
    assert index_folder(tmp_path).stat().st_mode & 0o777 == 0o700


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.sampled_from([0.5, 2.5, "text", True, math.nan, 1 << 60])
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.sampled_from(["params.x", "params.y"]), VALUES),
    st.tuples(st.just("write"), NAMES, st.just("facts.status"), st.just("live")),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("lock")),
    st.tuples(st.just("unlock")),
    st.tuples(st.just("damage"), st.integers(0, 400)),
    st.tuples(st.just("refresh"), st.integers(0, 2)),
    st.tuples(st.just("refresh"), st.integers(0, 2)),
)


class BlockingWriter:
    """Another process that writes to the index for a while."""

    def __init__(self, logs: Path) -> None:
        self._path = index_folder(logs) / "lock"
        self._descriptor: int | None = None

    def begin(self) -> None:
        if self._descriptor is None:
            self._path.parent.mkdir(exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def end(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@settings(max_examples=150)
@given(st.lists(OPERATIONS, min_size=8, max_size=25))
def test_whatever_happened_every_index_holds_what_the_folders_hold(operations: list[Any]):
    """Two that stay open and one that is opened anew, with a writer that blocks them at times."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_index, "LOCK_TIMEOUT_S", 0.0)
        patch.setattr(run_index, "MAX_ROWS", 3)
        logs = Path(place)
        indexes, writer = [open_index(logs), open_index(logs)], BlockingWriter(logs)
        ending = [("refresh", 0), ("unlock",), ("refresh", 1), ("refresh", 2)]
        for age_s, (what, *rest) in enumerate([*operations, *ending], 100):
            if what == "write":
                name, key, value = rest
                write_run(logs, name, {key: value}, age_s)
            elif what == "delete":
                shutil.rmtree(logs / rest[0], ignore_errors=True)
            elif what == "lock":
                writer.begin()
            elif what == "unlock":
                writer.end()
            elif what == "damage":
                _damage(logs, rest[0])
            else:
                index = [*indexes, open_index(logs)][rest[0]]
                assert _found_in(index) == repr(sorted(truth(logs).items()))


def _damage(logs: Path, place: int) -> None:
    for path in index_folder(logs).glob("*.runs"):
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= 255
        path.write_bytes(content)


def _found_in(index: RunIndex) -> str:
    try:
        return repr(sorted(contents(index.refresh()).items()))
    except DamagedIndex:  # as a search does
        index.rebuild()
        return repr(sorted(contents(index.refresh()).items()))


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_run_index import Reader, contents, open_index, write_run
logs, own = Path(sys.argv[1]), int(sys.argv[2])
sys.stdin.readline()  # all begin at once
index = open_index(logs)
for number in range(12):
    write_run(logs, f"run-{{own}}-{{number}}", {{"params.writer": own, "params.number": number}})
    age_s = 100 + own * 20 + number
    write_run(logs, "shared", {{"params.writer": own, "params.number": number}}, age_s)
    table = index.refresh()
    found = contents(table)
    for earlier in range(number + 1):
        mine = found[f"run-{{own}}-{{earlier}}"]
        assert mine == {{"params.writer": own, "params.number": earlier}}, mine
"""


def test_ten_processes_that_update_the_index_at_once_lose_and_misfile_nothing(tmp_path: Path):
    script = WRITER.format(tests=str(Path(__file__).parent))
    logs = tmp_path / "logs"
    logs.mkdir()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(logs), str(own)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in range(10)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=300)
        assert writer.returncode == 0, errors
    expected = truth(logs)
    assert len(expected) == 121
    assert contents(open_index(logs).refresh()) == expected
    reader = Reader()
    assert contents(open_index(logs, reader).refresh()) == expected  # as it is on disk
    assert reader.read == []
