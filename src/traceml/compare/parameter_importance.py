"""What mattered: which parameters a metric depends on, over many runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from msgspec import structs

from traceml.compare.forest_importance import (
    MAX_SETTINGS,
    MIN_SETTINGS,
    ForestImportance,
    NoForest,
    forest_importance,
)
from traceml.compare.importance_record import (
    Estimate,
    ForestFit,
    InteractionGrid,
    ParameterImportance,
    WhatMattered,
)
from traceml.compare.parameter_columns import (
    Column,
    Floats,
    RunSettings,
    names_together,
    rank_correlation,
    ranks_of,
    settings_of,
    vary_together,
)
from traceml.compare.parameter_groups import Params
from traceml.compare.statistics import holm
from traceml.compare.students_t import quantile
from traceml.compare.value_bins import bins_of, grid_of, levels_off_at
from traceml.model.quantities import count

MIN_FOR_TRENDS = 5
"""With four settings no rank correlation has a p-value below 0.08."""
PER_PARAMETER = 10
"""Settings per parameter below which a warning is given: the usual rule of thumb."""
MAX_SHUFFLED_SETTINGS = 50
"""Up to here p-values are those of shuffled metrics; above, the approximations are accurate."""
SHUFFLES = 9_999
MAX_GRID_BINS = 4
RANDOM_SEED = 20_261_116
_NORMAL = 1e9
"""Degrees of freedom of a t distribution that is the normal one."""

_Test: TypeAlias = tuple[str, str]
"""A parameter, and which test of it."""


def what_mattered(
    params: Sequence[Params],
    values: Sequence[float | None],
    metric: str,
    higher_is_better: bool | None = None,
) -> WhatMattered:
    """Returns how a metric depends on what runs were run with.

    `params` and `values` hold the parameters and the metric of each run; runs without a finite
    value are left out and counted.
    """
    used = [
        (run, value)
        for run, value in zip(params, values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    # In one order, however the runs were listed: shuffles and folds go by position.
    used.sort(key=lambda each: (each[1], sorted((name, str(v)) for name, v in each[0].items())))
    settings = settings_of([run for run, _ in used], [value for _, value in used])
    found = WhatMattered(
        metric=metric,
        higher_is_better=higher_is_better,
        runs=len(used),
        runs_without_metric=len(params) - len(used),
        settings=len(settings.metric),
        left_out=settings.left_out,
    )
    reason = _reason_for_nothing(settings, metric)
    return structs.replace(found, warnings=(reason,)) if reason else _tested(found, settings)


def _reason_for_nothing(settings: RunSettings, metric: str) -> str | None:
    number = len(settings.metric)
    if number < MIN_FOR_TRENDS:
        return (
            f"{count(number, 'setting')} with {metric}: too few to say which parameter mattered "
            f"(at least {MIN_FOR_TRENDS}; runs that differ in seed alone are one setting)"
        )
    if not settings.columns:
        return "no parameter varies between these runs"
    if np.ptp(ranks_of(settings.metric)) == 0:
        return f"all runs have the same {metric}"
    return None


def _tested(found: WhatMattered, settings: RunSettings) -> WhatMattered:
    columns, metric = settings.columns, settings.metric
    groups = vary_together(columns)
    together = names_together(columns, groups)
    warnings = list(_warnings(settings))
    forest, why_none = _forest(settings, groups)
    warnings += [why_none] if why_none else []
    tests: dict[_Test, Estimate] = {}
    for column in columns:
        kind = "kruskal_wallis" if column.ranks is None else "spearman"
        tests[column.name, kind] = (
            _kruskal(column, metric) if column.ranks is None else (_spearman(column, metric))
        )
    # One test for each group of parameters that the forest cannot tell apart.
    by_group = forest.importances if forest and forest.explained > 0 else {}
    judged = {(str(group), "forest"): estimate for group, estimate in by_group.items()}
    corrected = _corrected({**tests, **judged})
    group_of = {columns[place].name: str(n) for n, group in enumerate(groups) for place in group}
    parameters = [
        _importance(column, settings, found.higher_is_better, corrected, group_of, together)
        for column in columns
    ]
    parameters.sort(key=_order)
    return structs.replace(
        found,
        parameters=tuple(parameters),
        forest=forest and ForestFit(explained=forest.explained, settings=forest.settings),
        interaction=_interaction(forest, settings, groups, corrected),
        warnings=tuple(warnings),
    )


def _warnings(settings: RunSettings) -> list[str]:
    number, asked = len(settings.metric), len(settings.columns)
    wanted = max(MIN_SETTINGS, PER_PARAMETER * asked)
    if number >= wanted:
        return []
    return [
        f"few runs: {count(number, 'setting')} for {count(asked, 'parameter')}; from about "
        f"{wanted} on ({PER_PARAMETER} per parameter) what does not show can be called small"
    ]


def _forest(
    settings: RunSettings, groups: Sequence[tuple[int, ...]]
) -> tuple[ForestImportance | None, str | None]:
    """Returns the forest, or why there is none."""
    number = len(settings.metric)
    if number < MIN_SETTINGS:
        return None, f"no random forest: it takes at least {MIN_SETTINGS} settings"
    parts = [column.features for column in settings.columns]
    ends = np.cumsum([part.shape[1] for part in parts])
    places = [
        tuple(range(int(end) - part.shape[1], int(end)))
        for part, end in zip(parts, ends, strict=True)
    ]
    shuffled = [tuple(column for place in group for column in places[place]) for group in groups]
    try:
        found = forest_importance(np.hstack(parts), shuffled, settings.metric)
    except NoForest:
        return None, (
            "no random forest, so only trends and no interactions are seen: scikit-learn is not "
            "installed; pip install 'traceml-insight[importance]'"
        )
    if found.explained <= 0:
        return found, (
            "the random forest predicts unseen settings no better than their mean does: it "
            "found nothing to rank"
        )
    if number > MAX_SETTINGS:
        return found, f"the random forest was fitted to {MAX_SETTINGS:,} settings drawn from all"
    return found, None


def _spearman(column: Column, metric: Floats) -> Estimate:
    known = column.known
    ranks, others = ranks_of(column.numbers[known]), ranks_of(metric[known])
    number = len(ranks)
    value = rank_correlation(ranks, others)
    return Estimate(
        value=value, interval=_fisher(value, number), p=_spearman_p(ranks, others, value)
    )


def _fisher(value: float, number: int) -> tuple[float, float] | None:
    """Returns the interval of a rank correlation, by Fisher's transform with the standard error of
    Bonett and Wright."""
    if number < MIN_FOR_TRENDS:
        return None
    # A perfect one has no interval: the next that this many settings can have stands for it.
    largest = 1 - 12 / (number**3 - number)
    middle = math.atanh(max(-largest, min(largest, value)))
    distance = quantile(_NORMAL) * math.sqrt((1 + value**2 / 2) / (number - 3))
    low, high = math.tanh(middle - distance), math.tanh(middle + distance)
    return (min(low, value), max(high, value))


def _spearman_p(ranks: Floats, others: Floats, value: float) -> float | None:
    number = len(ranks)
    if number < MIN_FOR_TRENDS or np.ptp(ranks) == 0 or np.ptp(others) == 0:
        return None
    if number > MAX_SHUFFLED_SETTINGS:
        from scipy import stats

        return float(stats.spearmanr(ranks, others).pvalue)
    centred = ranks - ranks.mean()
    sums = np.abs(_shuffled(others - others.mean()) @ centred)
    return _share_at_least(sums, abs(float((others - others.mean()) @ centred)))


def _kruskal(column: Column, metric: Floats) -> Estimate:
    """Returns whether the metric differs between the values of a category: the Kruskal–Wallis
    test."""
    ranks = ranks_of(metric)
    centred, one_hot = ranks - ranks.mean(), column.one_hot
    sizes = one_hot.sum(axis=0)
    between = float((((centred @ one_hot) ** 2) / sizes).sum())
    value = between / float(centred @ centred)
    if len(ranks) > MAX_SHUFFLED_SETTINGS:
        from scipy import stats

        sides = [ranks[one_hot[:, level] > 0] for level in range(one_hot.shape[1])]
        return Estimate(value=value, p=float(stats.kruskal(*sides).pvalue))
    found = (((_shuffled(centred) @ one_hot) ** 2) / sizes).sum(axis=1)
    return Estimate(value=value, p=_share_at_least(found, between))


def _shuffled(values: Floats) -> Floats:
    """Returns the values in other orders, a row each; always the same orders."""
    chance = np.random.default_rng(RANDOM_SEED)
    return chance.permuted(np.tile(values, (SHUFFLES, 1)), axis=1)


def _share_at_least(found: Floats, observed: float) -> float:
    """Returns the p-value: the share of shuffles, and of what was observed, as far from zero."""
    return (1 + int((found >= observed * (1 - 1e-9)).sum())) / (1 + len(found))


def _corrected(tests: Mapping[_Test, Estimate]) -> dict[_Test, Estimate]:
    p_values = holm({key: each.p for key, each in tests.items() if each.p is not None})
    return {key: structs.replace(each, p=p_values.get(key)) for key, each in tests.items()}


def _importance(
    column: Column,
    settings: RunSettings,
    higher_is_better: bool | None,
    tests: Mapping[_Test, Estimate],
    group_of: Mapping[str, str],
    together: Mapping[str, tuple[str, ...]],
) -> ParameterImportance:
    binned = bins_of(column, settings.metric)
    found = ParameterImportance(
        name=column.name,
        kind="category" if column.ranks is None else "number",
        distinct=len({int(level) for level in column.levels[column.known]}),
        settings=int(column.known.sum()),
        spearman=tests.get((column.name, "spearman")),
        kruskal_wallis=tests.get((column.name, "kruskal_wallis")),
        forest=tests.get((group_of[column.name], "forest")),
        together_with=together[column.name],
        bins=binned.bins,
    )
    if not found.matters:
        return found
    end = levels_off_at(column, settings.metric, binned, higher_is_better)
    return structs.replace(found, levels_off_at=end)


def _order(found: ParameterImportance) -> tuple[bool, float, float, str]:
    trend = abs(found.spearman.value) if found.spearman else 0.0
    if found.kruskal_wallis:
        trend = math.sqrt(found.kruskal_wallis.value)
    return (not found.matters, -(found.forest.value if found.forest else 0.0), -trend, found.name)


def _interaction(
    forest: ForestImportance | None,
    settings: RunSettings,
    groups: Sequence[tuple[int, ...]],
    tests: Mapping[_Test, Estimate],
) -> InteractionGrid | None:
    """Returns the strongest interaction that the runs show between parameters that each matter to
    the forest; of parameters that vary together the first stands for all."""
    if forest is None or forest.explained <= 0:
        return None
    p_values = holm({pair: each.p or 0.0 for pair, each in forest.interactions.items()})
    strengths = {
        pair: structs.replace(each, p=p_values[pair])
        for pair, each in forest.interactions.items()
        if all(tests[str(group), "forest"].is_significant for group in pair)
    }
    shown = [pair for pair, each in strengths.items() if each.is_significant]
    if not shown:
        return None
    pair = max(shown, key=lambda each: strengths[each].value)
    rows, columns = (settings.columns[groups[group][0]] for group in pair)
    binned = [bins_of(each, settings.metric, MAX_GRID_BINS) for each in (rows, columns)]
    means, numbers = grid_of(binned[0], binned[1], settings.metric)
    return InteractionGrid(
        rows=rows.name,
        columns=columns.name,
        strength=strengths[pair],
        row_bins=binned[0].bins,
        column_bins=binned[1].bins,
        means=means,
        settings=numbers,
    )
