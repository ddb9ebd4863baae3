"""The page of three to twenty runs, each against the first: the facts of `text/many_runs.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from traceml.compare.artifact_changes import ArtifactChange
from traceml.compare.logged_words import number
from traceml.compare.many_record import ManyComparison, RunEntry
from traceml.compare.many_runs import STEP_TIME, relabel_b
from traceml.compare.record import Comparison, Delta, Status
from traceml.facts.metric_history import is_drawn
from traceml.figures.code_difference import CodeDifference, code_part
from traceml.figures.compared_run import ComparedRun, pair_link, run_colour
from traceml.figures.layer_changes import layer_grid_part
from traceml.figures.logged_files import file_grid
from traceml.figures.page import (
    Axis,
    GridCell,
    GridColumn,
    GridRow,
    ManyRunsPage,
    Part,
    Picture,
    Point,
    Points,
    Row,
    Table,
    Tone,
    Verdict,
    WideGrid,
)
from traceml.figures.run_grids import (
    NOT_GIVEN,
    change_tone,
    finding_grid,
    lineage_grid,
    metric_grid,
    parameter_grid,
)
from traceml.figures.run_overlays import curves_part
from traceml.figures.step_shares import stacked_bars
from traceml.figures.units import time_unit
from traceml.figures.words import cell, line
from traceml.model.quantities import (
    NOT_MEASURED,
    count,
    duration,
    milliseconds,
    param_words,
    rate,
)
from traceml.text.many_runs import (
    best_sentence,
    change_words,
    cost_table,
    cost_title,
    gate_sentence,
    metrics_shown,
    note_sentences,
    pareto_sentence,
)
from traceml.text.samples import p_words
from traceml.text.what_mattered import (
    COLUMNS,
    importance_cells,
    importance_sentences,
    importance_title,
)

MIN_RUNS, MAX_RUNS = 2, 20
MAX_EFFECTS = 40
MAX_METRICS_PER_EFFECT = 4
TONES: dict[str, Tone] = {
    Status.IMPROVEMENT.value: "good",
    Status.REGRESSION.value: "crit",
    Status.MIXED.value: "warn",
    Status.INCONCLUSIVE.value: "warn",
    Status.NO_CHANGE.value: "info",
}
"""What a verdict is: good, neutral or a problem."""
_READ_FIRST = (
    Status.REGRESSION.value,
    Status.MIXED.value,
    Status.IMPROVEMENT.value,
    Status.INCONCLUSIVE.value,
    Status.NO_CHANGE.value,
)


@dataclass(frozen=True, slots=True)
class ManyRuns:
    """Everything that the page is made from."""

    found: ManyComparison
    entries: tuple[ComparedRun, ...]
    """One run for each entry: the first of its repetitions."""
    runs: tuple[ComparedRun, ...]
    """All runs, with their curves."""
    curves: tuple[str, ...] = ()
    """The metrics whose curves are drawn, in reading order."""
    further: tuple[str, ...] = ()
    """Those that are not."""
    code: tuple[CodeDifference, ...] = ()
    files: Mapping[str, Sequence[ArtifactChange]] = field(default_factory=dict)
    """By letter: the logged files of the entry that differ from the baseline's."""
    pictures: tuple[Picture, ...] = ()
    """Logged images, each run's beside the others'."""
    notes: tuple[str, ...] = ()
    """Runs that could not be compared, and why."""


def many_runs_page(given: ManyRuns) -> ManyRunsPage:
    """Returns the whole page; what the runs do not have is left out."""
    found = given.found
    parts = (
        _runs(given),
        _parameters(given),
        _metrics(given),
        curves_part(given.runs, given.curves, given.further),
        _phases(given),
        layer_grid_part(found.layers, given.entries),
        _findings(given),
        _effects(found),
        _trade_offs(found, given.entries),
        _cost(found, given.entries),
        _mattered(found),
        _lineage(given),
        code_part(given.code, found.baseline),
        _artifacts(given),
    )
    gate = gate_sentence(found)
    return ManyRunsPage(
        title=_title(given.entries),
        verdict=_verdict(found),
        parts=tuple(part for part in parts if part is not None),
        notes=tuple(
            line(said, 1000)
            for said in (*given.notes, *([gate] if gate else ()), *note_sentences(found))
        ),
    )


def _title(entries: Sequence[ComparedRun]) -> str:
    return f"{line(entries[0].name, 60)} and {count(len(entries) - 1)} more"


def _verdict(found: ManyComparison) -> Verdict:
    """Returns how many entries are better and worse than the baseline, and which is best."""
    statuses = Counter(comparison.verdict.status for comparison in found.comparisons)
    said = [f"{statuses[status]} × {status}" for status in _READ_FIRST if statuses[status]]
    tone: Tone = next((TONES[status] for status in _READ_FIRST if statuses[status]), "info")
    runs = sum(len(entry.runs) for entry in found.entries)
    groups = "" if runs == len(found.entries) else f" in {count(len(found.entries), 'group')}"
    return Verdict(
        severity=tone,
        status=" · ".join(said) or "NOTHING COMPARED",
        why=line(
            best_sentence(found)
            or f"{count(runs, 'run')}{groups}, each against {found.baseline}; no logged metric "
            "says which is best.",
            1000,
        ),
    )


