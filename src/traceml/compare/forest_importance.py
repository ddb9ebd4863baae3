"""Permutation importance by a random forest that is judged on settings it has not seen.

scikit-learn is imported here alone and only when a forest is fitted: its import takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.compare.importance_record import Estimate
from traceml.compare.parameter_columns import Floats, ranks_of
from traceml.compare.statistics import mean_error
from traceml.compare.students_t import reach, two_sided_p

FOLDS = 5
REPEATS = 3
"""Other splits into folds, each with other shuffles."""
SHUFFLES = 5
TREES = 100
MIN_PER_LEAF = 2
MIN_SETTINGS = 20
"""Four in each fold; below, a forest has nothing to learn from."""
MAX_SETTINGS = 500
"""More are drawn from: the forest takes longer and says no more."""
MAX_SHUFFLED = 40
"""Parameters whose importance is computed, those that the trees split by most."""
MAX_INTERACTING = 5
"""Parameters whose pairs are tried: the most important ones."""
FENCE = 1.5
"""Tukey's fences: so many interquartile ranges outside the quartiles."""
RANDOM_SEED = 20_261_116
"""Fixed: the same runs always give the same answer."""

Group: TypeAlias = tuple[int, ...]
"""Columns of the features that are shuffled together."""


class NoForest(Exception):
    """scikit-learn is not installed."""


@dataclass(frozen=True, slots=True)
class ForestImportance:
    """What a forest learned; p-values are not corrected."""

    explained: float
    settings: int
    importances: Mapping[int, Estimate]
    """By position of the group; those that the trees hardly use are missing."""
    interactions: Mapping[tuple[int, int], Estimate]
    """By the positions of two groups."""


@dataclass(frozen=True, slots=True)
class _Fold:
    """A forest, the settings that it has not seen, and by shuffle where each takes others' values
    from."""

    forest: Any
    unseen: NDArray[np.int64]
    donors: Sequence[NDArray[np.int64]]


def forest_importance(
    features: Floats, groups: Sequence[Group], metric: Floats
) -> ForestImportance:
    """Returns the importance of each group of columns. Raises NoForest without scikit-learn.

    Each setting is predicted by forests that were fitted without it. The importance is the mean
    over the settings of how much the squared error grows when the group's values are those of
    another setting, as a share of the variance. The interval and the test are those of this mean,
    the setting being the unit.
    """
    chance = np.random.default_rng(RANDOM_SEED)
    target = _without_outliers(metric)
    if len(target) > MAX_SETTINGS:
        drawn = chance.choice(len(target), MAX_SETTINGS, replace=False)
        features, target = features[drawn], target[drawn]
    target = (target - target.mean()) / (target.std() or 1.0)
    folds = _fit(features, target, chance)
    used = sum(fold.forest.feature_importances_ for fold in folds)
    shuffled = sorted(
        range(len(groups)), key=lambda group: -float(used[list(groups[group])].sum())
    )[:MAX_SHUFFLED]
    errors, grown = _grown_errors(folds, features, target, [groups[each] for each in shuffled])
    by_group = dict(zip(shuffled, grown, strict=True))
    most = sorted(by_group, key=lambda group: -float(by_group[group].mean()))[:MAX_INTERACTING]
    explained = 1 - float(errors.mean())
    pairs = list(combinations(sorted(most), 2)) if explained > 0 else []
    return ForestImportance(
        explained=explained,
        settings=len(target),
        importances={group: _estimate(grown) for group, grown in by_group.items()},
        interactions={
            (a, b): _estimate(_grown_without(folds, features, target, groups[a], groups[b]))
            for a, b in pairs
        },
    )


