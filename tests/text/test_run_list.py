"""A list of runs as CSV."""

import pytest

from traceml.text.run_list import csv_text


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('=HYPERLINK("http://x","a")', '"\'=HYPERLINK(""http://x"",""a"")"'),
        ("+1+1", "'+1+1"),
        ("-1+cmd|' /C calc'!A0", "'-1+cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        (("=1", "b"), '"\'=1, b"'),
        ("-1e-5", "-1e-5"),
        (-1e-5, "-1e-05"),
        ("a=b", "a=b"),
    ],
)
def test_a_text_is_no_formula_of_a_spreadsheet(value, cell):
    assert csv_text(["=name"], [[value]]).splitlines() == ["'=name", cell]
