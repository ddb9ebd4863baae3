"""The page of a comparison: the verdict, what changed, and how the runs differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traceml.compare.lineage import Group, LineageComparison
from traceml.compare.logged_metrics import LOGGED
from traceml.compare.logged_words import directions_guessed, number, segments_sentence
from traceml.compare.record import (
    Comparison,
    Delta,
    DiagnosisChange,
    LoggedDelta,
    Status,
    StragglerRanks,
)
from traceml.compare.sample_record import PairedDifference, ScoreComparison
from traceml.compare.verdict_words import moved_words, quantity
from traceml.figures.artifact_changes import artifacts_parts
from traceml.figures.code_difference import CodeDifference, code_part
from traceml.figures.compared_run import ComparedRun
from traceml.figures.comparison_figures import before_and_after, waterfall
from traceml.figures.host_time import host_time_changes_part
from traceml.figures.layer_changes import layer_changes_part
from traceml.figures.page import ComparisonPage, Part, Picture, Row, Table, Tile, Tone, Verdict
from traceml.figures.run_grids import GROUPS, finding_grid, shown_value
from traceml.figures.run_overlays import curves_part
from traceml.figures.words import cell, line
from traceml.model.evidence import EvidenceUnit
from traceml.model.finding import Section
from traceml.model.metric import BY_KEY, METRICS, Metric
from traceml.model.metric_segments import metric_of
from traceml.model.quantities import NOT_MEASURED, count, rate, written
from traceml.text import changes
from traceml.text import comparison_notes as notes
from traceml.text.samples import p_words, sample_notes, segments_shown

TONES: dict[str, Tone] = {
    Status.IMPROVEMENT.value: "good",
    Status.REGRESSION.value: "crit",
    Status.MIXED.value: "warn",
    Status.INCONCLUSIVE.value: "warn",
    Status.NO_CHANGE.value: "info",
}
MAX_ROWS = 40
"""Differences listed per group; the JSON file has all of them."""
MAX_RANKS = 16
INDENT = 2
"""Spaces by which the text marks a row as a part of the one above."""
FORM = "+,.3g"
"""Of a change of a score."""
NO_BREAK = "\u00a0"
"""A non-breaking space."""

_QUANTILES = {
    "Median (p50)": "step_time_p50_ms",
    "p95": "step_time_p95_ms",
    "p99": "step_time_p99_ms",
    "Standard deviation": "step_time_stdev_ms",
}


@dataclass(frozen=True, slots=True)
class RunsBeside:
    """What is known about two compared sides besides their comparison."""

    runs: tuple[ComparedRun, ...] = ()
    """The runs of both sides, with their curves."""
    curves: tuple[str, ...] = ()
    """The metrics whose curves are drawn, in reading order …"""
    further: tuple[str, ...] = ()
    """… and those that are not."""
    code: tuple[CodeDifference, ...] = ()
    pictures: tuple[Picture, ...] = ()
    """Images of both sides, with their difference."""
    notes: tuple[str, ...] = ()
    """What is special about the runs, or could not be shown."""


def comparison_page(comparison: Comparison, beside: RunsBeside | None = None) -> ComparisonPage:
    """Returns the content of the comparison's text, with charts; where the runs themselves are at
    hand, also their curves, findings, code and logged files."""
    beside = beside or RunsBeside()
    parts = (
        _changes(comparison),
        _logged(comparison),
        curves_part(beside.runs, beside.curves, beside.further),
        *_samples(comparison),
        layer_changes_part(comparison.layers),
        host_time_changes_part(comparison.host_time),
        _findings(beside.runs),
        _ranks(comparison),
        _different(comparison, has_code=bool(beside.code)),
        code_part(beside.code),
        *artifacts_parts(comparison.artifacts, beside.pictures),
    )
    verdict = comparison.verdict
    gate = notes.gate(comparison)
    return ComparisonPage(
        a=line(comparison.a),
        b=line(comparison.b),
        legend=(
            f"A: {notes.legend(comparison.a, comparison.a_runs)}",
            f"B: {notes.legend(comparison.b, comparison.b_runs)}",
            f"Format: {comparison.format}",
        ),
        verdict=Verdict(
            severity=TONES[verdict.status],
            status=verdict.status,
            why=line(verdict.why, 1000),
            next=line(verdict.next, 1000),
        ),
        diagnosis=_diagnosis(comparison.overview.primary_diagnosis),
        parts=tuple(part for part in parts if part is not None),
        notes=(
            *([f"Gate: {gate}"] if gate else []),
            f"Noise: {notes.noise(comparison)}",
            *map(line, (*comparison.warnings, *beside.notes)),
        ),
    )


def _findings(runs: tuple[ComparedRun, ...]) -> Part | None:
    """Returns which run has which finding."""
    grid = finding_grid(runs) if len(runs) > 1 else None
    if grid is None or not any(row.differs for row in grid.rows):
        return None
    return Part(id="findings", title="Findings", grids=(grid,))


def _diagnosis(change: DiagnosisChange) -> str | None:
    if change.lhs is None and change.rhs is None:
        return None
    lhs, rhs = changes.statuses(change)
    return f"{lhs} → {rhs}" + (" (unchanged)" if change.changed is False else "")


def _changes(comparison: Comparison) -> Part | None:
    """Returns what changed or matters: tiles, charts, and the table of the text."""
    drawn = (waterfall(comparison), before_and_after(comparison))
    figures = tuple(figure for figure in drawn if figure is not None)
    tables = tuple(table for table in (_table(comparison), _distribution(comparison)) if table)
    if not figures and not tables:
        return None
    return Part(
        id="changes",
        title="What changed",
        note=moved_words(comparison.moved),
        tiles=tuple(_tiles(comparison)),
        figures=figures,
        tables=tables,
        is_wide=True,
    )


def _logged(comparison: Comparison) -> Part | None:
    """Returns the metrics that the scripts logged, by the last value of each run."""
    found = changes.logged_changes(comparison)
    listed = [name for name, change in found.items() if change.delta is not None]
    if not listed:
        return None
    ordered = changes.logged_in_order(comparison)
    rows = tuple(_logged_row(name, comparison, found[name]) for name in ordered[:MAX_ROWS])
    has_intervals = any(row.cells[-1] for row in rows)
    if not has_intervals:
        rows = tuple(Row(row.cells[:-1], row.tone) for row in rows)
    hidden = len(listed) - len(rows)
    table = Table(
        id="logged-table",
        title="Last value of each run" if len(comparison.a_runs) < 2 else "Mean of last values",
        columns=("Metric", "A", "B", "Delta", *(("95% CI",) if has_intervals else ())),
        rows=rows,
        note=f"{count(hidden)} more, in the JSON file." if hidden > 0 else None,
    )
    said = [segments_sentence(*each) for each in comparison.segments.items()][
        : changes.MAX_SEGMENTED
    ]
    guessed = directions_guessed(found, ordered[:MAX_ROWS])
    note = " ".join(filter(None, (*said, guessed))) or None
    return Part(id="logged", title="Logged metrics", note=note, tables=(table,))


def _samples(comparison: Comparison) -> Iterator[Part]:
    """Yields a part for each test set that both runs logged single examples of."""
    for place, (name, found) in enumerate(comparison.samples.items()):
        rows = []
        for score, each in list(found.scores.items())[:MAX_ROWS]:
            rows.append(_sample_row(cell(score), each.whole, each))
            rows += [
                _sample_row(NO_BREAK * INDENT + cell(segment), each.segments[segment], each)
                for segment in segments_shown(each.segments)
            ]
        table = Table(
            id=f"samples-table-{place}",
            title="Mean score, and by segment",
            columns=("Score", "Samples", "A", "B", "Delta", "95% CI", "p"),
            rows=tuple(rows),
            note="p is corrected for the number of scores, or of segments.",
        )
        yield Part(
            id=f"samples-{place}",
            title=f"On the same {count(found.paired, 'sample')}: {line(name, 60)}",
            note=" ".join(sample_notes(found)),
            tables=(table,),
            is_wide=True,  # seven columns: half a page would cut the last digits of p
        )


def _sample_row(label: str, found: PairedDifference, score: ScoreComparison) -> Row:
    low, high = found.interval or (None, None)
    interval = (
        "" if low is None or high is None else f"{written(low, FORM)} … {written(high, FORM)}"
    )
    tone: Tone | None = None
    if found.significant and found.delta and score.higher_is_better is not None:
        tone = "good" if (found.delta > 0) is score.higher_is_better else "crit"
    delta = NOT_MEASURED if found.delta is None else written(found.delta, FORM)
    p = "" if found.p is None else p_words(found.p).removeprefix("= ")
    cells = (label, count(found.count), number(found.lhs), number(found.rhs), delta, interval, p)
    return Row(cells, tone)


def _logged_row(name: str, comparison: Comparison, change: LoggedDelta) -> Row:
    row = changes.logged_row(name, comparison)
    tone: Tone | None = None
    if change.delta and change.significant and change.higher_is_better is not None:
        tone = "good" if change.is_better else "crit"
    is_below = metric_of(name) != name and metric_of(name) in comparison.sections[LOGGED].metrics
    label = NO_BREAK * INDENT + cell(name) if is_below else cell(name)
    return Row((label, row.lhs, row.rhs, row.delta, row.interval), tone)


def _table(comparison: Comparison) -> Table | None:
    logged = {changes.logged_row(name, comparison) for name in changes.logged_shown(comparison)}
    listed = [row for row in changes.rows(comparison) if row not in logged]
    if not listed:
        return None
    has_intervals = any(row.interval for row in listed)
    columns = ("", "A", "B", "Delta", *(("95% CI",) if has_intervals else ()))
    rows = tuple(
        Row(
            (
                row.label.replace(" " * INDENT, NO_BREAK * INDENT),
                *(row.lhs, row.rhs, row.delta),
                *((row.interval,) if has_intervals else ()),
            )
        )
        for row in listed
    )
    is_marked = any(row.delta.endswith(changes.SIGNIFICANT) for row in listed)
    meaning = "* shown by the runs: p < 0.05, corrected for all that was compared"
    return Table("changes-table", "A against B", columns, rows, meaning if is_marked else None)


def _distribution(comparison: Comparison) -> Table | None:
    """Returns the distribution of both sides' steps; `None` where a side has none."""
    found = {words: BY_KEY[Section.STEP_TIME, key] for words, key in _QUANTILES.items()}
    rows = tuple(
        Row((words, *_cells(change, metric)))
        for words, metric in found.items()
        if (change := _change(comparison, metric)).delta is not None
    )
    columns = ("Steps", "A", "B", "Delta")
    return Table("distribution-table", "Distribution of steps", columns, rows) if rows else None


