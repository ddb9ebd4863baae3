"""Who holds a run, and who only looks whether somebody does."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from traceml.model.errors import UnreadableRecords, UsageError
from traceml.model.run import Ending, Manifest
from traceml.store import folder as folders


def test_an_account_without_a_name_is_none(monkeypatch: pytest.MonkeyPatch):
    """As in a container whose user is a number alone."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    assert folders.user_name()
    monkeypatch.setattr("getpass.getuser", unknown)
    assert folders.user_name() == ""


def test_tagging_a_run_of_another_machine_does_not_bring_it_back(tmp_path: Path):
    folders.write_manifest(tmp_path, Manifest("run", 1.0, hostname="another machine"))
    os.utime(tmp_path / folders.MANIFEST, (1, 1))
    (tmp_path / folders.TAGS).write_text("")
    assert not folders.is_going_on(tmp_path)
    (tmp_path / "samples.jsonl").write_text("")
    assert folders.is_going_on(tmp_path)


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


def test_one_who_looks_keeps_nobody_from_holding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "LOOKERS_S", 60.0)
    looking = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    with ThreadPoolExecutor(1) as thread:
        holding = thread.submit(folders.hold, tmp_path)
        os.close(looking)
        held = holding.result(timeout=60)
    assert held is not None
    os.close(held)


def test_one_who_was_stopped_while_he_looked_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "LOOKERS_S", 0.0)
    looking = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert folders.hold(tmp_path) is None
    os.close(looking)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network file system that has none."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


def age(folder: Path, seconds: float) -> None:
    for path in folder.iterdir():
        written_s = path.stat().st_mtime - seconds
        os.utime(path, (written_s, written_s))


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_run_goes_on_while_its_files_are_written(tmp_path: Path) -> None:
    assert folders.hold(tmp_path) is None
    assert not folders.is_going_on(tmp_path)
    folders.write_manifest(tmp_path, Manifest("run", 1.0))
    assert folders.is_going_on(tmp_path)
    age(tmp_path, 2 * folders.FRESH_S)
    assert not folders.is_going_on(tmp_path)
    (tmp_path / "samples.jsonl").write_bytes(b"{}")
    assert folders.is_going_on(tmp_path)
    folders.write_ending(tmp_path, Ending(2.0, 0))
    assert not folders.is_going_on(tmp_path)


@pytest.mark.parametrize(("hostname", "goes_on"), [("far-away", True), (None, False), ("", False)])
def test_a_run_of_another_machine_goes_on_while_its_files_are_written(
    tmp_path: Path, hostname: str | None, goes_on: bool
) -> None:
    """Its lock is not seen from here; one of this machine would be."""
    known = socket.gethostname() if hostname is None else hostname
    folders.write_manifest(tmp_path, Manifest("run", 1.0, hostname=known))
    assert folders.is_going_on(tmp_path) is goes_on
    age(tmp_path, 2 * folders.FRESH_S)
    assert not folders.is_going_on(tmp_path)


@pytest.mark.parametrize("boot_id", ["of another machine", folders.boot_id()])
def test_machines_with_one_hostname_are_told_apart(tmp_path: Path, boot_id: str) -> None:
    """Containers of one machine, which have its number, see each other's locks."""
    manifest = Manifest("run", time.time(), hostname=socket.gethostname(), boot_id=boot_id)
    folders.write_manifest(tmp_path, manifest)
    is_elsewhere = boot_id != folders.boot_id()
    assert folders.is_going_on(tmp_path) is is_elsewhere
    assert folders.is_going_on_elsewhere(tmp_path) is is_elsewhere


def test_a_folder_that_waits_for_its_manifest_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders.create(tmp_path, "run", overwrite=False)
    with pytest.raises(UsageError, match="still going on"):
        folders.create(tmp_path, "run", overwrite=True)
    monkeypatch.setattr(folders, "MANIFEST_TIMEOUT_S", 0.0)
    folders.create(tmp_path, "run", overwrite=True)


def test_a_run_that_may_be_of_the_same_job_is_not_overwritten(tmp_path: Path) -> None:
    """It does not look as if it went on: the clock of the file server differs, say."""
    folder = folders.create(tmp_path, "run", overwrite=False)
    folders.write_manifest(folder, Manifest("run", time.time() - 20.0))
    with pytest.raises(UsageError, match="only just begun"):
        folders.create(tmp_path, "run", overwrite=True, spared_s=30.0)
    folders.create(tmp_path, "run", overwrite=True, spared_s=10.0)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_run_that_goes_on_is_not_overwritten(tmp_path: Path) -> None:
    folder = folders.create(tmp_path, "run", overwrite=False)
    folders.write_manifest(folder, Manifest("run", 1.0))
    with pytest.raises(UsageError, match="still going on"):
        folders.create(tmp_path, "run", overwrite=True)
    age(folder, 2 * folders.FRESH_S)
    assert folders.create(tmp_path, "run", overwrite=True) == folder


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b'"x"',
        b"[" * 100_000,
        b"{}",
        b'{"unix_s": "x"}',
        b'{"unix_s": 1, "exit_status": "x"}',
    ],
)
def test_a_damaged_ending_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ending.json").write_bytes(content)
    assert folders.read_ending(tmp_path) is None


def test_a_manifest_says_which_field_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run_name": "a", "started_unix_s": 1, "nodes": "two"}')
    with pytest.raises(UnreadableRecords, match="nodes is 'two', not int"):
        folders.read_manifest(tmp_path)
