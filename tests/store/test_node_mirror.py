"""Copies of node folders: pieces of files, repeated, interrupted, forged."""

from __future__ import annotations

import errno
import os
import random
import tracemalloc
import zlib
from pathlib import Path

import pytest

from factories import make_run
from run_folders import write_rank, write_run
from traceml.store import node_mirror
from traceml.store.folder import write_atomically
from traceml.store.line_files import append_lines
from traceml.store.node_mirror import (
    CopyListing,
    FilePiece,
    FolderChanges,
    ForgedPiece,
    MissingBytes,
    apply_piece,
    copy_folder,
    list_copy,
)


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in list_copy(folder)}


def send(changes: FolderChanges, copy: Path) -> list[FilePiece]:
    sent = []
    while pieces := changes.next_pieces():
        sent += pieces
        for piece in pieces:
            apply_piece(copy, piece)
        changes.confirm()
    return sent


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return write_run(tmp_path / "node", make_run(ranks=2, steps=20), is_over=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    return folder


def test_a_copy_holds_what_the_node_recorded_and_not_what_is_its_own(node: Path, copy: Path):
    for name in ("final_summary.json", "live.json", "summary-answer.json", ".reserved"):
        (node / name).write_text("{}")
    (node / "artifacts").mkdir()
    (node / "artifacts" / "model.pt").write_bytes(b"weights")
    copy_folder(node, copy)
    assert {path.name for path in copy.iterdir()} == {
        "run.json",
        "samples.jsonl",
        "rank-0-1000.0000.steps",
        "rank-1-1001.0000.steps",
    }
    assert contents(copy) == contents(node)


def test_steps_that_follow_are_sent_alone(node: Path, copy: Path):
    changes = FolderChanges(node)
    send(changes, copy)
    before = (node / "rank-0-1000.0000.steps").stat().st_size
    run = make_run(ranks=2, steps=40)
    write_rank(node, run.ranks[0], 20)
    sent = send(changes, copy)
    assert contents(copy) == contents(node)
    assert {piece.name for piece in sent} == {"rank-0-1000.0000.steps"}
    assert {piece.offset for piece in sent} == {0, before}  # the head, and the new steps
    assert all(piece.total is None for piece in sent)


def test_nothing_is_sent_where_nothing_changed(node: Path, copy: Path):
    changes = FolderChanges(node)
    send(changes, copy)
    os.utime(node / "samples.jsonl")
    assert send(changes, copy) == []


def arrives(changes: FolderChanges, pieces: list[FilePiece], copy: Path) -> bool:
    """Write pieces; where bytes before one are missing, its file is to be sent again."""
    try:
        for piece in pieces:
            apply_piece(copy, piece)
    except MissingBytes as missing:
        changes.send_again(missing.name)
        return False
    return True


def change_a_file(folder: Path, chance: random.Random) -> None:
    names = ("a.jsonl", "b.messages", "c.json", "output.log", "agent_saw.json")
    path = folder / chance.choice(names)
    what = chance.random()
    if what < 0.5:
        append_lines(path, chance.randbytes(chance.randrange(400)).hex().encode() + b"\n")
    elif what < 0.7:
        write_atomically(path, chance.randbytes(chance.randrange(900)))
    elif what < 0.8 and path.exists():
        os.truncate(path, path.stat().st_size // 2)
        append_lines(path, b"other\n")
    elif what < 0.85:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("seed", range(20))
def test_any_changes_arrive_whatever_is_lost_on_the_way(
    node: Path, copy: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Files grow, are replaced, cut and removed, while answers get lost and either side begins
    anew."""
    monkeypatch.setattr(node_mirror, "MAX_PIECES_BYTES", 700)
    chance = random.Random(seed)
    changes = FolderChanges(node)
    for _ in range(60):
        change_a_file(node, chance)
        for _ in range(chance.randrange(3)):
            pieces = changes.next_pieces()
            if chance.random() < 0.2:
                continue  # lost on the way there
            if not arrives(changes, pieces, copy):
                continue
            if chance.random() < 0.8:  # otherwise the answer is lost, and they come again
                changes.confirm()
        if chance.random() < 0.1:
            changes = FolderChanges(node)  # the agent was restarted
            changes.begin_from(list_copy(copy))
    changes.begin_from(list_copy(copy))
    send(changes, copy)
    assert contents(copy) == contents(node)


def test_an_agent_that_is_restarted_sends_only_what_is_missing(node: Path, copy: Path):
    copy_folder(node, copy)
    append_lines(node / "samples.jsonl", b"{}\n")
    changes = FolderChanges(node)
    changes.begin_from(list_copy(copy))
    sent = send(changes, copy)
    assert [(piece.name, piece.data) for piece in sent] == [("samples.jsonl", b"{}\n")]


def test_a_piece_behind_the_end_says_where_to_go_on(copy: Path):
    apply_piece(copy, FilePiece("a.jsonl", 0, b"abc"))
    with pytest.raises(MissingBytes) as refused:
        apply_piece(copy, FilePiece("a.jsonl", 5, b"f"))
    assert (refused.value.name, refused.value.size) == ("a.jsonl", 3)
    assert (copy / "a.jsonl").read_bytes() == b"abc"


def test_a_repeated_piece_changes_nothing(copy: Path):
    for piece in (FilePiece("a.jsonl", 0, b"abc"), FilePiece("a.jsonl", 3, b"def")) * 2:
        apply_piece(copy, piece)
    assert (copy / "a.jsonl").read_bytes() == b"abcdef"


def test_a_replaced_file_is_seen_whole_or_not_at_all(copy: Path):
    apply_piece(copy, FilePiece("a.json", 0, b"old", 3))
    apply_piece(copy, FilePiece("a.json", 0, b"new", 6))
    assert (copy / "a.json").read_bytes() == b"old"
    apply_piece(copy, FilePiece("a.json", 3, b"est", 6))
    assert (copy / "a.json").read_bytes() == b"newest"


@pytest.mark.parametrize(
    "piece",
    [
        FilePiece("../run.json", 0, b""),
        FilePiece("/etc/passwd", 0, b""),
        FilePiece("marks/../../run.json", 0, b""),
        FilePiece("nodes/other/run.json", 0, b""),
        FilePiece("artifacts/model.pt", 0, b""),
        FilePiece("..", 0, b""),
        FilePiece("", 0, b""),
        FilePiece(".shared", 0, b""),
        FilePiece("a\\b", 0, b""),
        FilePiece("a\0b", 0, b""),
        FilePiece("final_summary.json", 0, b""),
        FilePiece("a.json", -1, b"x"),
        FilePiece("a.json", 4, b"beyond", 6),
        FilePiece("a.json", 0, b"x", 1 << 40),
        FilePiece("a.jsonl", 1 << 40, b"x"),
    ],
    ids=lambda piece: repr(piece.name) or "empty",
)
def test_a_forged_piece_is_refused(copy: Path, piece: FilePiece):
    with pytest.raises(ForgedPiece):
        apply_piece(copy, piece)
    assert list(copy.parent.rglob("*")) == [copy]


def test_a_link_in_the_copy_is_not_followed(copy: Path, tmp_path: Path):
    (tmp_path / "secret").write_text("keep")
    (copy / "a.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError):
        apply_piece(copy, FilePiece("a.jsonl", 0, b"lost"))
    assert (tmp_path / "secret").read_text() == "keep"


def test_a_file_too_large_stays_on_its_node_and_is_named(
    node: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_mirror, "MAX_FILE_BYTES", 60_000)
    (node / "layers-7.jsonl").write_bytes(b"x" * 60_001)
    (node / "memory-snapshot-7.pickle").write_bytes(b"x")
    changes = FolderChanges(node)
    send(changes, copy)
    assert set(changes.files_left) == {"layers-7.jsonl", "memory-snapshot-7.pickle"}
    assert not (copy / "layers-7.jsonl").exists()


def test_the_listing_of_a_copy_has_checksums(copy: Path):
    apply_piece(copy, FilePiece("a.jsonl", 0, b"abc"))
    assert list_copy(copy) == {"a.jsonl": (3, zlib.crc32(b"abc"))}


def test_a_file_of_a_copy_is_read_again_only_where_it_has_changed(
    copy: Path, monkeypatch: pytest.MonkeyPatch
):
    read, opened = [], node_mirror._open
    monkeypatch.setattr(node_mirror, "_open", lambda path: read.append(path.name) or opened(path))
    for name in ("a.jsonl", "b.jsonl"):
        apply_piece(copy, FilePiece(name, 0, b"abc"))
    listing = CopyListing()
    first = listing.files(copy)
    assert listing.files(copy) == first
    apply_piece(copy, FilePiece("b.jsonl", 3, b"d"))
    assert listing.files(copy) == {**first, "b.jsonl": (4, zlib.crc32(b"abcd"))}
    assert sorted(read) == ["a.jsonl", "b.jsonl", "b.jsonl"]


def test_a_large_file_is_compared_piece_by_piece(
    node: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a broken link both sides read what they have: a node's memory must not grow with it."""
    output = bytes(8 << 20)
    (node / "output.log").write_bytes(output)
    apply_piece(copy, FilePiece("output.log", 0, output))
    there = CopyListing().files(copy)
    changes = FolderChanges(node)
    tracemalloc.start()
    changes.begin_from(there)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20
    assert "output.log" not in {piece.name for piece in changes.next_pieces()}


def test_a_listing_that_nobody_waits_for_is_not_made(copy: Path):
    apply_piece(copy, FilePiece("a.jsonl", 0, b"abc"))
    assert CopyListing().files(copy, lambda: False) == {}


class _Stale:
    """A file that its server has forgotten."""

    def __init__(self, entry: os.DirEntry[str]) -> None:
        self.name = entry.name

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")


def test_a_file_that_cannot_be_looked_at_holds_up_no_other_and_is_named(
    node: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    (node / "layers-7.jsonl").write_bytes(b"x")
    list_entries = os.scandir

    def scandir(folder: Path) -> list[object]:
        entries = list(list_entries(folder))
        return [_Stale(each) if each.name == "layers-7.jsonl" else each for each in entries]

    changes = FolderChanges(node)
    send(changes, copy)
    append_lines(node / "samples.jsonl", b"{}\n")
    with monkeypatch.context() as server_forgets:
        server_forgets.setattr(os, "scandir", scandir)
        send(changes, copy)
        assert changes.files_left == ("layers-7.jsonl",)
    assert (copy / "samples.jsonl").read_bytes() == (node / "samples.jsonl").read_bytes()
    assert (copy / "layers-7.jsonl").exists()  # what arrived before stays
    send(changes, copy)
    assert changes.files_left == ()


def test_a_folder_that_cannot_be_listed_for_now_is_not_taken_for_empty(
    node: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    def stale(folder: Path) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    changes = FolderChanges(node)
    send(changes, copy)
    before = contents(copy)
    with monkeypatch.context() as server_forgets:
        server_forgets.setattr(os, "scandir", stale)
        with pytest.raises(OSError, match="Stale"):
            changes.next_pieces()
    assert send(changes, copy) == []
    assert contents(copy) == before