def _tiles(comparison: Comparison) -> Iterator[Tile]:
    for metric in METRICS:
        change = _change(comparison, metric)
        if change.delta is None or not (metric.is_headline or metric.is_tile):
            continue
        lhs, rhs, delta = _cells(change, metric)
        said = f"{_without_unit(lhs, rhs)} → {rhs}"
        yield Tile(metric.label, said, note=delta, tone=_tone(change, metric))


def _without_unit(lhs: str, rhs: str) -> str:
    """Returns both values, the unit only once where it is the same."""
    number, _, unit = lhs.partition(" ")
    return number if rhs.endswith(f" {unit}") else lhs


def _tone(change: Delta, metric: Metric) -> Tone | None:
    """Returns the colour of a change; none unless the runs show that it is one."""
    if not change.delta or not change.significant:
        return None
    return "good" if (change.delta > 0) == metric.more_is_better else "crit"


def _cells(change: Delta, metric: Metric) -> tuple[str, str, str]:
    """Returns both sides and the change, as the text words them."""
    lhs, rhs = _quantity(change.lhs, metric), _quantity(change.rhs, metric)
    if change.delta is None:
        return lhs, rhs, NOT_MEASURED
    if not change.delta:
        return lhs, rhs, "same"
    amount = _quantity(change.delta, metric)
    share = "" if change.pct_change is None else f" ({change.pct_change:+,.1f}%)"
    return lhs, rhs, f"{'' if amount.startswith('-') else '+'}{amount}{share}"


