"""What changed between two texts: by line, and inside of lines by word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from traceml.compare.artifact_details import MAX_LISTED, TextChange, TextHunk, TextPart
from traceml.model.printable import file_lines

MAX_ORDERED_LINES = 4000
"""Lines between the first and the last difference that are compared in order; it takes time that
grows with the square."""
MAX_WORDS = 2000
"""Words of a place that are compared one by one; a longer one is shown as replaced."""
MAX_PART = 2000
"""Characters of a part that are kept."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)"
_WORDS = re.compile(rf"{_NUMBER}|\w+|\s+|[^\w\s]")
_IS_NUMBER = re.compile(_NUMBER)
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?)?(Z|[+-]\d\d:?\d\d)?"  # a date and a time
    r"|\b\d{1,3}:\d\d(:\d\d)?([.,]\d+)?\b"  # a time of day, or one that passed
    r"|\b0x[0-9a-fA-F]+\b"
    r"|\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b"  # a UUID
    r"|(?<![A-Za-z_])[-+]?(\d[\d,_]*)?\.?\d+([eE][-+]?\d+)?"  # a number
    r"|[█▉▊▋▌▍▎▏░▒▓]+"
)
_SPACES = re.compile(r"\s+")


def compare_texts(a: str, b: str) -> TextChange:
    """Returns the lines and words that differ."""
    lhs, rhs = file_lines(a), file_lines(b)
    return _compare(lhs, rhs, lhs, rhs, normalised=False)


def compare_logs(a: str, b: str) -> TextChange:
    """Returns the lines that differ in more than times, numbers and addresses."""
    lhs, rhs = (list(map(_last_state, text.split("\n"))) for text in (a, b))
    lhs, rhs = ([line for line in side if line.strip()] for side in (lhs, rhs))
    keys = [[normalised_line(line) for line in side] for side in (lhs, rhs)]
    return _compare(lhs, rhs, keys[0], keys[1], normalised=True)


def normalised_line(line: str) -> str:
    """Returns a line of a log without what differs every time it is written."""
    return _SPACES.sub(" ", _VOLATILE.sub("#", line)).strip()


def _last_state(line: str) -> str:
    """Returns what a terminal shows of a line at its end: progress bars write over themselves."""
    return _ANSI.sub("", line).rstrip("\r").rpartition("\r")[2]


def word_diff(a: str, b: str, normalised: bool = False) -> tuple[TextPart, ...]:
    """Returns two texts as one, with the words that only one of them has.

    Where they are `normalised`, numbers count as equal, and A's are shown.
    """
    lhs, rhs = _WORDS.findall(a), _WORDS.findall(b)
    if max(len(lhs), len(rhs)) > MAX_WORDS:
        return tuple(_parts([("replace", [a], [b])]))
    lhs_keys, rhs_keys = (list(map(_key, side)) if normalised else side for side in (lhs, rhs))
    matcher = SequenceMatcher(None, lhs_keys, rhs_keys, autojunk=False)
    steps = [(op, lhs[i:j], rhs[k:m]) for op, i, j, k, m in matcher.get_opcodes()]
    return tuple(_parts(steps))


def _key(word: str) -> str:
    return "#" if _IS_NUMBER.fullmatch(word) else word


def _parts(steps: Sequence[tuple[str, list[str], list[str]]]) -> Iterator[TextPart]:
    for op, lhs, rhs in steps:
        if op == "equal":
            yield TextPart("same", _cut("".join(lhs)))
            continue
        if lhs:
            yield TextPart("removed", _cut("".join(lhs)))
        if rhs:
            yield TextPart("added", _cut("".join(rhs)))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_PART else text[: MAX_PART - 1] + "…"


def _compare(
    lhs: Sequence[str],
    rhs: Sequence[str],
    lhs_keys: Sequence[str],
    rhs_keys: Sequence[str],
    normalised: bool,
) -> TextChange:
    """Compares lines by their keys, and shows the lines."""
    begin, lhs_end, rhs_end = _middle(lhs_keys, rhs_keys)
    in_order = max(lhs_end, rhs_end) - begin <= MAX_ORDERED_LINES
    if in_order:
        matcher = SequenceMatcher(
            None, lhs_keys[begin:lhs_end], rhs_keys[begin:rhs_end], autojunk=False
        )
        found = [
            (i + begin, j + begin, k + begin, m + begin)
            for op, i, j, k, m in matcher.get_opcodes()
            if op != "equal"
        ]
    else:
        found = list(_unordered(lhs_keys, rhs_keys))
    return TextChange(
        lhs_lines=len(lhs),
        rhs_lines=len(rhs),
        removed=sum(j - i for i, j, _, _ in found),
        added=sum(m - k for _, _, k, m in found),
        normalised=normalised,
        in_order=in_order,
        hunks=tuple(
            TextHunk(i + 1, k + 1, word_diff("\n".join(lhs[i:j]), "\n".join(rhs[k:m]), normalised))
            for i, j, k, m in found[:MAX_LISTED]
        ),
    )


def _middle(lhs: Sequence[str], rhs: Sequence[str]) -> tuple[int, int, int]:
    """Returns where the first difference is, and the ends of both behind the last one."""
    begin, shorter = 0, min(len(lhs), len(rhs))
    while begin < shorter and lhs[begin] == rhs[begin]:
        begin += 1
    back = 0
    while back < shorter - begin and lhs[-1 - back] == rhs[-1 - back]:
        back += 1
    return begin, len(lhs) - back, len(rhs) - back


def _unordered(lhs: Sequence[str], rhs: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Yields the lines that one side has more often than the other, wherever they are."""
    for mine, theirs, is_lhs in ((lhs, rhs, True), (rhs, lhs, False)):
        left = Counter(theirs)
        for number, line in enumerate(mine):
            left[line] -= 1
            if left[line] < 0:
                yield (number, number + 1, 0, 0) if is_lhs else (0, 0, number, number + 1)