def _runs(given: ManyRuns) -> Part:
    """Returns every run with what it took, and its verdict against the baseline."""
    found = given.found
    verdicts = _by_label(found)
    step_times = found.measured[STEP_TIME].changes if STEP_TIME in found.measured else {}
    rows = []
    for entry, run in zip(found.entries, given.entries, strict=True):
        comparison = verdicts.get(entry.label)
        change = step_times.get(entry.label, Delta())
        rows.append(
            Row(
                (
                    _name(entry, run),
                    "baseline" if comparison is None else comparison.verdict.status,
                    milliseconds(entry.step_time_ms),
                    ""
                    if comparison is None or change.delta is None
                    else change_words(change, False) + (" *" if change.significant else ""),
                    rate(entry.throughput_per_s, entry.throughput_of or "steps"),
                    duration(entry.duration_s),
                    *_costs(entry, found),
                    cell(entry.diagnosis) or NOT_MEASURED,
                ),
                tone=None if comparison is None else TONES[comparison.verdict.status],
                link=run.link,
            )
        )
    columns = (
        "Run",
        f"Against {found.baseline}",
        "Step time",
        f"From {found.baseline}",
        "Throughput",
        "Duration",
        *_cost_names(found),
        "Diagnosis",
    )
    title = f"Runs, against {found.baseline}"
    return Part(
        id="runs",
        title=title,
        tables=(
            Table("run-table", title, columns, tuple(rows)),
            Table(
                "verdict-table",
                f"Each against {found.baseline}",
                ("", "Verdict", "Why"),
                tuple(_why(found, given.entries)),
            ),
        ),
        is_wide=True,
    )


def _name(entry: RunEntry, run: ComparedRun) -> str:
    more = f" ({count(len(entry.runs), 'run')})" if len(entry.runs) > 1 else ""
    return f"{entry.label}: {line(run.name, 80)}{more}"


def _cost_names(found: ManyComparison) -> tuple[str, ...]:
    known = {
        "GPU hours": any(entry.gpu_hours is not None for entry in found.entries),
        "Energy": any(entry.energy_kwh is not None for entry in found.entries),
    }
    return tuple(name for name, is_known in known.items() if is_known)


def _costs(entry: RunEntry, found: ManyComparison) -> tuple[str, ...]:
    hours, energy = entry.gpu_hours, entry.energy_kwh
    shown = {
        "GPU hours": NOT_MEASURED if hours is None else f"{hours:,.3g} h",
        "Energy": NOT_MEASURED if energy is None else f"{energy:,.3g} kWh",
    }
    return tuple(shown[name] for name in _cost_names(found))


def _by_label(found: ManyComparison) -> dict[str, Comparison]:
    """Returns the comparison of the baseline with each other entry, by the entry's letter."""
    others = zip(found.entries[1:], found.comparisons, strict=False)
    return {entry.label: comparison for entry, comparison in others}


def _why(found: ManyComparison, entries: Sequence[ComparedRun]) -> Iterator[Row]:
    baseline = entries[0]
    for run, comparison in zip(entries[1:], found.comparisons, strict=False):
        has_page = run.is_served and baseline.is_served
        verdict = comparison.verdict
        yield Row(
            (
                f"{baseline.label} → {run.label}",
                verdict.status,
                line(relabel_b(verdict.why, run.label), 1000),
            ),
            tone=TONES[verdict.status],
            link=pair_link(baseline.name, run.name) if has_page else None,
        )


def _parameters(given: ManyRuns) -> Part | None:
    grid = parameter_grid(given.entries, list(given.found.parameters))
    return None if grid is None else _grid_part("parameters", grid)


def _metrics(given: ManyRuns) -> Part | None:
    grid = metric_grid(given.found, given.entries)
    return None if grid is None else _grid_part("metrics", grid, "Metrics")


def _findings(given: ManyRuns) -> Part | None:
    grid = finding_grid(given.entries)
    return None if grid is None else _grid_part("findings", grid)


def _lineage(given: ManyRuns) -> Part | None:
    grid = lineage_grid(given.entries, _by_label(given.found))
    return None if grid is None else _grid_part("different", grid)


def _grid_part(name: str, grid: WideGrid, title: str = "") -> Part:
    return Part(id=name, title=title or grid.title, grids=(grid,), is_wide=True)


def _phases(given: ManyRuns) -> Part | None:
    """Returns the phases of a mean step of every run, on one scale."""
    sides = {
        run.words: section.global_.average
        for run in given.entries
        if (section := run.summary.step_time) is not None
        and section.global_.average.get("step_time_ms") is not None
    }
    bars = stacked_bars("run-phases", "Phases of a mean step", sides) if sides else None
    if bars is None:
        return None
    without = [run.label for run in given.entries if run.words not in sides]
    note = f"No step was measured in {', '.join(without)}." if without else None
    return Part(id="phases", title="Where a step goes", note=note, figures=(bars,), is_wide=True)


