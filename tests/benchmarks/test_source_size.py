"""Only code counts as code."""

from benchmarks.source_size import code_lines, run

MODULE = '''"""What it is for.

In two paragraphs.
"""

import os  # the comment beside it does not matter

# a comment


class Thing:
    """A class."""

    size: int
    """This string is a statement, and counts."""

    def method(self) -> str:
        """A method."""
        return "text"
'''


def test_blank_lines_comments_and_docstrings_are_no_code() -> None:
    assert code_lines(MODULE) == 6


def test_the_source_is_counted() -> None:
    lines, small = run()
    assert lines.measured > 10_000
    assert 0 < small.measured < 100
