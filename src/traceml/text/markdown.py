"""A comparison as a pull-request comment: the verdict first, the details folded away."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from traceml.compare.record import Comparison, Status
from traceml.text import told
from traceml.text.changes import Row, plain, rows

MOST_BYTES = 60_000
"""GitHub takes 65,536 characters in a comment, and a workflow adds some of its own."""
MOST_LINES = 200
_LONGEST = 300
_SIGNS = {
    Status.IMPROVEMENT: "🟢",
    Status.NO_CHANGE: "⚪",
    Status.REGRESSION: "🔴",
    Status.MIXED: "🟠",
    Status.INCONCLUSIVE: "🟡",
}
_MEANINGFUL = re.compile(r"[\\`*_\[\]<>#|~&@]|:(?=//)|(?<=www)\.")
"""What starts markup, a mention, a reference or a link."""


def comparison_markdown(comparison: Comparison) -> str:
    """The comment, below what a comment may hold; nothing a run is called can format it."""
    verdict = comparison.verdict
    a, b = (
        escaped(told.legend(name, runs))
        for name, runs in (
            (comparison.a, comparison.a_runs),
            (comparison.b, comparison.b_runs),
        )
    )
    gate = told.gate(comparison)
    lines = [
        f"### {_SIGNS[Status(verdict.status)]} TraceML: {verdict.status}",
        "",
        escaped(verdict.why, 1000),
        "",
        f"**Diagnosis:** {escaped(told.diagnosis(comparison.overview.primary_diagnosis))}  ",
        *([f"**Gate:** {escaped(gate)}  "] if gate else []),
        f"**Next:** {escaped(verdict.next, 1000)}",
        "",
        "<details><summary>What changed</summary>",
        "",
        f"A: {a}  ",
        f"B: {b}",
        "",
        *_table(list(rows(comparison))),
        "",
        f"Noise: {escaped(told.noise(comparison), 1000)}",
        *_list("", [*told.observations(comparison)]),
        "",
        "</details>",
        *_folded("What is different about the runs", list(told.different(comparison))),
        *_folded("Code between the commits", (comparison.code_stat or "").splitlines()),
    ]
    return "\n".join(lines) + "\n"


def all_markdown(comparisons: Sequence[Comparison]) -> str:
    """One comment for all comparisons; what has no room is counted."""
    text = ""
    for place, comparison in enumerate(comparisons):
        part = comparison_markdown(comparison)
        if len((text + part).encode()) > MOST_BYTES - 200:
            return f"{text}\n{len(comparisons) - place} more comparisons have no room here.\n"
        text += ("\n" if text else "") + part
    return text


def escaped(text: str, limit: int = _LONGEST) -> str:
    """Text as it is: no markup, no mention, no link, on one line."""
    return _MEANINGFUL.sub(lambda found: f"&#{ord(found[0])};", plain(text, limit))


def _table(listed: Sequence[Row]) -> Iterator[str]:
    yield "| | A | B | Delta | 95% interval |"
    yield "| --- | ---: | ---: | --- | --- |"
    for row in listed:
        cells = (row.label, row.lhs, row.rhs, row.delta, row.interval)
        yield f"| {' | '.join(escaped(cell) for cell in cells)} |"


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
    more = [f"- … and {len(said) - MOST_LINES} more"] if len(said) > MOST_LINES else []
    return [opening, *(f"- {escaped(line)}" for line in said[:MOST_LINES]), *more]