def _quantity(value: float | None, metric: Metric) -> str:
    if metric.key == "samples_per_s":
        return rate(value, "samples")
    return quantity(value, metric.unit)


def _change(comparison: Comparison, metric: Metric) -> Delta:
    found = comparison.sections.get(metric.section.value)
    return Delta() if found is None else found.metrics.get(metric.key, Delta())


def _ranks(comparison: Comparison) -> Part | None:
    """Returns stragglers that are new or gone, and the skew of the ranks."""
    found = comparison.ranks
    rows = [
        *(_straggler("New in B", straggler) for straggler in found.new),
        *(_straggler("Gone in B", straggler) for straggler in found.gone),
    ]
    tiles: tuple[Tile, ...] = ()
    skew = found.skew_percent
    if skew.delta is not None:
        lhs, rhs = (quantity(side, EvidenceUnit.PERCENT) for side in (skew.lhs, skew.rhs))
        tiles = (Tile("Rank skew", f"{lhs} → {rhs}", note=f"{skew.delta:+.1f} pp"),)
    if not rows and not tiles:
        return None
    columns = ("", "Finding", "Ranks")
    table = Table("rank-changes-table", "Stragglers", columns, tuple(rows))
    return Part(
        id="ranks",
        title="What moved between ranks",
        note=None if rows else "The same ranks delay the others, or none do.",
        tiles=tiles,
        tables=(table,) if rows else (),
    )


