"""Only regular files are opened, and opening never waits: real pipes, links and devices."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from traceml.store.regular_files import NotRegularFile, open_regular, read_regular, stat_regular


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _link_to_a_file(path: Path) -> None:
    (path.parent / "target").write_bytes(b"content")
    path.symlink_to(path.parent / "target")


SPECIAL = {
    "a named pipe": _pipe,
    "a socket": _socket,
    "a folder": Path.mkdir,
    "a symbolic link": _link_to_a_file,
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_regular_file_is_refused_at_once_and_named(tmp_path, kind):
    path = tmp_path / "final_summary.json"
    SPECIAL[kind](path)
    with pytest.raises(NotRegularFile, match=f"it is {kind}, expected a regular file"):
        open_regular(path)
    assert stat_regular(path) is None


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/tty", "/dev/null"])
def test_a_link_to_a_device_is_refused_also_where_links_are_followed(tmp_path, device):
    path = tmp_path / "link"
    path.symlink_to(device)
    with pytest.raises(NotRegularFile, match="it is a device"):
        read_regular(path, follow_links=True)


def test_a_link_is_followed_where_the_user_named_it(tmp_path):
    path = tmp_path / "link"
    _link_to_a_file(path)
    assert read_regular(path, follow_links=True) == b"content"


def test_a_file_that_became_a_pipe_after_it_was_looked_at_is_refused(tmp_path, monkeypatch):
    """The check before opening is a courtesy; the one on the open descriptor decides."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    before = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda self, follow_symlinks=True: before)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(NotRegularFile, match="a named pipe"):
        open_regular(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_more_than_the_limit_is_not_read_into_memory(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="bytes are too many, expected at most"):
        read_regular(path)
    assert read_regular(path, offset=(1 << 40) - 3) == b"\0\0\0"
