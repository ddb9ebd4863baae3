"""A comparison of three or more runs as text: tables with a row per run, then what mattered."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from math import isfinite

from traceml.compare.logged_words import number
from traceml.compare.many_record import (
    Cost,
    Effect,
    LayerOfRuns,
    ManyComparison,
    ManyLayers,
    MetricRow,
    Pareto,
    RunEntry,
    TargetCost,
)
from traceml.compare.many_runs import STEP_TIME, relabel_b
from traceml.compare.parameter_groups import CODE
from traceml.compare.record import Comparison, Delta
from traceml.model.metric_direction import is_cost
from traceml.model.metric_segments import metric_of, split_segment
from traceml.model.printable import (
    one_line,
    pad_right,
    shorten_at_word,
    shorten_middle,
    terminal_width,
)
from traceml.model.quantities import (
    NOT_MEASURED,
    count,
    duration,
    milliseconds,
    param_words,
    rate,
)
from traceml.text.layer_changes import (
    layer_notes,
    none_moved_in_runs,
    row_change,
    row_names,
    row_value,
)
from traceml.text.what_mattered import what_mattered_lines

WIDTH = 100
MAX_PARAMS = 12
MAX_PARAMS_OF_BEST = 4
MAX_METRICS = 8
MAX_LAYERS = 8
MAX_EFFECTS = 12
MAX_WARNINGS = 4
MAX_METRICS_PER_EFFECT = 2
_NAME_WIDTH = 28
_CELL_WIDTH = 24
_INDENT = "  "
SIGNIFICANT = "*"
_MEANING = f"{SIGNIFICANT} shown by the runs: p < 0.05, corrected for all that was compared"


def many_text(found: ManyComparison) -> str:
    """Returns the whole report, at most `WIDTH` columns wide."""
    blocks = [
        _best(found),
        _overview(found),
        _parameters(found),
        _metrics(found),
        _layers(found),
        _to_reach(found),
        _pareto(found),
        _effects(found),
        _mattered(found),
        _verdicts(found),
        _notes(found),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _best(found: ManyComparison) -> list[str]:
    said = best_sentence(found)
    return _wrapped("", said) if said else []


def best_sentence(found: ManyComparison) -> str | None:
    """Returns which entry has the best last value of the metric that stands for quality, and which
    the next; `None` where no metric with a direction was logged."""
    metric = _quality(found)
    row = found.metrics.get(metric) if metric else None
    if metric is None or row is None or row.higher_is_better is None:
        return None
    known = [
        (value, entry)
        for entry in found.entries
        if (value := row.changes.get(entry.label, Delta()).rhs) is not None and isfinite(value)
    ]
    if len(known) < 2:
        return None
    known.sort(key=lambda each: each[0], reverse=row.higher_is_better)
    said = [f"{number(value)} with {_setting(found, entry)}" for value, entry in known[:2]]
    second = "as good" if known[0][0] == known[1][0] else "next"
    return f"Best {one_line(metric, 60)}: {said[0]}; {second}: {said[1]}."


def _setting(found: ManyComparison, entry: RunEntry) -> str:
    """Returns what tells an entry from the others: its parameters, or its name."""
    names = [name for name in found.parameters if name != CODE]
    values = [
        f"{one_line(name, _CELL_WIDTH)} {_param(found.parameters[name].get(entry.label))}"
        for name in names[:MAX_PARAMS_OF_BEST]
    ]
    return f"{', '.join(values)} ({entry.label})" if values else _name(entry)


def _overview(found: ManyComparison) -> list[str]:
    columns = ("", "Step time", "Throughput", "Duration", "Diagnosis")
    cells = [
        (
            milliseconds(entry.step_time_ms),
            rate(entry.throughput_per_s, entry.throughput_of or "steps"),
            duration(entry.duration_s),
            shorten_at_word(one_line(entry.diagnosis or NOT_MEASURED), _CELL_WIDTH),
        )
        for entry in found.entries
    ]
    runs = sum(len(entry.runs) for entry in found.entries)
    groups = "" if runs == len(found.entries) else f" in {count(len(found.entries), 'group')}"
    return [
        f"{count(runs, 'run')}{groups}, compared with A:",
        *_tables(found, columns, cells),
    ]


def _name(entry: RunEntry) -> str:
    more = f" ({count(len(entry.runs), 'run')})" if len(entry.runs) > 1 else ""
    first = entry.runs[0] if entry.runs else entry.name
    return f"{entry.label}: {shorten_middle(one_line(first), _NAME_WIDTH)}{more}"


def _parameters(found: ManyComparison) -> list[str]:
    names = list(found.parameters)
    if not names:
        same = count(found.same_parameters, "recorded parameter")
        return [f"Parameters: all {same} are the same."] if found.same_parameters else []
    shown = names[:MAX_PARAMS]
    columns = ("", *(shorten_middle(one_line(name), _CELL_WIDTH) for name in shown))
    cells = [
        tuple(_param(found.parameters[name].get(entry.label)) for name in shown)
        for entry in found.entries
    ]
    more = len(names) - len(shown)
    rest = [f"{_INDENT}… and {count(more, 'more parameter')}, in the JSON file"] if more else []
    return [
        f"Parameters that differ (the same in all runs: {count(found.same_parameters, 'other')}):",
        *_tables(found, columns, cells),
        *rest,
    ]


def _param(value: object) -> str:
    return NOT_MEASURED if value is None else one_line(param_words(value), _CELL_WIDTH)


def _metrics(found: ManyComparison) -> list[str]:
    shown = metrics_shown(found)[:MAX_METRICS]
    if not shown:
        return []
    columns = ("", *(shorten_middle(one_line(name), _CELL_WIDTH) for name in shown))
    cells = [
        tuple(_metric(found.metrics[name], entry.label, found.baseline) for name in shown)
        for entry in found.entries
    ]
    is_marked = any(cell.endswith(SIGNIFICANT) for row in cells for cell in row)
    more = len(found.metrics) - len(shown)
    rest = [f"{_INDENT}… and {count(more, 'more metric')}, in the JSON file"] if more > 0 else []
    return [
        "Logged metrics, last values, and the change from A:",
        *_tables(found, columns, cells),
        *([_INDENT + _MEANING] if is_marked else []),
        *rest,
    ]


def _layers(found: ManyComparison) -> list[str]:
    layers = found.layers
    if layers is None:
        return []
    title = f"Layers that moved, own time per step, and the change from {found.baseline}:"
    nothing = none_moved_in_runs(layers, found.baseline)
    if nothing:
        title = f"Layers: {nothing[0].lower()}{nothing[1:]}"
        return [title, *_layer_notes(layers)]
    shown = layers.rows[:MAX_LAYERS]
    columns = ("", "all layers", *row_names(shown))
    cells = []
    for entry in found.entries:
        whole = layers.time_ms.get(entry.label, Delta())
        cells.append((milliseconds(whole.rhs), *(_layer(row, entry.label) for row in shown)))
    more = layers.rows_in_all - len(shown)
    rest = [f"{_INDENT}… and {count(more, 'more change')}, in the JSON file"] if more > 0 else []
    is_marked = any(cell.endswith(SIGNIFICANT) for row in cells for cell in row)
    return [
        title,
        *_tables(found, columns, cells),
        *([_INDENT + _MEANING] if is_marked else []),
        *rest,
        *_layer_notes(layers),
    ]


def _layer_notes(layers: ManyLayers) -> list[str]:
    """Returns what is to be said about layers beside their numbers, as lines of the report."""
    return [line for note in layer_notes(layers) for line in _wrapped(_INDENT, note)]


def _layer(row: LayerOfRuns, label: str) -> str:
    change = row.changes.get(label, Delta())
    share = row_change(change)
    said = row_value(row, change.rhs) + (f" ({share})" if share else "")
    return f"{said} {SIGNIFICANT}" if change.significant else said


def metrics_shown(found: ManyComparison) -> list[str]:
    """Returns the logged metrics in reading order: the one that stands for quality, those that the
    runs show to differ, those with a direction, and the others; time and resources, then segments
    last."""
    quality = _quality(found)

    def order(name: str) -> tuple[bool, bool, bool, bool, bool, str]:
        row = found.metrics[name]
        is_shown = any(change.significant for change in row.changes.values())
        has_none = row.higher_is_better is None
        is_segment = split_segment(name) is not None
        return (name != quality, is_segment, is_cost(name), not is_shown, has_none, name)

    return sorted(found.metrics, key=order)


def _quality(found: ManyComparison) -> str | None:
    if found.pareto:
        return found.pareto.metric
    return found.to_reach.metric if found.to_reach else None


def _metric(row: MetricRow, label: str, baseline: str) -> str:
    change = row.changes.get(label, Delta())
    if label == baseline or change.delta is None:
        return number(change.rhs)
    return f"{number(change.rhs)} ({change_words(change, row.higher_is_better)})" + (
        f" {SIGNIFICANT}" if change.significant else ""
    )


def change_words(change: Delta, higher_is_better: bool | None) -> str:
    """Returns a change as a share, and whether it is for the better: +4.0% worse."""
    if not change.delta:
        return "same"
    share = f"{change.pct_change:+,.1f}%" if change.pct_change is not None else number(change.delta)
    if higher_is_better is None:
        return share
    return f"{share} {'better' if (change.delta > 0) is higher_is_better else 'worse'}"


def _to_reach(found: ManyComparison) -> list[str]:
    asked = found.to_reach
    if asked is None:
        return []
    columns, cells = cost_table(found)
    return [f"{cost_title(asked)}:", *_tables(found, columns, cells)]


def cost_title(asked: TargetCost) -> str:
    """Returns which value of which metric the cost is about."""
    sign = "≥" if asked.higher_is_better else "≤"
    whose = ", the last value of A" if asked.target_from == "baseline" else ""
    return f"Cost to reach {one_line(asked.metric, 60)} {sign} {number(asked.target)}{whose}"


def cost_table(found: ManyComparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the columns, and what each entry took to reach the value; costs that no entry has are
    left out."""
    columns = ("Time", "GPU hours", "Energy")
    cells = [_cost(found, entry.label) for entry in found.entries]
    kept = [place for place in range(3) if any(row[place] != NOT_MEASURED for row in cells)] or [0]
    return (
        ("", *(columns[place] for place in kept)),
        [tuple(row[place] for place in kept) for row in cells],
    )