def _trade_offs(found: ManyComparison, entries: Sequence[ComparedRun]) -> Part | None:
    """Returns quality against cost."""
    figures = () if found.pareto is None else tuple(_pareto(found, entries))
    return Part(id="trade-offs", title="Quality and cost", figures=figures) if figures else None


def _cost(found: ManyComparison, entries: Sequence[ComparedRun]) -> Part | None:
    """Returns what each entry took until the metric had a value."""
    if found.to_reach is None:
        return None
    columns, cells = cost_table(found)
    rows = tuple(Row((run.words, *row)) for run, row in zip(entries, cells, strict=True))
    title = cost_title(found.to_reach)
    return Part(id="cost", title=title, tables=(Table("cost-table", title, columns, rows),))


def _pareto(found: ManyComparison, entries: Sequence[ComparedRun]) -> Iterator[Points]:
    pareto = found.pareto
    assert pareto is not None
    by_gpu = pareto.cost == "gpu_hours"
    changes = found.metrics[pareto.metric].changes
    known: list[tuple[int, float, float]] = []
    for place, entry in enumerate(found.entries):
        cost = entry.gpu_hours if by_gpu else entry.duration_s
        value = changes.get(entry.label, Delta()).rhs
        if cost is not None and value is not None and is_drawn(cost) and is_drawn(value):
            known.append((place, cost, value))
    if len(known) < 2:
        return
    unit = time_unit(max(cost for _, cost, _ in known))
    size = 1.0 if by_gpu else unit.size
    yield Points(
        id="pareto",
        title=f"{line(pareto.metric, 60)} against {'GPU hours' if by_gpu else 'duration'}",
        x=Axis("GPU hours" if by_gpu else "duration", "" if by_gpu else unit.symbol),
        y=Axis(line(pareto.metric, 60)),
        points=tuple(
            Point(
                cost / size,
                value,
                run_colour(place, len(entries)),
                label=entries[place].label,
                note=entries[place].words,
                is_filled=entries[place].label in pareto.front,
            )
            for place, cost, value in known
        ),
        caption=f"{line(pareto_sentence(pareto), 600)} Filled: the best trade-offs.",
    )


def _effects(found: ManyComparison) -> Part | None:
    """Returns what each parameter did in runs that differ in it alone."""
    if not found.effects:
        return None
    shown = found.effects[:MAX_EFFECTS]
    seen = {metric for effect in shown for metric in effect.changes}
    metrics = [name for name in metrics_shown(found) if name in seen][:MAX_METRICS_PER_EFFECT]
    better = {name: found.metrics[name].higher_is_better for name in metrics}
    if STEP_TIME in seen:
        metrics, better = [*metrics, STEP_TIME], {**better, STEP_TIME: False}
    rows = tuple(
        GridRow(
            f"{line(effect.param, 60)}: {_given(effect.lhs_value)} → {_given(effect.rhs_value)} "
            f"({count(effect.pairs, 'pair')})",
            tuple(_effect(name, effect.changes.get(name), better[name]) for name in metrics),
        )
        for effect in shown
    )
    hidden = len(found.effects) - len(shown)
    more = f" {count(hidden)} more are in the JSON file." if hidden > 0 else ""
    titles = {STEP_TIME: "Step time"}
    grid = WideGrid(
        id="effect-grid",
        title="One parameter at a time",
        columns=tuple(GridColumn(line(titles.get(name, name), 60), "") for name in metrics),
        rows=rows,
        note="From runs that differ in one parameter alone. Coloured: shown by the runs, p < 0.05, "
        f"corrected for all effects.{more}",
    )
    return _grid_part("effects", grid)


def _effect(metric: str, change: Delta | None, higher_is_better: bool | None) -> GridCell:
    if change is None:
        return GridCell(NOT_MEASURED)
    shown = milliseconds if metric == STEP_TIME else number
    said = change_words(change, higher_is_better)
    return GridCell(
        f"{shown(change.lhs)} → {shown(change.rhs)}",
        note=said if change.p is None else f"{said}, p {p_words(change.p)}",
        tone=change_tone(change, higher_is_better),
    )


def _given(value: object) -> str:
    return NOT_GIVEN if value is None else line(param_words(value), 40)


def _mattered(found: ManyComparison) -> Part | None:
    mattered = found.what_mattered
    if mattered is None or not mattered.parameters:
        return None
    rows = tuple(Row(importance_cells(each)) for each in mattered.parameters)
    note = line(" ".join(importance_sentences(mattered)), 1000)
    title = importance_title(mattered)
    table = Table("importance-table", title, COLUMNS, rows, note)
    return Part(id="mattered", title=title, tables=(table,))


def _artifacts(given: ManyRuns) -> Part | None:
    grid = file_grid(given.entries, given.files, given.found.baseline)
    if grid is None:
        return None
    return structs.replace(_grid_part("artifacts", grid), pictures=given.pictures)
