"""Foreign text is printed as one line, without what would move a cursor or colour a page."""

import shlex
from pathlib import Path

import pytest

from traceml.model.printable import (
    file_lines,
    one_line,
    pad_left,
    pad_right,
    printable,
    shell_word,
    shorten_at_word,
    shorten_middle,
    terminal_width,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain – text", "plain – text", id="nothing to clean"),
        pytest.param("\x1b[1mbold\x1b[0m and \x1b[38;5;9mred\x1b[m", "bold and red", id="colours"),
        pytest.param("up\x1b[2Aand\x07", "up?[2Aand?", id="what moves the cursor or rings"),
    ],
)
def test_text_is_made_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_of_many_lines_is_one_short_line() -> None:
    assert one_line("first\n  second\tthird", 14) == "first second …"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Rest + communication", "Rest + communication"),
        ("Rest + communication + replays", "Rest + communication …"),
        ("    Rest + communication + replay", "    Rest …"),
        ("communication_without_any_blank", "communication_without_…"),
    ],
)
def test_a_label_is_cut_after_a_whole_word(text: str, shown: str) -> None:
    assert shorten_at_word(text, 23) == shown
    assert len(shorten_at_word(text, 23)) <= 23


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a\nb", ["a", "b"]),
        ("a\r\nb\rc\n", ["a", "b", "c"]),
        ("a\n\n", ["a", ""]),
        ("a\fb\x85c\u2028d\n", ["a\fb\x85c\u2028d"]),
    ],
)
def test_lines_end_where_a_compiler_ends_them(text: str, lines: list[str]) -> None:
    assert file_lines(text) == lines


def test_a_long_name_keeps_its_end() -> None:
    assert shorten_middle("validation/class_17/accuracy", 15) == "validat…ccuracy"
    assert shorten_middle("short", 15) == "short"


@pytest.mark.parametrize(
    ("text", "columns"),
    [("plain", 5), ("größe ±…", 8), ("日本語", 6), ("e\N{COMBINING ACUTE ACCENT}", 1), ("🚀", 2)],
)
def test_the_width_of_a_text_is_that_in_a_terminal(text: str, columns: int) -> None:
    assert terminal_width(text) == columns
    assert pad_right(text, 10) == text + " " * (10 - columns)
    assert pad_left(text, 10) == " " * (10 - columns) + text
    assert pad_left(text, 0) == text


def test_a_path_in_a_command_for_people_is_one_word_of_it() -> None:
    assert shell_word(Path("logs/run-1")) == "logs/run-1"
    assert shlex.split(f"traceml recover {shell_word(Path('my runs/a'))}")[2:] == ["my runs/a"]