def _cost(found: ManyComparison, label: str) -> tuple[str, str, str]:
    asked = found.to_reach
    cost = asked.costs.get(label) if asked else None
    reached, known = asked.reached.get(label, (0, 0)) if asked else (0, 0)
    if cost is None and known:
        said = "never" if not reached else f"{reached} of {known} runs"
        return said, NOT_MEASURED, NOT_MEASURED
    cost = cost or Cost()
    hours = NOT_MEASURED if cost.gpu_hours is None else f"{cost.gpu_hours:,.3g} h"
    energy = NOT_MEASURED if cost.energy_kwh is None else f"{cost.energy_kwh:,.3g} kWh"
    return duration(cost.time_s), hours, energy


def _pareto(found: ManyComparison) -> list[str]:
    return [] if found.pareto is None else _wrapped("", pareto_sentence(found.pareto))


def pareto_sentence(pareto: Pareto) -> str:
    """Returns which entries no other beats in quality and cost together, and what beats the
    others."""
    cost = "GPU hours" if pareto.cost == "gpu_hours" else "duration"
    said = [
        f"Best trade-offs of {one_line(pareto.metric, 60)} against {cost}: "
        f"{', '.join(pareto.front)}."
    ]
    beaten: dict[str, list[str]] = {}
    for label, other in pareto.dominated_by.items():
        beaten.setdefault(other, []).append(label)
    if beaten:
        reasons = [
            f"{', '.join(labels)} ({other} is at least as good and as cheap)"
            for other, labels in beaten.items()
        ]
        said.append(f"Not among them: {'; '.join(reasons)}.")
    return " ".join(said)


