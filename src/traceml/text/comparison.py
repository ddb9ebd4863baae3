"""A comparison as text: legend, verdict, why, what changed or matters, and what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from traceml.compare.record import Comparison, Status
from traceml.model.printable import (
    one_line,
    pad_left,
    pad_right,
    printable,
    shorten,
    shorten_at_word,
    terminal_width,
)
from traceml.text import comparison_notes as notes
from traceml.text.artifacts import artifact_lines
from traceml.text.changes import ChangeLine, rows
from traceml.text.host_time import host_time_sentences
from traceml.text.layer_changes import layer_sentences
from traceml.text.samples import samples_text

WIDTH = 100
MAX_DIFFERENCES = 40

_INDENT = "  "
_LABEL_WIDTH = 34
_CELL_WIDTH = 20
_DELTA_WIDTH = 34
_INTERVAL = "95% CI"
_MAX_CHARS = 1000
_COLOURS = {
    Status.IMPROVEMENT: "32",
    Status.NO_CHANGE: "32",
    Status.REGRESSION: "31",
    Status.MIXED: "33",
    Status.INCONCLUSIVE: "33",
}
"""Green, red and yellow, as ANSI colour numbers."""


def comparison_text(comparison: Comparison, colour: bool = False, shows_all: bool = False) -> str:
    """Returns the whole report, at most `WIDTH` columns wide; `colour` is for terminals only, and
    `shows_all` lists everything that differs in logged files."""
    verdict = comparison.verdict
    gate, bench = notes.gate(comparison), notes.bench(comparison)
    listed = list(rows(comparison))
    blocks = [
        [
            f"- A: {notes.legend(comparison.a, comparison.a_runs)}",
            f"- B: {notes.legend(comparison.b, comparison.b_runs)}",
            f"- Format: {comparison.format}",
        ],
        [
            f"Verdict: {_status(verdict.status, colour)}",
            *_wrapped("Why: ", verdict.why),
            f"Diagnosis: {notes.diagnosis(comparison.overview.primary_diagnosis)}",
            *_wrapped("Noise: ", notes.noise(comparison)),
            *([f"Gate: {gate}"] if gate else []),
            *(_wrapped("Benchmark: ", bench) if bench else []),
        ],
        _table(listed),
        [line for said in notes.observations(comparison) for line in _wrapped("", said)],
        *(samples_text(name, found) for name, found in comparison.samples.items()),
        _layers(comparison),
        _host_time(comparison),
        _different(list(notes.different(comparison))),
        _code(comparison),
        _artifacts(comparison, shows_all),
        _wrapped("Next: ", verdict.next),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _status(status: str, colour: bool) -> str:
    return f"\x1b[1;{_COLOURS[Status(status)]}m{status}\x1b[0m" if colour else status


def _layers(comparison: Comparison) -> list[str]:
    if comparison.layers is None:
        return []
    headline, said = layer_sentences(comparison.layers)
    return [*_wrapped("", headline), *(line for each in said for line in _wrapped(_INDENT, each))]


def _host_time(comparison: Comparison) -> list[str]:
    headline, said = host_time_sentences(comparison.host_time)
    lines = [line for each in said for line in _wrapped(_INDENT, each)]
    return [headline, *lines] if lines else []


def _different(said: Sequence[str]) -> list[str]:
    if not said:
        return []
    lines = ["What is different about the runs:"]
    for line in said[:MAX_DIFFERENCES]:
        lines += _wrapped(_INDENT, line)
    more = len(said) - MAX_DIFFERENCES
    return [*lines, f"{_INDENT}… and {more} more, in the JSON file"] if more > 0 else lines


def _code(comparison: Comparison) -> list[str]:
    if not comparison.code_stat:
        return []
    stat = comparison.code_stat.splitlines()
    return [
        "What changed in the code:",
        *(_INDENT + shorten(printable(line).strip(), WIDTH - 2) for line in stat),
    ]


def _artifacts(comparison: Comparison, shows_all: bool) -> list[str]:
    if not comparison.artifacts:
        return []
    lines = ["What changed in the logged files:"]
    for headline, below in artifact_lines(comparison.artifacts, shows_all):
        lines += _wrapped(_INDENT, headline)
        for line in below:
            lines += _wrapped(_INDENT * 2, line)
    return lines


def _table(listed: Sequence[ChangeLine]) -> list[str]:
    """Returns one line per row; intervals stand beside their rows, or below where there is no
    room."""
    if not listed:
        return []
    cells = [("", "A", "B", "Delta"), *map(_cells, listed)]
    widths = [max(terminal_width(line[column]) for line in cells) for column in range(4)]
    lines = [
        "  ".join(
            (
                pad_right(label, widths[0]),
                pad_left(lhs, widths[1]),
                pad_left(rhs, widths[2]),
                pad_right(delta, widths[3]),
            )
        )
        for label, lhs, rhs, delta in cells
    ]
    intervals = [_INTERVAL if any(row.interval for row in listed) else ""]
    intervals += [row.interval for row in listed]
    beside = [
        f"{line}  {interval}".rstrip() for line, interval in zip(lines, intervals, strict=True)
    ]
    if max(map(len, beside)) > WIDTH:
        beside = [lines[0].rstrip(), *_with_intervals_below(lines[1:], listed)]
    meaning = notes.significance(listed)
    return [*beside, meaning] if meaning else beside


def _cells(row: ChangeLine) -> tuple[str, str, str, str]:
    """Returns the cells of a row; only extremely long numbers are cut."""
    lhs, rhs = (shorten_at_word(one_line(side), _CELL_WIDTH) for side in (row.lhs, row.rhs))
    label = shorten_at_word(printable(row.label), _LABEL_WIDTH)
    return label, lhs, rhs, one_line(row.delta, _DELTA_WIDTH)


def _with_intervals_below(lines: Sequence[str], listed: Sequence[ChangeLine]) -> Iterator[str]:
    for line, row in zip(lines, listed, strict=True):
        yield line.rstrip()
        if row.interval:
            yield f"{_INDENT * 3}{_INTERVAL}: {one_line(row.interval, WIDTH // 2)}"


def _wrapped(opening: str, sentence: str) -> list[str]:
    return textwrap.wrap(
        one_line(sentence, _MAX_CHARS),
        WIDTH,
        initial_indent=opening,
        subsequent_indent=" " * len(opening),
        break_on_hyphens=False,
    )
