"""What changed in the code between two runs, as lines to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traceml.figures.page import Diff, DiffLine, DiffOp, Part
from traceml.figures.words import output_line
from traceml.model.quantities import count

MAX_LINES = 3000
"""Of one difference; all of it is what `traceml compare --code-diff` writes."""
MAX_LINE_CHARS = 400
MAX_ALL_LINES = 12_000
"""Of all differences on a page."""
OPEN_LINES = 120
"""A difference of two runs that is no longer than this is shown at once."""

_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True)
class CodeDifference:
    """The code of some runs against that of the baseline."""

    labels: tuple[str, ...]
    """The runs that share this code."""
    text: str | None
    """As `git diff` writes it; empty where it is the baseline's, `None` where it is not known."""


def code_part(found: Sequence[CodeDifference], baseline: str = "A") -> Part | None:
    """Returns which runs share the code of the baseline, and the difference of each other code."""
    if not found:
        return None
    diffs: list[Diff] = []
    left = MAX_ALL_LINES
    for number, each in enumerate(found):
        if each.text:
            labels = ", ".join(each.labels)
            diff = code_diff(
                f"code-{number}", f"{baseline} → {labels}", each.text, min(left, MAX_LINES)
            )
            left -= len(diff.lines)
            diffs.append(diff)
    if len(diffs) == 1 and len(diffs[0].lines) <= OPEN_LINES:
        only = diffs[0]
        diffs = [Diff(only.id, only.title, only.lines, only.note, is_open=True)]
    note = " ".join(_sentences(found, baseline)) or None
    if not diffs and note is None:
        return None
    return Part(id="code", title="Code", note=note, diffs=tuple(diffs), is_wide=bool(diffs))


def _sentences(found: Sequence[CodeDifference], baseline: str) -> Iterator[str]:
    same = [label for each in found if each.text == "" for label in each.labels]
    unknown = [label for each in found if each.text is None for label in each.labels]
    if same:
        yield f"The same code as {baseline}: {', '.join(same)}."
    if unknown:
        yield (
            f"Not known of {', '.join(unknown)}: no Git repository here has the commits of both "
            "runs, or their uncommitted changes were not kept."
        )


def code_diff(name: str, title: str, text: str, limit: int = MAX_LINES) -> Diff:
    """Returns the output of `git diff` line by line."""
    # Git ends a line at a line feed alone: a form feed within one is no end, or hunks would be
    # miscounted.
    ended = text.removesuffix("\n").split("\n") if text else []
    lines = [each.removesuffix("\r") for each in ended]
    shown = tuple(_lines(lines[: max(limit, 0)]))
    added, removed = (sum(each.op == op for each in shown) for op in ("added", "removed"))
    note = f"{count(added, 'line')} added, {count(removed)} removed"
    hidden = len(lines) - len(shown)
    if hidden > 0:
        note += f"; {count(hidden, 'more line')} of the difference are not shown here"
    return Diff(name, title, shown, f"{note}.")


def _lines(lines: Sequence[str]) -> Iterator[DiffLine]:
    """Yields the lines with what each is; only inside of a hunk does a sign say so: a removed line
    may itself begin with two more."""
    removed_left = added_left = 0
    for text in lines:
        shown = output_line(text[:MAX_LINE_CHARS] + ("…" if len(text) > MAX_LINE_CHARS else ""))
        op: DiffOp = "head"
        if removed_left > 0 or added_left > 0:
            op = "added" if text.startswith("+") else "removed" if text[:1] == "-" else "same"
            if not text.startswith("\\"):  # "\\ No newline at end of file" is no line of either
                removed_left -= op != "added"
                added_left -= op != "removed"
        elif hunk := _HUNK.match(text):
            removed_left, added_left = (int(size or 1) for size in hunk.groups())
        yield DiffLine(op, shown)