def _straggler(opening: str, straggler: StragglerRanks) -> Row:
    shown = ", ".join(map(str, straggler.ranks[:MAX_RANKS]))
    more = "…" if straggler.ranks[MAX_RANKS:] else ""
    tone: Tone = "warn" if opening.startswith("New") else "good"
    return Row((opening, cell(straggler.status), shown + more), tone)


def _different(comparison: Comparison, has_code: bool) -> Part | None:
    """Returns the differences in code, command, environment, machine, data and parameters.

    Logged files have a part of their own, and so has the code where it is at hand.
    """
    lineage = comparison.lineage
    hidden = Group.ARTIFACTS.value if comparison.artifacts else None
    tables = () if lineage is None else tuple(_groups(lineage, hidden))
    stat = (comparison.code_stat or "").splitlines()
    if stat and not has_code:
        rows = tuple(Row((cell(text),)) for text in stat[:MAX_ROWS])
        tables = (*tables, Table("code-stat-table", "What changed in the code", ("File",), rows))
    note = None if lineage is None else _not_compared(lineage)
    if not tables and note is None:
        return None
    return Part("different", "What is different about the runs", note=note, tables=tables)


def _groups(lineage: LineageComparison, hidden_group: str | None) -> Iterator[Table]:
    for group, listed in lineage.told.items():
        if group == hidden_group:
            continue
        rows = tuple(
            Row((cell(found.name), shown_value(found.lhs), shown_value(found.rhs)))
            for found in listed[:MAX_ROWS]
        )
        hidden = len(listed) - MAX_ROWS
        note = f"{count(hidden)} more, in the JSON file." if hidden > 0 else None
        title = GROUPS.get(group, group)
        yield Table(f"different-{group}", title, ("", "A", "B"), rows, note)


def _not_compared(lineage: LineageComparison) -> str | None:
    """Returns what was not recorded, and that everything else is the same."""
    said = []
    if not lineage.differences and lineage.same:
        said.append("No recorded differences.")
    for side in ("A", "B"):
        groups = [group for group, sides in lineage.not_recorded.items() if side in sides]
        if groups:
            said.append(f"Not recorded in {side}: {', '.join(groups)}.")
    return " ".join(said) or None
