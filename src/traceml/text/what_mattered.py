"""Which parameters mattered for a metric, as a few lines of text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from traceml.compare.importance_record import (
    Estimate,
    InteractionGrid,
    ParameterImportance,
    ValueBin,
    WhatMattered,
)
from traceml.compare.logged_words import number
from traceml.model.printable import one_line, shorten_middle
from traceml.model.quantities import NOT_MEASURED, count

WIDTH = 100
MAX_PARAMETERS = 8
MAX_ALONG = 4
MAX_NOT_SHOWN = 6
MARK = "*"
_INDENT = "  "
_NAME_WIDTH = 28
COLUMNS = ("", "Rank correlation", "Importance")


def what_mattered_text(found: WhatMattered) -> str:
    """Returns the paragraph, at most `WIDTH` columns wide."""
    return "\n".join(what_mattered_lines(found)) + "\n"


def what_mattered_lines(found: WhatMattered) -> list[str]:
    """Returns the lines: a table of the parameters, what goes with them, and the warnings."""
    rows = [COLUMNS, *map(importance_cells, found.parameters[:MAX_PARAMETERS])]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    table = [
        _INDENT + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [
        importance_title(found) + ":",
        *(table if found.parameters else []),
        *(line for said in importance_sentences(found) for line in _wrapped(said)),
    ]


def importance_title(found: WhatMattered) -> str:
    """Returns for which metric, and over how many settings."""
    left = found.runs_without_metric
    without = f"; {count(left, 'run')} without it left out" if left else ""
    of = "" if found.runs == found.settings else f" of {count(found.runs, 'run')}"
    return (
        f"What mattered for {one_line(found.metric, 60)} "
        f"({count(found.settings, 'setting')}{of}{without})"
    )


def importance_cells(found: ParameterImportance) -> tuple[str, str, str]:
    """Returns a parameter's row of the table."""
    trend = _estimate(found.spearman, "+.2f")
    if found.kruskal_wallis is not None:
        values = f"{found.distinct} values" if found.distinct > 1 else "set or not"
        trend = f"{values}{_mark(found.kruskal_wallis)}"
    name = shorten_middle(one_line(found.name), _NAME_WIDTH)
    return name, trend, _estimate(found.forest, ".2f")


def _estimate(found: Estimate | None, form: str) -> str:
    if found is None:
        return NOT_MEASURED
    low_high = found.interval
    between = f" [{low_high[0]:{form}}, {low_high[1]:{form}}]" if low_high else ""
    return f"{found.value:{form}}{between}{_mark(found)}"


def _mark(found: Estimate) -> str:
    return f" {MARK}" if found.is_significant else ""


def _along(found: ParameterImportance, higher_is_better: bool | None) -> str | None:
    """Returns where the metric is best along a parameter that matters."""
    known = [(each.mean, place) for place, each in enumerate(found.bins) if each.mean is not None]
    if not found.matters or higher_is_better is None or not known:
        return None
    mean, place = (max if higher_is_better else min)(known)
    end = found.levels_off_at
    more = "" if end is None else f"; no further gain shown above {number(end)}"
    where = f"{one_line(found.name, 40)} {_bin(found.bins[place])}"
    return f"Best on average, {number(mean)}, with {where}{more}."


def importance_sentences(found: WhatMattered) -> list[str]:
    """Returns what the table shows, and what limits it."""
    said = []
    if any(each.matters for each in found.parameters):
        said.append(
            f"{MARK} shown by the runs: p < 0.05, corrected for all parameters. Importance: share "
            "of the metric's variation that a forest no longer predicts without the parameter."
            if found.forest
            else f"{MARK} shown by the runs: p < 0.05, corrected for all parameters"
        )
    elif found.parameters:
        said.append("No parameter is shown to matter by these runs.")
    along = [_along(each, found.higher_is_better) for each in found.parameters[:MAX_ALONG]]
    said += [each for each in along if each]
    said += _together(found.parameters)
    if found.interaction is not None:
        said.append(_interaction(found.interaction, found.higher_is_better))
    more = len(found.parameters) - MAX_PARAMETERS
    if more > 0:
        said.append(f"… and {count(more, 'more parameter')}, in the JSON")
    unlike = [each for each in found.left_out if "only name" in each.why]
    if unlike:
        names = ", ".join(one_line(each.name, 40) for each in unlike[:MAX_NOT_SHOWN])
        said.append(f"Left out, because the values only name the runs: {names}.")
    return [*said, *(_sentence(each) for each in found.warnings)]


def _sentence(warning: str) -> str:
    return warning[:1].upper() + warning[1:] + "."


def _together(parameters: Sequence[ParameterImportance]) -> list[str]:
    groups: dict[frozenset[str], ParameterImportance] = {}
    for each in parameters:
        groups.setdefault(frozenset((each.name, *each.together_with)), each)
    return [
        f"Cannot be told apart, because they vary together: "
        f"{', '.join(one_line(name, 40) for name in (each.name, *each.together_with))}."
        for each in groups.values()
        if each.together_with
    ][:MAX_NOT_SHOWN]


def _interaction(found: InteractionGrid, higher_is_better: bool | None) -> str:
    names = f"{one_line(found.rows, 40)} and {one_line(found.columns, 40)}"
    said = f"Interaction: the effect of each of {names} depends on the other"
    cells = [
        (mean, row, column)
        for row, means in enumerate(found.means)
        for column, mean in enumerate(means)
        if mean is not None
    ]
    if higher_is_better is None or not cells:
        return f"{said}."
    mean, row, column = (max if higher_is_better else min)(cells)
    return (
        f"{said}; best on average, {number(mean)}, with "
        f"{one_line(found.rows, 40)} {_bin(found.row_bins[row])} and "
        f"{one_line(found.columns, 40)} {_bin(found.column_bins[column])}."
    )


def _bin(found: ValueBin) -> str:
    if found.low is not None and found.high is not None and found.low != found.high:
        return f"{number(found.low)} to {number(found.high)}"
    return one_line(found.value, 40)


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(
        one_line(sentence, 1000),
        WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT * 2,
        break_on_hyphens=False,
    )
