"""What `log_artifact` holds is the content at the call, whatever the script does afterwards."""

from __future__ import annotations

import json
import os
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest

import traceml
from traceml.model.artifact import STAGED, STAGED_FACTS
from traceml.trace import artifact_staging
from traceml.trace.artifact_staging import MAX_COPIED_BYTES, CannotBeKept, stage


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "logs" / "run"
    folder.mkdir(parents=True)
    return folder


def staged(run_folder, source):
    place = run_folder / STAGED / stage(source, run_folder, {"name": "it"})
    return place, json.loads((place / STAGED_FACTS).read_text())


def test_a_small_file_is_copied_so_that_writing_to_it_again_changes_nothing(tmp_path, run_folder):
    source = tmp_path / "last.pt"
    source.write_bytes(b"first")
    place, facts = staged(run_folder, source)
    source.write_bytes(b"again")  # into the same file
    assert (place / "0").read_bytes() == b"first"
    assert facts["files"][0]["how"] == "copy"


@pytest.mark.parametrize("then", ["deleted", "replaced", "renamed"])
def test_a_large_file_is_linked_so_that_it_outlives_its_name(tmp_path, run_folder, then):
    source = tmp_path / "large.bin"
    source.write_bytes(b"first" * MAX_COPIED_BYTES)
    place, facts = staged(run_folder, source)
    (other := tmp_path / "other").write_bytes(b"again")
    if then == "replaced":
        other.replace(source)
    else:
        source.unlink() if then == "deleted" else source.rename(tmp_path / "best.bin")
    assert (place / "0").read_bytes() == b"first" * MAX_COPIED_BYTES
    (file,) = facts["files"]
    assert (file["how"], file["size_bytes"]) == ("link", 5 * MAX_COPIED_BYTES)


def test_a_large_file_on_another_disk_is_left_where_it_is(tmp_path, run_folder, monkeypatch):
    source = tmp_path / "large.bin"
    source.write_bytes(b"0" * (MAX_COPIED_BYTES + 1))

    def no_link(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(artifact_staging.os, "link", no_link)
    _, facts = staged(run_folder, source)
    (file,) = facts["files"]
    assert (file["how"], file["source"]) == ("path", str(source))


def test_a_folder_is_staged_without_its_links(tmp_path, run_folder):
    source = tmp_path / "checkpoint"
    (source / "deep").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "deep" / "ünï.txt").write_text("x")
    (source / "passwd").symlink_to("/etc/passwd")
    (source / "etc").symlink_to("/etc")
    os.mkfifo(source / "pipe")
    place, facts = staged(run_folder, source)
    assert [file["path"] for file in facts["files"]] == [
        "checkpoint/config.json",
        "checkpoint/deep/ünï.txt",
    ]
    assert facts["links_left_out"] == 2
    assert sorted(path.name for path in place.iterdir()) == ["0", "1", STAGED_FACTS]


def test_a_link_that_the_user_names_is_the_file_it_leads_to(tmp_path, run_folder):
    (tmp_path / "epoch-3.pt").write_bytes(b"3" * (MAX_COPIED_BYTES + 1))
    (tmp_path / "last.pt").symlink_to("epoch-3.pt")
    place, _ = staged(run_folder, tmp_path / "last.pt")
    assert not (place / "0").is_symlink()
    assert (place / "0").stat().st_size == MAX_COPIED_BYTES + 1


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _many_files(path: Path) -> None:
    path.mkdir()
    for number in range(1001):
        (path / str(number)).touch()


def test_a_large_folder_is_not_read_to_its_end(tmp_path, run_folder, monkeypatch):
    _many_files(path := tmp_path / "it")
    real, read = os.scandir, []

    @contextmanager
    def large(folder):
        with real(folder) as entries:
            known = list(entries)
        yield (read.append(1) or each for each in known * 20)

    monkeypatch.setattr(artifact_staging.os, "scandir", large)
    with pytest.raises(CannotBeKept, match="more than 1,000 files"):
        stage(path, run_folder, {})
    assert len(read) == 1001


def _own_parent(path: Path) -> None:
    path.symlink_to(path.parent)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "there is no file"),
        (_fifo, "is a named pipe"),
        (_socket, "is a socket"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device"),
        (_many_files, "more than 1,000 files"),
        (_own_parent, "the run's own folder"),
    ],
    ids=["missing", "pipe", "socket", "device", "too many files", "holds the run"],
)
def test_what_cannot_be_kept_is_refused_with_a_reason(tmp_path, run_folder, make, said):
    make(path := tmp_path / "it")
    with pytest.raises(CannotBeKept, match=said):
        stage(path, run_folder, {})
    assert not (run_folder / STAGED).exists() or not list((run_folder / STAGED).iterdir())


def test_on_a_disk_that_is_nearly_full_nothing_is_copied(tmp_path, run_folder, monkeypatch):
    (source := tmp_path / "a.txt").write_text("text")
    (empty := tmp_path / "empty").touch()
    free = os.statvfs(tmp_path)
    few = os.statvfs_result((free.f_bsize, 4096, *free[2:4], 1000, *free[5:]))
    monkeypatch.setattr(artifact_staging.os, "statvfs", lambda _: few)
    assert staged(run_folder, source)[1]["files"][0]["how"] == "link"
    assert staged(run_folder, empty)[1]["files"][0]["how"] == "copy"


def test_a_full_disk_leaves_no_half_of_an_artifact(tmp_path, run_folder, monkeypatch):
    (source := tmp_path / "a.txt").write_text("text")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        stage(source, run_folder, {})
    assert list((run_folder / STAGED).iterdir()) == []


def test_wrong_calls_are_refused_once_and_training_goes_on(traced, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    for wrong in ("nothing", "", "pipe", None, 3):
        traceml.log_artifact(wrong)
    traceml.log_artifact("a.txt", name=7)
    traceml.log_artifact("a.txt", name="ünï/../a b")
    traced.finish()
    (message,) = traced.messages()
    assert (message["name"], message["path"]) == ("ünï/../a b", str(tmp_path / "a.txt"))
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "there is no file" in said[0]


def test_an_artifact_that_cannot_be_staged_is_recorded_and_said(traced, capfd, tmp_path):
    (traced.folder / STAGED).write_text("in the way")
    (source := tmp_path / "b.txt").write_text("text")
    traceml.log_artifact(source)
    traced.finish()
    (message,) = traced.messages()
    assert message["note"].startswith("its content could not be kept (")
    assert "could not be kept" in capfd.readouterr().err
