"""The difference of two commits as a page shows it."""

from __future__ import annotations

from traceml.figures.code_difference import code_diff

DIFF = """\
diff --git a/a.py b/a.py
@@ -1,3 +1,3 @@
 import os
-first\f = 1\u2028
+first\f = 2\u2028
 last = 3
@@ -9 +9 @@
-x\r
+y\r
"""


def test_a_line_ends_where_git_ends_it():
    shown = code_diff("code", "Code", DIFF)
    assert [each.op for each in shown.lines] == [
        *("head", "head", "same", "removed", "added", "same"),
        *("head", "removed", "added"),
    ]
    assert shown.note == "2 lines added, 2 removed."
    assert shown.lines[-1].text == "+y"


def test_no_difference_has_no_lines():
    assert code_diff("code", "Code", "").lines == ()
