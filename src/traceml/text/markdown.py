"""A comparison as a pull-request comment: the verdict first, the details collapsed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum

from traceml.compare.record import Comparison, Status
from traceml.model.printable import one_line
from traceml.model.quantities import count
from traceml.summaries.record import Summary
from traceml.text import comparison_notes as notes
from traceml.text.artifacts import artifact_lines
from traceml.text.changes import ChangeLine, rows
from traceml.text.host_time import host_time_sentences
from traceml.text.layer_changes import layer_sentences
from traceml.text.samples import score_words
from traceml.text.summary import summary_text

MAX_BYTES = 60_000
"""GitHub accepts 65,536 characters in a comment, and a workflow adds some of its own."""
MAX_LINES = 200
_MAX_CHARS = 300
_SHORTENED = "Details have no room here; they are in the files that the comparison wrote."
_NOTE_BYTES = 200
_SHORT_NAME = 24
_NESTED = "&emsp;"
_SIGNS = {
    Status.IMPROVEMENT: "🟢",
    Status.NO_CHANGE: "⚪",
    Status.REGRESSION: "🔴",
    Status.MIXED: "🟠",
    Status.INCONCLUSIVE: "🟡",
}
_MEANINGFUL = re.compile(r"[\\`*_\[\]<>#|~&@]|:(?=//)|(?<=www)\.")
"""Characters that start markup, a mention, a reference or a link."""


class Extent(IntEnum):
    """How much of a comparison is included."""

    VERDICT = 0
    HEAD = 1
    NUMBERS = 2
    ALL = 3


_SHORTER = (Extent.NUMBERS, Extent.HEAD, Extent.VERDICT)


def comparison_markdown(comparison: Comparison, extent: Extent = Extent.ALL) -> str:
    """Returns the comment on one comparison; names from a run cannot format it."""
    lines = [*_head(comparison, extent)]
    if extent >= Extent.NUMBERS:
        lines += _numbers(comparison)
    else:
        lines += ["", *_sides(comparison, _SHORT_NAME if extent == Extent.VERDICT else _MAX_CHARS)]
    if extent == Extent.ALL:
        lines += _folded("Example by example", list(_samples(comparison)))
        if comparison.layers is not None:
            lines += _folded(*layer_sentences(comparison.layers))
        lines += _folded(*host_time_sentences(comparison.host_time))
        lines += _folded("What is different about the runs", list(notes.different(comparison)))
        lines += _folded("What changed in the code", (comparison.code_stat or "").splitlines())
        files = artifact_lines(comparison.artifacts)
        said = [line for headline, below in files for line in (headline, *below)]
        lines += _folded("What changed in the logged files", said)
    return "\n".join(lines) + "\n"


def _samples(comparison: Comparison) -> Iterator[str]:
    for name, found in comparison.samples.items():
        for score, each in found.scores.items():
            yield f"{name}, {count(found.paired, 'sample')}: {score_words(score, each)}"


def all_markdown(comparisons: Sequence[Comparison], overview: str = "") -> str:
    """Returns one comment on all comparisons, within the size of a comment.

    `overview` is text about all of them, which comes first as it is. Where there is too little
    room, the last ones lose their details first; every verdict stays.
    """
    parts = [comparison_markdown(comparison) for comparison in comparisons]
    above = _as_it_is(overview)
    shorter = ((extent, place) for extent in _SHORTER for place in reversed(range(len(parts))))
    is_short = False
    while _size([above, *parts]) > MAX_BYTES - _NOTE_BYTES:
        extent, place = next(shorter, (None, 0))
        if extent is None:
            break
        parts[place] = comparison_markdown(comparisons[place], extent)
        is_short = True
    shown = [above, *parts] if above else parts
    return "\n".join([*shown, *([f"{_SHORTENED}\n"] if is_short else [])])


def summary_markdown(summary: Summary) -> str:
    """Returns a run's summary as a comment: the verdict first, the whole of it collapsed."""
    primary = summary.primary_diagnosis
    name = escaped(summary.meta.run_name or "run")
    said = [f"**TraceML: {escaped(primary.status or 'no verdict')}** ({name})", ""]
    said += [f"{escaped(text)}\n" for text in (primary.summary, primary.action) if text]
    whole = ["<details><summary>Summary</summary>", "", _as_it_is(summary_text(summary))]
    return "\n".join([*said, *whole, "</details>"]) + "\n"


def _as_it_is(text: str) -> str:
    """Returns text as a block of code, which cannot format anything; a very long one is cut."""
    lines = [f"    {line}" for line in text.splitlines()[:MAX_LINES]]
    return "\n".join([*lines, ""]) if lines else ""


def _size(parts: Sequence[str]) -> int:
    return sum(len(part.encode()) + 1 for part in parts)


def _head(comparison: Comparison, extent: Extent) -> Iterator[str]:
    """Yields the verdict, and what supports it."""
    verdict, gate, bench = comparison.verdict, notes.gate(comparison), notes.bench(comparison)
    yield f"### {_SIGNS[Status(verdict.status)]} TraceML: {verdict.status}"
    if extent == Extent.VERDICT:
        return
    yield from ("", escaped(verdict.why, 1000), "")
    yield f"**Diagnosis:** {escaped(notes.diagnosis(comparison.overview.primary_diagnosis))}  "
    if gate:
        yield f"**Gate:** {escaped(gate)}  "
    if bench:
        yield f"**Benchmark:** {escaped(bench, 1000)}  "
    yield f"**Next:** {escaped(verdict.next, 1000)}"


def _sides(comparison: Comparison, limit: int = _MAX_CHARS) -> Iterator[str]:
    yield f"A: {escaped(notes.legend(comparison.a, comparison.a_runs), limit)}  "
    yield f"B: {escaped(notes.legend(comparison.b, comparison.b_runs), limit)}"


def _numbers(comparison: Comparison) -> Iterator[str]:
    yield from ("", "<details><summary>What changed</summary>", "")
    yield from _sides(comparison)
    yield ""
    yield from _table(list(rows(comparison)))
    yield from ("", f"Noise: {escaped(notes.noise(comparison), 1000)}")
    yield from _list("", [*notes.observations(comparison)])
    yield from ("", "</details>")


def escaped(text: str, limit: int = _MAX_CHARS) -> str:
    """Returns text without markup, mentions or links, on one line."""
    return _MEANINGFUL.sub(lambda found: f"&#{ord(found[0])};", one_line(text, limit))


def _table(listed: Sequence[ChangeLine]) -> Iterator[str]:
    yield "| | A | B | Delta | 95% interval |"
    yield "| --- | ---: | ---: | --- | --- |"
    for row in listed:
        depth = (len(row.label) - len(row.label.lstrip())) // 2
        cells = (row.label, row.lhs, row.rhs, row.delta, row.interval)
        yield f"| {_NESTED * depth}{' | '.join(escaped(cell) for cell in cells)} |"
    meaning = notes.significance(listed)
    if meaning:
        yield from ("", escaped(meaning))


def _folded(title: str, said: list[str]) -> list[str]:
    if not said:
        return []
    return [
        "",
        f"<details><summary>{title}</summary>",
        *_list("", said),
        "",
        "</details>",
    ]


def _list(opening: str, said: list[str]) -> list[str]:
    if not said:
        return []
    more = [f"- … and {len(said) - MAX_LINES} more"] if len(said) > MAX_LINES else []
    return [opening, *(f"- {escaped(line)}" for line in said[:MAX_LINES]), *more]
