"""The end of what was printed, as a terminal would show it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traceml.store.output_follower import MAX_COLUMNS, MAX_LINES, TAIL_BYTES, OutputFollower, shown


@pytest.mark.parametrize(
    ("printed", "lines"),
    [
        pytest.param("one\ntwo\n", ("one", "two"), id="lines"),
        pytest.param("one\r\ntwo\r\n", ("one", "two"), id="lines of a terminal"),
        pytest.param("  1%\r 50%\r100%\nend", ("100%", "end"), id="a progress bar"),
        pytest.param("long words\rshort", ("shortwords",), id="what is not drawn over stays"),
        pytest.param("long words\r\x1b[Kshort", ("short",), id="an erased line"),
        pytest.param("\x1b[1;31mred\x1b[0m", ("red",), id="colours"),
        pytest.param("\x1b]0;a title\x07text", ("text",), id="a title"),
        pytest.param("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", ("link",), id="a link"),
        pytest.param("abc\b\bX", ("aXc",), id="backspace"),
        pytest.param("a\tb", ("a       b",), id="a tab"),
        pytest.param(
            "outer 1\n\rinner 1\x1b[A\router 2\n\rinner 2\n",
            ("outer 2", "inner 2"),
            id="bars below each other",
        ),
        pytest.param("a\x00b\x07c\x9b", ("a?b?c?",), id="what cannot be printed"),
        pytest.param("\x1b[9999999999999Ax\x1b[99B\x1b[999999Gy", ("x",), id="far off"),
        pytest.param("end\x1b[", ("end",), id="a sequence that breaks off"),
        pytest.param("\n\n", (), id="nothing"),
    ],
)
def test_what_is_printed_is_shown_as_a_terminal_would(printed: str, lines: tuple[str, ...]) -> None:
    found = shown(printed)
    assert tuple(line[:20].rstrip() for line in found) == lines


def test_a_line_without_end_is_cut() -> None:
    (line,) = shown("x" * 10 * MAX_COLUMNS)
    assert len(line) == MAX_COLUMNS


def test_only_the_last_lines_are_read_and_bytes_that_are_no_text_are_replaced(
    tmp_path: Path,
) -> None:
    output = OutputFollower(tmp_path)
    output.refresh()
    assert output.lines is None
    path = tmp_path / "output.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)) + b"\xff\n")
    output.refresh()
    assert output.lines is not None and len(output.lines) == MAX_LINES
    assert output.lines[-2:] == ("line 99999", "\N{REPLACEMENT CHARACTER}")
    with path.open("ab") as file:
        file.write(b"news")
    output.refresh()
    assert output.lines[-1] == "news"


def test_a_line_whose_beginning_is_too_far_back_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"x" * TAIL_BYTES + b"\nend\n")
    output = OutputFollower(tmp_path)
    output.refresh()
    assert output.lines == ("end",)


def test_a_link_or_a_pipe_in_the_place_of_the_output_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not of this run")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "output.log").symlink_to(secret)
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "output.log")
    for name in ("a", "b"):
        followed = OutputFollower(tmp_path / name)
        followed.refresh()
        assert followed.lines is None
