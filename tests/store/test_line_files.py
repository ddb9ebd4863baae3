"""Lines are appended whole: of those that a full disk has no room for, none is begun."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest

from processes import small_disk
from traceml.store.line_files import append_lines, write_whole


def test_the_whole_lines_that_fit_are_kept(tmp_path):
    with small_disk(tmp_path / "disk", 8) as disk:
        path = disk / "lines"
        append_lines(path, b"first\n")
        line = b"x" * 99 + b"\n"
        with pytest.raises(OSError, match="No space left"):
            append_lines(path, line * 200)
        kept = path.read_bytes().splitlines(keepends=True)
        assert kept[0] == b"first\n"
        assert 50 < len(kept) < 200
        assert set(kept[1:]) == {line}
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        assert append_lines(path, b"last\n") == len(b"".join(kept))
        assert path.read_bytes().endswith(b"\nlast\n")


def test_a_line_that_its_writer_was_killed_in_is_cut_off(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"whole\nha")
    append_lines(path, b"next\n")
    assert path.read_bytes() == b"whole\nnext\n"


def test_a_stream_that_takes_little_at_a_time_gets_everything():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    content = os.urandom(1 << 20)
    received = bytearray()

    def read() -> None:
        while piece := os.read(reading, 1 << 16):
            received.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    write_whole(writing, content)
    os.close(writing)
    reader.join()
    os.close(reading)
    assert received == content
