"""Foreign text is printed as one line, without what would move a cursor or colour a page."""

import pytest

from traceml.model.printable import one_line, printable, shorten_at_word, shorten_middle


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


def test_a_long_name_keeps_its_end() -> None:
    assert shorten_middle("validation/class_17/accuracy", 15) == "validat…ccuracy"
    assert shorten_middle("short", 15) == "short"