def _effects(found: ManyComparison) -> list[str]:
    lines = []
    if found.effects:
        lines.append("One parameter at a time (runs that differ in it alone):")
    for effect in found.effects[:MAX_EFFECTS]:
        lines += _wrapped(_INDENT, effect_words(effect, found))
    more = len(found.effects) - MAX_EFFECTS
    if more > 0:
        lines.append(f"{_INDENT}… and {more} more, in the JSON file")
    return [*lines, *other_code_words(found)]


def other_code_words(found: ManyComparison) -> list[str]:
    """Returns what is said of pairs that no effect counts because their code differs, too."""
    pairs = found.pairs_of_other_code
    if not pairs:
        return []
    are = "pair of settings differs" if pairs == 1 else "pairs of settings differ"
    return _wrapped(
        "",
        f"Left out: {pairs:,} {are} in one parameter and in the code (commit, uncommitted changes "
        f"or script); --ignore {CODE} counts {'it' if pairs == 1 else 'them'} all the same.",
    )


def effect_words(effect: Effect, found: ManyComparison) -> str:
    """Returns what changing one parameter did to the metrics and to the step time."""
    name = one_line(effect.param, 40)
    values = f"{_param(effect.lhs_value)} -> {_param(effect.rhs_value)}"
    logged = [metric for metric in metrics_shown(found) if metric in effect.changes]
    said = [
        f"{one_line(metric, 40)} "
        f"{_effect(effect.changes[metric], found.metrics[metric].higher_is_better)}"
        for metric in logged[:MAX_METRICS_PER_EFFECT]
    ]
    if STEP_TIME in effect.changes:
        said.append(f"step time {_effect(effect.changes[STEP_TIME], False, milliseconds)}")
    return f"{name} {values} ({count(effect.pairs, 'pair')}): {'; '.join(said)}"


