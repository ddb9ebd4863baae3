"""What a list of runs shows: its columns, and the list or its groups as JSON, the same for the
command and the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traceml.api.query_runs import Runs
from traceml.compare.importance_record import WhatMattered
from traceml.compare.lineage import Shown
from traceml.compare.run_groups import RunGroup, is_more_better
from traceml.model.errors import UsageError
from traceml.model.printable import shorten
from traceml.model.run_values import RunValue
from traceml.store.query_language import split_names
from traceml.store.query_names import written_key
from traceml.text.run_list import json_aggregate, json_value

FACTS_SHOWN = ("name", "run_id", "started", "status", "verdict", "step_time_ms", "tags")
MAX_METRICS = 3


def choose_columns(found: Runs, asked: str | None, usual: Callable[[], Sequence[str]]) -> list[str]:
    """Returns the keys of the columns that were asked for, or the usual ones; `+KEY` adds to
    those, also where a plus stands before some of the names alone. Raises QueryError for a name
    that no run has."""
    if asked is None:
        return list(usual())
    if are_added(asked):
        return list(dict.fromkeys((*usual(), *added_columns(found, asked))))
    return found.choose_columns(asked)


def are_added(asked: str) -> bool:
    """Returns whether the columns that were asked for are added to the usual ones."""
    return any(name.startswith("+") for name in split_names(asked))


def added_columns(found: Runs, asked: str) -> list[str]:
    """Returns the keys of columns that are added to the usual ones."""
    return found.choose_columns(",".join(name.removeprefix("+") for name in split_names(asked)))


def usual_columns(found: Runs) -> list[str]:
    """Returns the columns that matter: facts, main metrics, what differs in the parameters."""
    if not len(found):
        return []
    facts = [f"facts.{name}" for name in FACTS_SHOWN]
    shown = [key for key in facts if found.has(key)]
    return [*shown, *found.main_metrics(MAX_METRICS), *found.varying()]


def usual_group_columns(found: Runs) -> list[str]:
    """Returns the columns that matter of groups: the step time and the main metrics."""
    steps = [key for key in ("facts.step_time_ms",) if found.has(key)]
    return [*steps, *found.main_metrics(MAX_METRICS)]


def runs_document(found: Runs, keys: Sequence[str]) -> dict[str, Any]:
    """Returns the runs as JSON has them; what a run does not have is left out."""
    names = [written_key(key) for key in keys]
    columns = [found.column(key) for key in keys]
    runs = [
        {
            name: json_value(values[place])
            for name, values in zip(names, columns, strict=True)
            if values[place] is not None
        }
        for place in range(len(found))
    ]
    return {"runs": runs, "total": found.total, "notes": list(found.notes)}


@dataclass(frozen=True, slots=True)
class GroupedRuns:
    """The groups that a list shows."""

    groups: Sequence[RunGroup]
    by: Sequence[str]
    columns: Sequence[str]
    total: int
    """The number of groups without the limit."""

    def after(self, offset: int) -> GroupedRuns:
        """Returns them without the first ones."""
        return replace(self, groups=self.groups[offset:])


def group_listed(
    found: Runs, by: str, asked: str | None, sort: str | None, limit: int | None
) -> GroupedRuns:
    """Returns the groups of runs with the columns that were asked for, or the usual ones."""
    columns = choose_columns(found, asked, lambda: usual_group_columns(found))
    groups = found.group(by, columns, sort, limit)
    keys = list(groups[0].values) if groups else []
    shown = [key for key in columns if key not in keys]
    return GroupedRuns(groups, keys, shown, found.count_groups(by))


def groups_document(found: Runs, grouped: GroupedRuns) -> dict[str, Any]:
    """Returns groups as JSON has them."""
    groups = [
        {
            "group": {written_key(key): json_value(value) for key, value in group.values.items()},
            "count": len(group.rows),
            "runs": [found.names[row] for row in group.rows],
            "columns": {
                written_key(key): json_aggregate(group.columns[key]) for key in grouped.columns
            },
        }
        for group in grouped.groups
    ]
    return {"groups": groups, "total": found.total, "notes": list(found.notes)}


def what_mattered_in(found: Runs, name: str) -> WhatMattered:
    """Returns which parameters a column of numbers, most often a logged metric, depends on over the
    runs that were found. Raises UsageError for what is no such column."""
    keys = found.choose_columns(name)
    if len(keys) != 1 or keys[0].startswith("params."):
        raise UsageError(
            f"--what-mattered takes one metric or fact, not {shorten(name, 60)}; write a name such "
            "as metrics.loss"
        )
    # Late: it takes scipy, which lists of runs are made without.
    from traceml.compare.parameter_importance import what_mattered

    known = params_in(found, found.varying())
    values = numbers_in(found, keys[0])
    return what_mattered(known, values, written_key(keys[0]), is_more_better(keys[0]))


def params_in(found: Runs, keys: Sequence[str]) -> list[dict[str, Shown]]:
    """Returns these parameters of each run, by their names without a prefix."""
    params: list[dict[str, Shown]] = [{} for _ in range(len(found))]
    for key in keys:
        for run, value in zip(params, found.column(key), strict=True):
            run[key.partition(".")[2]] = _shown(value)
    return params


def numbers_in(found: Runs, key: str) -> list[float | None]:
    """Returns a column of numbers; `None` for what is none."""
    return [
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        for value in found.column(key)
    ]


def _shown(value: RunValue | None) -> Shown:
    return ", ".join(value) if isinstance(value, tuple) else value
