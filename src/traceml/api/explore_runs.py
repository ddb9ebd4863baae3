"""Charts over many runs: the page, what mattered, and a metric's history by group."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from traceml.api.listed_runs import numbers_in, params_in
from traceml.api.query_runs import RunQuery, Runs, RunSearch
from traceml.compare.importance_record import WhatMattered
from traceml.compare.parameter_groups import Params
from traceml.compare.run_groups import RunGroup
from traceml.facts.metric_history import MetricHistory, metric_histories, no_history
from traceml.figures.exploration import (
    MAX_RUNS,
    AskedCharts,
    ChosenColumns,
    choose_charts,
    exploration_page,
    group_label,
    usual_params,
)
from traceml.figures.exploration_record import Exploration, GroupCurves, WhatMatteredPage
from traceml.figures.explored_columns import label_of
from traceml.figures.group_curves import BANDS, MAX_GROUPS, GroupHistories, group_curves
from traceml.figures.group_curves import MAX_RUNS as MAX_CURVES
from traceml.model.errors import UsageError
from traceml.model.quantities import count
from traceml.store.metric_curves import read_logged
from traceml.store.plain_words import filter_of
from traceml.store.query_names import written_key

MAX_JUDGED_RUNS = 2000
"""Runs from which it is computed what mattered, the newest ones: more take seconds."""
MAX_JUDGED_PARAMS = 40
MAX_REMEMBERED = 4
"""Answers to what mattered; each has the values of its runs, some megabytes at most."""


def explore(search: RunSearch, typed: str, asked: AskedCharts) -> Exploration:
    """Returns the page of charts over the runs that were asked for; raises UsageError for a filter
    or a name that cannot be understood."""
    filter_text = filter_of(typed.strip())
    found = search.search(RunQuery(filter_text, limit=MAX_RUNS))
    return exploration_page(found, choose_charts(found, asked), filter_text, found.notes)


class RememberedImportance:
    """Computes what mattered, one question at a time, and remembers the last answers: a forest
    takes seconds, and each choice of two parameters to draw would fit it anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, WhatMattered] = {}

    def what_mattered(
        self,
        params: Sequence[Params],
        values: Sequence[float | None],
        metric: str,
        higher_is_better: bool | None,
    ) -> WhatMattered:
        """Returns which parameters a metric depends on."""
        # Late: it takes scipy, which lists of runs are made without.
        from traceml.compare.parameter_importance import what_mattered

        asked = repr((metric, higher_is_better, values, params))
        with self._lock:
            found = self._found.pop(asked, None)
            if found is None:
                found = what_mattered(params, values, metric, higher_is_better)
            self._found[asked] = found  # the last one asked for is the last to be forgotten
            for oldest in list(self._found)[:-MAX_REMEMBERED]:
                del self._found[oldest]
            return found


def explore_what_mattered(
    search: RunSearch,
    remembered: RememberedImportance,
    typed: str,
    metric: str | None = None,
    down: str | None = None,
    across: str | None = None,
) -> WhatMatteredPage | None:
    """Returns which parameters a metric depends on; `None` where there is no metric."""
    found = search.search(RunQuery(filter_of(typed.strip()), limit=MAX_JUDGED_RUNS))
    chosen = choose_charts(found, AskedCharts(metric=metric)).metric
    if chosen is None:
        return None
    # Late: it takes scipy, which lists of runs are made without.
    from traceml.figures.what_mattered_page import what_mattered_page

    params = usual_params(found)
    pair = _param_name(found, down), _param_name(found, across)
    kept = list(dict.fromkeys((*params[:MAX_JUDGED_PARAMS], *_keys_of(pair))))
    settings, values = params_in(found, kept), numbers_in(found, chosen)
    mattered = remembered.what_mattered(
        settings, values, label_of(chosen), found.more_is_better(chosen)
    )
    notes = _judged_words(found, len(params))
    return what_mattered_page(mattered, settings, values, chosen, pair, notes)


def _judged_words(found: Runs, params: int) -> list[str]:
    said = []
    if found.total > len(found):
        said.append(f"From the {count(len(found))} newest of {count(found.total, 'run')}.")
    if params > MAX_JUDGED_PARAMS:
        said.append(f"The {MAX_JUDGED_PARAMS} parameters that most runs have are looked at.")
    return said


def _param_name(found: Runs, asked: str | None) -> str | None:
    """Returns the name of a parameter without its prefix; `None` for what is none."""
    if not asked:
        return None
    (key, *_) = found.choose_columns(asked) or [""]
    return key.removeprefix("params.") if key.startswith("params.") else None


def _keys_of(names: Sequence[str | None]) -> list[str]:
    return [f"params.{name}" for name in names if name is not None]


def explore_curves(
    search: RunSearch,
    logs: Path,
    typed: str,
    metric: str | None = None,
    group: str | None = None,
    band: str | None = None,
) -> GroupCurves:
    """Returns the history of a metric over its steps, by group of runs; raises UsageError for a
    band that there is not."""
    shown = next((each for each in BANDS if each == band), None)
    if band and shown is None:
        raise UsageError(f"{band[:40]!r} is no band: expected {' or '.join(BANDS)}")
    found = search.search(RunQuery(filter_of(typed.strip()), limit=MAX_RUNS))
    chosen = choose_charts(found, AskedCharts(metric=metric, group=group))
    section, _, name = (chosen.metric or "").partition(".")
    if chosen.metric is None or section in ("facts", "params"):
        return GroupCurves(None, (f"{label_of(chosen.metric or 'it')} has no history.",))
    groups = _largest_groups(found, chosen)
    each = max(1, MAX_CURVES // max(1, len(groups)))
    return group_curves(
        name,
        [
            GroupHistories(
                label, len(rows), [_history(logs / found.names[row], name) for row in rows[:each]]
            )
            for label, rows in groups
        ],
        _group_count(found, chosen),
        ", ".join(map(label_of, chosen.group)) or None,
        shown,
    )


def _by(chosen: ChosenColumns) -> str:
    return ",".join(map(written_key, chosen.group))


def _group_count(found: Runs, chosen: ChosenColumns) -> int:
    return found.count_groups(_by(chosen)) if chosen.group else 1


def _largest_groups(found: Runs, chosen: ChosenColumns) -> list[tuple[str, Sequence[int]]]:
    """Returns the largest groups, in the order of what they have in common; one of all runs where
    nothing groups them."""
    if not chosen.group:
        return [("all runs", range(len(found)))]
    groups = found.group(_by(chosen), [])
    kept: list[RunGroup] = sorted(groups, key=lambda group: -len(group.rows))[:MAX_GROUPS]
    shown = {id(group) for group in kept}
    return [(group_label(group), group.rows) for group in groups if id(group) in shown]


def _history(folder: Path, name: str) -> MetricHistory:
    """Returns what a run logged; without points where it logged nothing."""
    logged = read_logged(folder, name)
    return metric_histories({name: logged})[0] if logged else no_history(name)