def _effect(
    change: Delta, higher_is_better: bool | None, shown: Callable[[float | None], str] = number
) -> str:
    said = f"{shown(change.lhs)} -> {shown(change.rhs)}, {change_words(change, higher_is_better)}"
    if change.p is None:
        return said
    return f"{said}, p {'< 0.0001' if change.p < 0.0001 else f'= {change.p:.2g}'}" + (
        f" {SIGNIFICANT}" if change.significant else ""
    )


def _mattered(found: ManyComparison) -> list[str]:
    # Too few settings are not worth a paragraph; the JSON says so.
    if found.what_mattered is None or not found.what_mattered.parameters:
        return []
    return what_mattered_lines(found.what_mattered)


def _verdicts(found: ManyComparison) -> list[str]:
    lines = []
    for entry, comparison in zip(found.entries[1:], found.comparisons, strict=False):
        lines += _wrapped("", _verdict(entry, comparison))
    return [*lines, *_gate(found)]


def _gate(found: ManyComparison) -> list[str]:
    said = gate_sentence(found)
    return _wrapped("", said) if said else []


def gate_sentence(found: ManyComparison) -> str | None:
    """Returns which pairs failed the gate; `None` without one."""
    gates = {
        f"A -> {entry.label}": comparison.gate
        for entry, comparison in zip(found.entries[1:], found.comparisons, strict=False)
        if comparison.gate is not None
    }
    if not gates:
        return None
    failed = [
        f"{pair} ({' and '.join(gate.unmeasured)} not measured)" if gate.unmeasured else pair
        for pair, gate in gates.items()
        if gate.failed
    ]
    words = " or ".join(next(iter(gates.values())).fail_on)
    percent = found.comparisons[0].verdict.max_regression_pct
    allowed = "" if percent is None else f"; up to {percent:g}% worse is allowed"
    state = "FAILED" if failed else "passed"
    pairs = ", ".join(failed or gates)
    return f"Gate: {state} ({pairs}; fails on {words}{allowed})"


def _verdict(entry: RunEntry, comparison: Comparison) -> str:
    why = relabel_b(comparison.verdict.why, entry.label)
    return f"A -> {entry.label}: {comparison.verdict.status}. {why}"


def _notes(found: ManyComparison) -> list[str]:
    return [line for note in note_sentences(found) for line in _wrapped("", note)]


def note_sentences(found: ManyComparison) -> list[str]:
    """Returns what limits the comparison: warnings, single runs, directions that are guessed."""
    said = list(found.warnings[:MAX_WARNINGS])
    more = len(found.warnings) - len(said)
    if more:
        said.append(f"… and {count(more, 'more warning')} about pairs of runs, in the JSON file")
    if all(len(entry.runs) == 1 for entry in found.entries) and found.metrics:
        said.append(
            "One run each: what another seed would change in the metrics is not known; runs that "
            "differ in nothing but a logged seed are taken together."
        )
    guessed = dict.fromkeys(
        one_line(metric_of(name), 40)
        for name in metrics_shown(found)[:MAX_METRICS]
        if found.metrics[name].direction_from == "name"
    )
    if guessed:
        said.append(f"Better or worse is guessed from the name of {', '.join(guessed)}.")
    return said


def _tables(
    found: ManyComparison, columns: Sequence[str], cells: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Yields a table with a row per run; columns that do not fit are in further tables below."""
    names = [_name(entry) for entry in found.entries]
    head = max(map(terminal_width, names))
    widths = [
        max(map(terminal_width, (columns[place + 1], *(row[place] for row in cells))))
        for place in range(len(columns) - 1)
    ]
    start = 0
    while start < len(widths):
        end, used = start, len(_INDENT) + head
        while end < len(widths) and (end == start or used + 2 + widths[end] <= WIDTH):
            used += 2 + widths[end]
            end += 1
        rows = [("", columns[1:]), *zip(names, cells, strict=True)]
        for name, row in rows:
            shown = "  ".join(pad_right(row[place], widths[place]) for place in range(start, end))
            yield f"{_INDENT}{pad_right(name, head)}  {shown}".rstrip()
        start = end


def _wrapped(opening: str, sentence: str) -> list[str]:
    return textwrap.wrap(
        one_line(sentence, 1000),
        WIDTH,
        initial_indent=opening,
        subsequent_indent=opening + _INDENT,
        break_on_hyphens=False,
    )
