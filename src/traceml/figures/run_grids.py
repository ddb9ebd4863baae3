"""Runs as the columns of a grid: their parameters, metrics, findings, and where they come from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from traceml.compare.lineage import Group, Shown
from traceml.compare.logged_words import number
from traceml.compare.many_record import ManyComparison, MetricRow
from traceml.compare.many_runs import SAMPLES, STEP_TIME, STEPS
from traceml.compare.parameter_groups import params_of
from traceml.compare.record import Comparison, Delta
from traceml.figures.compared_run import ComparedRun
from traceml.figures.findings import rail
from traceml.figures.page import FindingCard, GridCell, GridRow, Tone, WideGrid
from traceml.figures.words import cell, line
from traceml.model.quantities import NOT_MEASURED, count, milliseconds, rate
from traceml.text.many_runs import change_words, metrics_shown

MAX_ROWS = 600
"""Of a grid; of more parameters or segments of metrics the JSON file has the rest."""
COMMIT_LETTERS = 12
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
MAX_NAME = 120
NOT_GIVEN = "–"
"""A parameter that a run does not have; n/a is for what was not measured."""
GROUPS = {
    Group.CODE.value: "Code",
    Group.COMMAND.value: "Command",
    Group.SETTINGS.value: "Settings",
    Group.ENVIRONMENT.value: "Environment",
    Group.PACKAGES.value: "Packages",
    Group.HARDWARE.value: "Hardware",
    Group.DATA.value: "Data",
    Group.VARIABLES.value: "Environment variables",
    Group.PARAMS.value: "Parameters",
    Group.ARTIFACTS.value: "Artifacts",
}
"""What people call the groups of a lineage."""
_LOGGED = (Group.PARAMS.value, Group.ARTIFACTS.value)
_SEVERITY: dict[Tone, str] = {
    "crit": "critical",
    "warn": "warning",
    "info": "noted",
    "good": "fine",
    "muted": "not known",
}
_ORDER: tuple[Tone, ...] = ("crit", "warn", "info", "good", "muted")


def parameter_grid(runs: Sequence[ComparedRun], differing: Sequence[str]) -> WideGrid | None:
    """Returns what the runs were run with; `differing` names, in reading order, what tells them
    apart."""
    params = params_of([run.summary for run in runs])
    names = dict.fromkeys((*differing, *(name for each in params for name in each)))
    if not names:
        return None
    rows = tuple(
        GridRow(
            line(name, MAX_NAME),
            tuple(GridCell(_param(each.get(name), name in each)) for each in params),
            differs=name in differing,
        )
        for name in list(names)[:MAX_ROWS]
    )
    return WideGrid(
        id="parameter-grid",
        title="Parameters",
        columns=tuple(run.column for run in runs),
        rows=rows,
        note=_cut(len(names)),
    )


def _param(value: Shown, is_given: bool) -> str:
    if not is_given:
        return NOT_GIVEN
    return "none" if value is None else cell(value)


def metric_grid(found: ManyComparison, runs: Sequence[ComparedRun]) -> WideGrid | None:
    """Returns step time and throughput, then the last values of logged metrics; below each value
    its change from the baseline."""
    shown = {
        STEP_TIME: ("Step time", milliseconds),
        SAMPLES: ("Samples per second", lambda value: rate(value, "samples")),
        STEPS: ("Steps per second", lambda value: rate(value, "steps")),
    }
    rows = [
        _metric_row(words, found.measured[key], runs, found.baseline, shown_as)
        for key, (words, shown_as) in shown.items()
        if key in found.measured and _is_known(found.measured[key])
    ]
    if any(row.name.startswith("Samples") for row in rows):
        rows = [row for row in rows if not row.name.startswith("Steps per")]
    names = metrics_shown(found)
    rows += [
        _metric_row(line(name, MAX_NAME), found.metrics[name], runs, found.baseline, number)
        for name in names[:MAX_ROWS]
    ]
    if not rows:
        return None
    marked = any(cell.tone for row in rows for cell in row.cells)
    note = "Coloured: shown by the runs, p < 0.05, corrected for all that was compared."
    return WideGrid(
        id="metric-grid",
        title="Step time and last values of logged metrics",
        columns=tuple(run.column for run in runs),
        rows=tuple(rows),
        note=_cut(len(names)) or (note if marked else None),
    )


def _is_known(row: MetricRow) -> bool:
    return any(change.rhs is not None for change in row.changes.values())


def _metric_row(
    name: str, row: MetricRow, runs: Sequence[ComparedRun], baseline: str, shown_as: object
) -> GridRow:
    assert callable(shown_as)
    changes = [row.changes.get(run.label, Delta()) for run in runs]
    cells = tuple(
        GridCell(
            shown_as(change.rhs),
            note=None
            if run.label == baseline or change.delta is None
            else change_words(change, row.higher_is_better),
            tone=change_tone(change, row.higher_is_better),
        )
        for run, change in zip(runs, changes, strict=True)
    )
    return GridRow(name, cells, differs=len({cell.text for cell in cells}) > 1)


def change_tone(change: Delta, higher_is_better: bool | None) -> Tone | None:
    """Returns the colour of a change that the runs show; `None` for any other."""
    if not change.significant or not change.delta or higher_is_better is None:
        return None
    return "good" if (change.delta > 0) is higher_is_better else "crit"


def finding_grid(runs: Sequence[ComparedRun]) -> WideGrid | None:
    """Returns which run has which finding, the most severe first."""
    cards = [{(card.section, card.status): card for card in rail(run.summary)} for run in runs]
    worst: dict[tuple[str, str], int] = {}
    for found in cards:
        for key, card in found.items():
            place = _ORDER.index(card.severity)
            worst[key] = min(place, worst.get(key, place))
    if not worst:
        return None
    rows = tuple(
        GridRow(
            f"{status} ({section.lower()})",
            tuple(_finding(found.get((section, status))) for found in cards),
            differs=len({found.get((section, status)) is None for found in cards}) > 1
            or worst[section, status] < _ORDER.index("info"),
        )
        for section, status in sorted(worst, key=lambda key: worst[key])
    )
    columns = tuple(run.column for run in runs)
    return WideGrid("finding-grid", "Findings", columns, rows[:MAX_ROWS])


def _finding(card: FindingCard | None) -> GridCell:
    if card is None:
        return GridCell(NOT_GIVEN)
    gain = None if card.gain is None else f"if fixed {card.gain}"
    return GridCell(_SEVERITY[card.severity], note=gain or _evidence(card), tone=card.severity)


def _evidence(card: FindingCard) -> str | None:
    if not card.evidence or card.severity == "muted":
        return None
    fact = card.evidence[0]
    return f"{fact.label} {fact.value}".strip()


def lineage_grid(
    runs: Sequence[ComparedRun], comparisons: Mapping[str, Comparison]
) -> WideGrid | None:
    """Returns what differs in code, command, environment, machine and data; `comparisons` are those
    of the baseline with each other run, by label."""
    values: dict[tuple[str, str], dict[str, Shown]] = {}
    baseline: dict[tuple[str, str], Shown] = {}
    for label, comparison in comparisons.items():
        known = comparison.lineage.told if comparison.lineage else {}
        for group, differences in known.items():
            if group in _LOGGED:
                continue
            for found in differences:
                baseline[group, found.name] = found.lhs
                values.setdefault((group, found.name), {})[label] = found.rhs
    if not values:
        return None
    order = list(GROUPS)
    keys = sorted(values, key=lambda key: order.index(key[0]) if key[0] in order else len(order))
    rows = tuple(
        GridRow(
            line(f"{GROUPS.get(group, group)}: {name}", MAX_NAME),
            tuple(
                GridCell(shown_value(values[group, name].get(run.label, baseline[group, name])))
                for run in runs
            ),
        )
        for group, name in keys[:MAX_ROWS]
    )
    columns = tuple(run.column for run in runs)
    return WideGrid(
        "lineage-grid", "What is different about the runs", columns, rows, _cut(len(keys))
    )


def shown_value(value: Shown) -> str:
    """Returns a value of a run's lineage; of a commit as much as tells it from others."""
    if value is None:
        return NOT_MEASURED
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value[:COMMIT_LETTERS] if _is_commit(value) else cell(value)


def _is_commit(value: Shown) -> TypeGuard[str]:
    return isinstance(value, str) and _COMMIT.fullmatch(value) is not None


def _cut(found: int) -> str | None:
    return f"{count(found - MAX_ROWS)} more, in the JSON file." if found > MAX_ROWS else None