def _without_outliers(metric: Floats) -> Floats:
    """Returns the metric with values beyond Tukey's fences moved to them, so that a few runs that
    diverged do not stand for all; its ranks where that leaves nothing or overflows.

    Ranks alone would bend effects that add up into an interaction.
    """
    low, high = (float(each) for each in np.quantile(metric / 8, (0.25, 0.75)))
    reach_out = FENCE * (high - low)
    found = np.clip(metric / 8, low - reach_out, high + reach_out)
    spread = float(found.max() - found.min())
    if high == low or not math.isfinite(spread * spread * len(metric)) or spread * spread == 0:
        return ranks_of(metric)
    return found


def _fit(features: Floats, target: Floats, chance: np.random.Generator) -> list[_Fold]:
    try:
        from sklearn.ensemble import RandomForestRegressor
    except ImportError as error:
        raise NoForest from error
    folds = []
    for repeat in range(REPEATS):
        parts = np.array_split(chance.permutation(len(target)), FOLDS)
        donors = [chance.permutation(len(target)) for _ in range(SHUFFLES)]
        for place, unseen in enumerate(parts):
            forest = RandomForestRegressor(
                n_estimators=TREES,
                max_features=max(1, math.ceil(features.shape[1] / 3)),
                min_samples_leaf=MIN_PER_LEAF,
                random_state=repeat * FOLDS + place,
            )
            seen = np.setdiff1d(np.arange(len(target)), unseen)
            forest.fit(features[seen], target[seen])
            folds.append(_Fold(forest, unseen, [each[unseen] for each in donors]))
    return folds


def _grown_errors(
    folds: Sequence[_Fold], features: Floats, target: Floats, groups: Sequence[Group]
) -> tuple[Floats, Floats]:
    """Returns each setting's squared error, and by group how much it grows when the group is
    shuffled; both are means over repeats and shuffles."""
    errors = np.zeros(len(target))
    grown = np.zeros((len(groups), len(target)))
    for fold in folds:
        plain = features[fold.unseen]
        tried = [plain]
        for group in groups:
            tried += [_replaced(plain, features[donors], group) for donors in fold.donors]
        predicted = fold.forest.predict(np.concatenate(tried)).reshape(len(tried), -1)
        squared = (predicted - target[fold.unseen]) ** 2
        errors[fold.unseen] += squared[0] / REPEATS
        if groups:
            by_group = squared[1:].reshape(len(groups), len(fold.donors), -1).mean(axis=1)
            grown[:, fold.unseen] += (by_group - squared[0]) / REPEATS
    return errors, grown


def _replaced(plain: Floats, others: Floats, group: Group) -> Floats:
    """Returns the settings with the values of others in a group's columns."""
    changed: Floats = plain.copy()
    changed[:, group] = others[:, group]
    return changed


def _grown_without(
    folds: Sequence[_Fold], features: Floats, target: Floats, a: Group, b: Group
) -> Floats:
    """Returns how much each setting's squared error grows when the interaction of two groups is
    taken out of the prediction.

    The interaction is the difference of differences: what changing `a` does at this value of `b`,
    less what it does at the value that other settings have. It is zero where effects only add up.
    """
    grown = np.zeros(len(target))
    for fold in folds:
        plain = features[fold.unseen]
        tried = [plain]
        for donors in fold.donors:
            tried += [_replaced(plain, features[donors], group) for group in (a, b, a + b)]
        predicted = fold.forest.predict(np.concatenate(tried)).reshape(len(tried), -1)
        other_a, other_b, both = (predicted[1 + place :: 3].mean(axis=0) for place in range(3))
        interaction = predicted[0] - other_a - other_b + both
        missed = target[fold.unseen] - predicted[0]
        grown[fold.unseen] += ((missed + interaction) ** 2 - missed**2) / REPEATS
    return grown


def _estimate(grown: Floats) -> Estimate:
    """Returns the mean over the settings; only more than zero counts."""
    value, error = float(grown.mean()), mean_error(grown.tolist())
    distance = reach(error) if error.size else 0.0
    p = two_sided_p(value, error) / 2
    interval = (value - distance, value + distance)
    return Estimate(value=value, interval=interval, p=p if value > 0 else 1 - p)
