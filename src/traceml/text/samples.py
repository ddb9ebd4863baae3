"""A comparison on one test set as text: each score, how sure it is, and the segments that moved."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from traceml.compare.logged_words import number
from traceml.compare.sample_record import PairedDifference, SampleComparison, ScoreComparison
from traceml.model.printable import one_line, shorten_middle
from traceml.model.quantities import count

WIDTH = 100
MAX_SCORES = 6
MAX_SEGMENTS = 8
_NAME_WIDTH = 40
_TESTS = {"mcnemar": "McNemar's test", "t": "paired t test"}
_INDENT = "  "


def samples_text(name: str, found: SampleComparison, hint: str = "") -> list[str]:
    """Returns the lines about one test set, at most `WIDTH` columns wide."""
    said = [f"On the same {count(found.paired, 'sample')} ({one_line(name, _NAME_WIDTH)}):"]
    for score, each in list(found.scores.items())[:MAX_SCORES]:
        said += _wrapped(_INDENT, score_words(score, each))
        said += _segments(each)
    notes = sample_notes(found, hint)
    return [*said, *(line for note in notes for line in _wrapped(_INDENT, note))]


def sample_notes(found: SampleComparison, hint: str = "") -> Iterator[str]:
    """Yields what else has to be known about a comparison on one test set; `hint` says how to tell
    which way a score improves."""
    if found.only_in_a or found.only_in_b:
        yield (
            f"Left out, because only one side has them: {found.only_in_a:,} of A and "
            f"{found.only_in_b:,} of B."
        )
    for name, each in list(found.scores.items())[:MAX_SCORES]:
        lost = [
            f"{side} has no number for {count(number, 'sample')}"
            for side, number in zip("AB", each.without_number, strict=True)
            if number
        ]
        if lost:
            yield f"{one_line(name, _NAME_WIDTH)}: {', '.join(lost)}; left out of the comparison."
    more = len(found.scores) - MAX_SCORES
    if more > 0:
        yield f"{count(more, 'more score')}, in the JSON file."
    guessed = [name for name, each in found.scores.items() if each.direction_from == "name"]
    if guessed:
        listed = ", ".join(one_line(name, _NAME_WIDTH) for name in guessed[:MAX_SCORES])
        yield f"Better or worse is guessed from the name of {listed}."
    unknown = [name for name, each in found.scores.items() if each.higher_is_better is None]
    if unknown:
        listed = ", ".join(one_line(name, _NAME_WIDTH) for name in unknown[:MAX_SCORES])
        yield f"Whether more of {listed} is better is not known{hint}."
    yield "The intervals are about these two models; another training of each is not in them."


def score_words(name: str, found: ScoreComparison) -> str:
    """Returns what became of one score: both means, the change, its interval and its tests."""
    whole = found.whole
    said = f"{one_line(name, _NAME_WIDTH)}: {difference_words(whole, found.higher_is_better)}"
    if whole.p is None:
        return f"{said}; too few samples to test."
    said += f"; {_TESTS.get(whole.test or '', whole.test)}, p {p_words(whole.p)}"
    if whole.only_a_right is not None and whole.only_b_right is not None:
        said += f" ({whole.only_b_right:,} right in B alone, {whole.only_a_right:,} in A alone)"
    if whole.wilcoxon_p is not None and whole.test != "mcnemar":
        said += f"; Wilcoxon's test, p {p_words(whole.wilcoxon_p)}"
    return f"{said}. {found.status}."


def difference_words(found: PairedDifference, higher_is_better: bool | None) -> str:
    """Returns both means and the change with its interval: 0.81 -> 0.84, +0.03 (…) better."""
    if found.delta is None:
        return "no sample in common"
    said = f"{number(found.lhs)} -> {number(found.rhs)}, {found.delta:+,.3g}"
    if found.interval is not None:
        low, high = found.interval
        said += f" (95% CI {low:+,.3g} … {high:+,.3g})"
    if found.delta and higher_is_better is not None:
        said += " better" if (found.delta > 0) is higher_is_better else " worse"
    return said


def p_words(p: float) -> str:
    """Returns a p-value in words."""
    return "< 0.0001" if p < 0.0001 else f"= {p:.2g}"


def _segments(found: ScoreComparison) -> list[str]:
    """Returns the segments that the samples show to differ, and else the largest changes."""
    shown = segments_shown(found.segments)
    if not shown:
        return []
    lines = []
    for name in shown:
        each = found.segments[name]
        mark = " *" if each.significant else ""
        said = difference_words(each, found.higher_is_better)
        segment = shorten_middle(one_line(name), _NAME_WIDTH)
        lines += _wrapped(_INDENT * 2, f"{segment} ({count(each.count, 'sample')}): {said}{mark}")
    hidden = len(found.segments) - len(shown)
    if hidden:
        lines.append(f"{_INDENT * 2}… and {count(hidden, 'more segment')}, in the JSON file")
    if any(found.segments[name].significant for name in shown):
        lines.append(f"{_INDENT * 2}* p < 0.05, corrected for the number of segments")
    return lines


def segments_shown(segments: Mapping[str, PairedDifference]) -> list[str]:
    """Returns the segments worth a line: those that are shown to differ first, then by size."""

    def order(name: str) -> tuple[bool, float]:
        each = segments[name]
        return (not each.significant, -abs(each.delta or 0.0))

    return sorted(segments, key=order)[:MAX_SEGMENTS]


def _wrapped(opening: str, sentence: str) -> list[str]:
    return textwrap.wrap(
        one_line(sentence, 1000),
        WIDTH,
        initial_indent=opening,
        subsequent_indent=opening + _INDENT,
        break_on_hyphens=False,
    )
