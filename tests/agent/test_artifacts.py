"""The agent stores what was logged, each content once, and says what it could not store."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import namedtuple

import pytest

from traceml.agent import artifacts as agent_artifacts
from traceml.agent.artifacts import Artifacts
from traceml.model.artifact import STAGED
from traceml.store import artifact_store
from traceml.store.artifact_store import SHARED
from traceml.store.load import read_artifact_hashes
from traceml.store.logged import artifacts
from traceml.summaries.artifact_versions import artifact_summaries
from traceml.trace import artifact_staging
from traceml.trace.artifact_staging import MAX_COPIED_BYTES, stage

LARGE = b"large " * MAX_COPIED_BYTES
FreeSpace = namedtuple("FreeSpace", "f_bavail f_frsize")


@pytest.fixture
def logs(tmp_path):
    return tmp_path / "logs"


def run_of(logs, name="run"):
    folder = logs / name
    folder.mkdir(parents=True)
    return folder


def log(run, source, name=None):
    message = {"kind": "artifact", "name": name or source.name, "path": str(source), "unix_ns": 1}
    return stage(source, run, message)


def stored(run):
    """Stores what is staged; what the summary then says, by name."""
    Artifacts(run).complete()
    assert not (run / STAGED).exists() or not list((run / STAGED).iterdir())
    return artifact_summaries(artifacts([], read_artifact_hashes(run)))


def test_a_file_is_stored_with_hash_size_and_kind(tmp_path, logs):
    run = run_of(logs)
    (source := tmp_path / "model.pt").write_bytes(b"weights")
    log(run, source, "best model")
    found = stored(run)["best model"]
    assert (found.size_bytes, found.kind, found.version) == (7, "checkpoint", 1)
    assert found.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert (run / found.stored).read_bytes() == b"weights"
    assert found.note is None


def test_an_empty_file_is_an_artifact(tmp_path, logs):
    run = run_of(logs)
    (source := tmp_path / "empty.txt").touch()
    log(run, source)
    found = stored(run)["empty.txt"]
    assert (found.size_bytes, found.sha256) == (0, hashlib.sha256(b"").hexdigest())
    assert (run / found.stored).read_bytes() == b""


@pytest.mark.parametrize("how", ["link", "path"])
def test_a_large_file_that_is_written_to_again_is_told_and_never_mixed_up(
    tmp_path, logs, monkeypatch, how
):
    run = run_of(logs)
    (source := tmp_path / "last.pt").write_bytes(LARGE)
    if how == "path":

        def no_link(*_):
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(artifact_staging.os, "link", no_link)
    log(run, source)
    monkeypatch.undo()
    with source.open("r+b") as file:
        file.write(b"L")
    os.utime(source, ns=(1, source.stat().st_mtime_ns + 1))  # however coarse the system's clock is
    found = stored(run)["last.pt"]
    assert (found.sha256, found.stored) == (None, None)
    assert "written to again" in found.note
    assert (found.kind, found.size_bytes) == ("checkpoint", len(LARGE))
    assert not list((run / "artifacts").glob("*"))


def test_a_file_that_changes_while_it_is_copied_is_told(tmp_path, logs, monkeypatch):
    run = run_of(logs)
    (source := tmp_path / "last.pt").write_bytes(LARGE)
    log(run, source)
    real = artifact_store._hash

    def write_meanwhile(file, copy=None):
        found = real(file, copy)
        with source.open("ab") as grown:
            grown.write(b"more")
        return found

    monkeypatch.setattr(artifact_store, "_hash", write_meanwhile)
    found = stored(run)["last.pt"]
    assert found.stored is None
    assert "written to again" in found.note
    assert not list(logs.glob(f"{SHARED}/*/*"))


def test_versions_are_counted_and_equal_contents_are_none(tmp_path, logs):
    run = run_of(logs)
    source = tmp_path / "last.txt"
    for content in (b"1", b"2", b"2", b"3"):
        source.write_bytes(content)
        log(run, source)
    found = stored(run)["last.txt"]
    assert found.version == 3
    contents = [(run / each.stored).read_bytes() for each in (*found.earlier, found)]
    assert contents == [b"1", b"2", b"3"]


def test_a_content_is_on_disk_once_and_outlives_each_run(tmp_path, logs):
    (source := tmp_path / "data.csv").write_bytes(b"a,b\n" * MAX_COPIED_BYTES)
    runs = [run_of(logs, name) for name in ("first", "second", "third")]
    for run in runs:
        log(run, source)
    places = [run / stored(run)["data.csv"].stored for run in runs]
    assert len({place.stat().st_ino for place in places}) == 1
    shutil.rmtree(runs[0])
    shutil.rmtree(logs / SHARED)
    assert places[1].read_bytes() == places[2].read_bytes() == source.read_bytes()


def test_a_content_that_no_run_has_any_more_is_removed(tmp_path, logs):
    (source := tmp_path / "a.txt").write_bytes(b"a")
    first, second = run_of(logs, "first"), run_of(logs, "second")
    log(first, source)
    source.write_bytes(b"bb")
    log(second, source)
    stored(first), stored(second)
    shutil.rmtree(first)
    Artifacts(second).prune()
    assert [path.parent.name for path in logs.glob(f"{SHARED}/*/*")] == ["2"]


def test_a_shared_content_that_somebody_changed_is_not_used(tmp_path, logs):
    (source := tmp_path / "a.txt").write_bytes(b"good")
    first, second = run_of(logs, "first"), run_of(logs, "second")
    log(first, source)
    place = first / stored(first)["a.txt"].stored
    place.chmod(0o600)
    place.write_bytes(b"evil")
    log(second, source)
    assert (second / stored(second)["a.txt"].stored).read_bytes() == b"good"


def test_without_hard_links_each_run_has_its_copy(tmp_path, logs, monkeypatch):
    def no_link(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(artifact_store.os, "link", no_link)
    (source := tmp_path / "a.txt").write_bytes(b"text")
    for name in ("first", "second"):
        run = run_of(logs, name)
        log(run, source)
        assert (run / stored(run)["a.txt"].stored).read_bytes() == b"text"


def test_a_disk_that_is_nearly_full_keeps_the_hash_alone(tmp_path, logs, monkeypatch):
    monkeypatch.setattr(artifact_store.os, "statvfs", lambda _: FreeSpace(1 << 18, 4096))
    run = run_of(logs)
    (source := tmp_path / "a.txt").write_bytes(b"text")
    log(run, source)
    found = stored(run)["a.txt"]
    assert found.sha256 == hashlib.sha256(b"text").hexdigest()
    assert found.stored is None
    assert found.note == (
        "its content was not kept: it has 4 B, and the disk's last 1.00 GiB are training's"
    )


def test_more_than_a_run_may_keep_is_described_only(tmp_path, logs, monkeypatch):
    monkeypatch.setattr(agent_artifacts, "MAX_KEPT_BYTES", 6)
    run = run_of(logs)
    source = tmp_path / "a.txt"
    for content in (b"text", b"more"):
        source.write_bytes(content)
        log(run, source)
    found = stored(run)["a.txt"]
    assert found.earlier[0].stored is not None
    assert found.stored is None
    assert "a run keeps 6 B at most" in found.note


def test_an_error_of_the_disk_is_told(tmp_path, logs, monkeypatch):
    run = run_of(logs)
    (source := tmp_path / "a.txt").write_bytes(b"text")
    log(run, source)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact_store, "_clone", full)
    found = stored(run)["a.txt"]
    assert found.note == "its content could not be kept (No space left on device)"
    assert not list((run / "artifacts").glob("*"))


def test_a_folder_is_stored_whole(tmp_path, logs):
    source = tmp_path / "checkpoint-10"
    (source / "sub").mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "sub" / "model.safetensors").write_bytes(b"x")
    (source / "out").symlink_to("/etc")
    run, moved = run_of(logs), tmp_path / "checkpoint-20"
    log(run, source, "checkpoint")
    source.rename(moved)
    log(run, moved, "checkpoint")
    found = stored(run)["checkpoint"]
    assert (found.kind, found.version) == ("folder", 1)  # the same files under another name
    assert (run / found.stored / "config.json").read_text() == "{}"
    assert found.files["sub/model.safetensors"].kind == "checkpoint"
    assert found.note == "1 symbolic link left out"


def test_what_an_agent_left_behind_is_stored_by_the_next_one(tmp_path, logs):
    run = run_of(logs)
    (source := tmp_path / "a.txt").write_bytes(b"text")
    log(run, source)
    (run / STAGED / "0-1.part").mkdir()  # of a process that was killed in the call
    agent = Artifacts(run)
    agent.close()
    for piece in agent.pieces():
        piece()
    assert read_artifact_hashes(run)
    assert stored(run)["a.txt"].stored == "artifacts/0001/a.txt"


@pytest.mark.parametrize("path", ["../../../escaped", "/tmp/escaped", "a\0b", ""])
def test_no_path_leads_out_of_the_run(tmp_path, logs, path):
    run = run_of(logs)
    (source := tmp_path / "a.txt").write_bytes(b"text")
    facts = run / STAGED / log(run, source) / "staged.json"
    known = json.loads(facts.read_text())
    known["files"][0]["path"] = path
    facts.write_text(json.dumps(known))
    found = stored(run)
    for artifact in found.values():
        assert (run / artifact.stored).resolve().is_relative_to(run)
    assert not list(tmp_path.rglob("escaped"))


def test_damaged_facts_of_a_call_harm_no_other(tmp_path, logs):
    run = run_of(logs)
    call = {"name": "x", "path": "x", "unix_ns": 1, "is_folder": False, "files": []}
    for content in ("{", "[]", '{"name": 1}', json.dumps(call)):
        (run / STAGED / content.encode().hex()).mkdir(parents=True)
        (run / STAGED / content.encode().hex() / "staged.json").write_text(content)
    (source := tmp_path / "a.txt").write_bytes(b"text")
    log(run, source)
    Artifacts(run).complete()
    assert len(read_artifact_hashes(run)) == 1


def test_a_file_of_the_same_size_and_another_content_is_copied_in_one_pass(
    tmp_path, logs, monkeypatch
):
    run, passes = run_of(logs), []
    real = artifact_store._hash
    monkeypatch.setattr(
        artifact_store, "_hash", lambda *given: passes.append(len(given)) or real(*given)
    )
    source = tmp_path / "last.pt"
    for content in (b"1" * 100_000, b"2" * 100_000, b"2" * 100_000):
        source.write_bytes(content)
        log(run, source)
    assert stored(run)["last.pt"].version == 2
    assert passes == [2, 2, 1]  # two copies, and one that is known already


def test_what_a_killed_agent_had_half_copied_is_removed_and_no_file_of_the_users(tmp_path, logs):
    run = run_of(logs)
    (source := tmp_path / "weights.part").write_bytes(b"mine")
    log(run, source)
    place = run / stored(run)["weights.part"].stored
    (half := place.with_name(".traceml-123.part")).write_bytes(b"half")
    Artifacts(run).complete()
    assert place.read_bytes() == b"mine"
    assert not half.exists()


def test_of_a_folder_that_cannot_be_kept_whole_nothing_is_counted(tmp_path, logs, monkeypatch):
    monkeypatch.setattr(agent_artifacts, "MAX_KEPT_BYTES", 6)
    (source := tmp_path / "folder").mkdir()
    (source / "a").write_bytes(b"aaaa")
    (source / "b").write_bytes(b"bbbb")
    run = run_of(logs)
    log(run, source)
    (other := tmp_path / "c").write_bytes(b"cccc")
    log(run, other)
    found = stored(run)
    assert (found["folder"].stored, found["folder"].kind) == (None, "folder")
    assert found["c"].stored is not None


def test_an_empty_folder_is_an_artifact_that_holds_nothing(tmp_path, logs):
    run = run_of(logs)
    (source := tmp_path / "empty").mkdir()
    log(run, source)
    found = stored(run)["empty"]
    assert (found.kind, found.size_bytes, found.note) == ("folder", 0, "it holds no file")
    assert list((run / "artifacts").iterdir()) == []


def test_a_large_file_that_every_rank_logs_is_read_once(tmp_path, logs, monkeypatch):
    run, passes = run_of(logs), []
    real = artifact_store._hash
    monkeypatch.setattr(artifact_store, "_hash", lambda *given: passes.append(1) or real(*given))
    (source := tmp_path / "model.pt").write_bytes(LARGE)
    for _ in range(4):
        log(run, source)
    found = stored(run)["model.pt"]
    assert (found.version, len(passes)) == (1, 1)
    assert (run / found.stored).stat().st_size == len(LARGE)


def test_where_files_can_share_blocks_the_copy_is_read_for_its_hash(tmp_path, logs, monkeypatch):
    """Stands in for Linux's `FICLONE`, which not every file system has."""

    def clone(file, copy):
        os.pwrite(copy.fileno(), os.pread(file.fileno(), 1 << 20, 0), 0)
        return True

    monkeypatch.setattr(artifact_store, "_clone", clone)
    run = run_of(logs)
    (source := tmp_path / "model.pt").write_bytes(b"weights")
    log(run, source)
    found = stored(run)["model.pt"]
    assert found.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert (run / found.stored).read_bytes() == b"weights"
