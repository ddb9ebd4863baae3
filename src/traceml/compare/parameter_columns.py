"""The parameters of many runs as columns of numbers: which vary, which only name a run, and which
vary together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.compare.importance_record import LeftOut
from traceml.compare.lineage import Shown
from traceml.compare.parameter_groups import Params, group_by, is_label, is_repetition, varying
from traceml.model.run_values import number_of

Floats: TypeAlias = NDArray[np.float64]

MIN_TOGETHER = 0.9
"""Two parameters cannot be told apart from this rank correlation on, or where each one's values say
this share of the other's."""
MAX_LEVELS_SHARE = 0.5
"""A text with more different values than this share of the settings only names them."""


@dataclass(frozen=True, slots=True)
class Column:
    """One parameter of all settings."""

    name: str
    values: tuple[Shown, ...]
    numbers: Floats
    """The values as numbers; NaN where one is missing or a text."""
    ranks: Floats | None
    """Of a number: the rank of each setting's value, NaN where it has none; `None` of a
    category."""
    levels: NDArray[np.int64]
    """The number of each setting's value among the different ones, in the order of a number's size;
    a missing value is a level of its own."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which settings have the parameter."""
        if self.ranks is not None:
            return ~np.isnan(self.ranks)
        return np.array([value is not None for value in self.values])

    @property
    def features(self) -> Floats:
        """The parameter as a forest takes it: ranks (missing is below all), or a column of zeros
        and ones for each value of a category."""
        if self.ranks is not None:
            filled: Floats = np.where(self.known, self.ranks, -1.0)[:, None]
            return filled
        return self.one_hot

    @property
    def one_hot(self) -> Floats:
        """A column of zeros and ones for each level."""
        found: Floats = np.eye(int(self.levels.max()) + 1)[self.levels]
        return found


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What was run: each setting once, with the mean of the metric over its repetitions."""

    columns: tuple[Column, ...]
    metric: Floats
    left_out: tuple[LeftOut, ...]


def settings_of(params: Sequence[Params], values: Sequence[float]) -> RunSettings:
    """Returns the settings of runs that all have a finite value of the metric."""
    varied = sorted(varying(params))
    compared = [name for name in varied if not is_repetition(name) and not is_label(name)]
    groups = group_by(params, compared)
    # Each is divided first: the sum of two of the largest numbers is not a number.
    metric = np.array(
        [math.fsum(values[run] / len(group) for run in group) for group in groups], dtype=float
    )
    columns, left_out = (
        [],
        [
            LeftOut(name=name, why="it names or repeats a run")
            for name in varying(params)
            if name not in compared
        ],
    )
    for name in compared:
        column = _column(name, [params[group[0]].get(name) for group in groups])
        distinct = int(column.levels.max()) + 1 if len(groups) else 0
        if column.ranks is None and distinct > max(2, MAX_LEVELS_SHARE * len(groups)):
            why = f"{distinct} different texts in {len(groups)} settings only name them"
            left_out.append(LeftOut(name=name, why=why))
        else:
            columns.append(column)
    return RunSettings(tuple(columns), metric, tuple(left_out))


def _column(name: str, values: Sequence[Shown]) -> Column:
    known = [_as_number(value) for value in values]
    numbers = np.array(known, dtype=float)
    if _is_number(values, known):
        _, levels = np.unique(numbers, return_inverse=True)  # NaN is one level, the last
        return Column(name, tuple(values), numbers, ranks_of(numbers), levels.astype(np.int64))
    found: dict[tuple[bool, Shown], int] = {}
    codes = [found.setdefault((type(value) is bool, value), len(found)) for value in values]
    return Column(name, tuple(values), numbers, None, np.array(codes, dtype=np.int64))


def _is_number(values: Sequence[Shown], numbers: Sequence[float]) -> bool:
    """Returns whether all known values are numbers, or all are true or false; a parameter that some
    runs have and others not is a category where its known values are all the same."""
    known = [
        (value, number)
        for value, number in zip(values, numbers, strict=True)
        if value is not None and not _is_nan(value)
    ]
    kinds = {type(value) is bool for value, _ in known}
    return (
        len(kinds) == 1
        and not any(math.isnan(number) for _, number in known)
        and len({number for _, number in known}) > 1
    )


def _is_nan(value: Shown) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _as_number(value: Shown) -> float:
    """Returns a value as a number, also one that a command line has as text; NaN where it is
    none."""
    found = None if value is None else number_of(value)
    return math.nan if found is None else found


def ranks_of(values: Floats) -> Floats:
    """Returns the ranks from 1 on, ties with their mean; NaN has none."""
    from scipy import stats  # late: it takes most of a second

    known = ~np.isnan(values)
    ranks = np.full(len(values), math.nan)
    ranks[known] = stats.rankdata(values[known])
    return ranks


def vary_together(columns: Sequence[Column]) -> list[tuple[int, ...]]:
    """Returns groups of parameters that cannot be told apart, by their positions; most are alone.

    What varies with a third one is in the same group.
    """
    group = list(range(len(columns)))
    for place, column in enumerate(columns):
        for other in range(place):
            if group[place] != group[other] and _association(column, columns[other]) > MIN_TOGETHER:
                old, new = group[place], group[other]
                group = [new if each == old else each for each in group]
    by_group: dict[int, list[int]] = {}
    for place, number in enumerate(group):
        by_group.setdefault(number, []).append(place)
    return [tuple(places) for places in by_group.values()]


def _association(a: Column, b: Column) -> float:
    """Returns how much two parameters say about each other, from 0 to 1."""
    found = _shared_information(a.levels, b.levels) if _repeats(a) and _repeats(b) else 0.0
    if a.ranks is not None and b.ranks is not None:
        both = a.known & b.known
        found = max(found, abs(rank_correlation(a.ranks[both], b.ranks[both])))
    return found + 1e-9  # of rounding


def _repeats(column: Column) -> bool:
    """Returns whether values come again; what has another value in each setting says all about
    everything."""
    return int(column.levels.max()) + 1 <= len(column.levels) * MAX_LEVELS_SHARE


def _shared_information(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """Returns the mutual information as a share of the larger entropy."""
    largest = max(_entropy(a), _entropy(b))
    both = a * (int(b.max()) + 1) + b
    shared = _entropy(a) + _entropy(b) - _entropy(both)
    return shared / largest if largest else 0.0


def _entropy(levels: NDArray[np.int64]) -> float:
    _, counts = np.unique(levels, return_counts=True)
    shares = counts / len(levels)
    return float(-(shares * np.log(shares)).sum())


def rank_correlation(a: Floats, b: Floats) -> float:
    """Returns Spearman's correlation of two columns; 0 where one does not vary."""
    if len(a) < 2:
        return 0.0
    a, b = ranks_of(a), ranks_of(b)
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else 0.0


def names_together(
    columns: Sequence[Column], groups: Sequence[tuple[int, ...]]
) -> Mapping[str, tuple[str, ...]]:
    """Returns, by parameter, the others of its group."""
    return {
        columns[place].name: tuple(columns[other].name for other in group if other != place)
        for group in groups
        for place in group
    }
