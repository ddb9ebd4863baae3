"""The norms of gradients over steps: of layers, and of the whole model, also where no rank has all
of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traceml.facts.robust_statistics import Values, known_median
from traceml.store.layer_records import LayerRecords

MAX_LAYERS = 7
"""Layers with a curve, beside the whole model: more cannot be told apart in a chart."""
MAX_LARGEST = 3
"""Of these, the layers with the largest norms; the others are those whose norm changed the most."""
MAX_POINTS = 120
"""Points of a curve: in a longer run a point stands for several steps."""
END_STEPS = 8
"""How many measured steps at each end of the run are compared to see how much a norm changed."""
MIN_SHARE = 1e-3
"""Of the whole model's norm: smaller norms count as this, because a norm of zero has no
logarithm."""


@dataclass(frozen=True, slots=True)
class ModelStage:
    """A part of the model, as the rank with the most steps measured it."""

    records: LayerRecords
    places: tuple[int, ...]
    """The indices of its layers among those of the rank: the layers with a norm that are in no
    earlier stage."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of this part's layers."""
        return tuple(self.records.names[place] for place in self.places)


@dataclass(frozen=True, slots=True)
class NormCurves:
    """Norms over steps: the largest finite one of each point; `None` where none was measured."""

    steps: tuple[int, ...]
    """The first measured step of each point."""
    steps_per_point: int
    """How many measured steps a point stands for at most."""
    whole: tuple[float | None, ...]
    """Of the whole model."""
    layers: Mapping[str, tuple[float | None, ...]]
    """Of the layers whose norms are the largest, or changed the most."""
    not_finite: tuple[int, ...]
    """At how many measured steps of each point some norm was infinite or not a number."""


def model_stages(measured: Sequence[LayerRecords]) -> list[ModelStage]:
    """Returns the parts of the model that have other layers than one another, such as the stages of
    a pipeline; a single one where all ranks have the same layers."""
    stages: list[ModelStage] = []
    seen: set[str] = set()
    for each in sorted(measured, key=lambda each: -len(each.norms.steps)):
        owners = np.flatnonzero(~np.isnan(each.norms.values).all(axis=0)).tolist()
        places = tuple(place for place in owners if each.names[place] not in seen)
        if places or not stages:
            stages.append(ModelStage(each, places))
            seen.update(stages[-1].names)
    return stages


def whole_model(stages: Sequence[ModelStage]) -> tuple[tuple[int, ...], Values]:
    """Returns the steps that were measured on all stages, and the norm of the whole model in each;
    infinity where not finite."""
    steps = sorted(set.intersection(*(set(stage.records.norms.steps) for stage in stages)))
    squares = np.zeros(len(steps))
    for stage in stages:
        row_of = {step: row for row, step in enumerate(stage.records.norms.steps)}
        rows = [row_of[step] for step in steps]
        values = stage.records.norms.values[np.ix_(rows, stage.places)]
        squares += np.nansum(values**2, axis=1)
    return tuple(steps), np.asarray(np.sqrt(squares))


def median_norms(stages: Sequence[ModelStage]) -> dict[str, float]:
    """Returns the median of each layer's finite norms, by name."""
    found = {}
    for stage in stages:
        for name, place in zip(stage.names, stage.places, strict=True):
            values = stage.records.norms.values[:, place]
            finite = values[np.isfinite(values)]
            if len(finite):
                found[name] = float(np.median(finite))
    return found


def norm_curves(
    stages: Sequence[ModelStage], medians: Mapping[str, float], wanted: Sequence[str]
) -> NormCurves | None:
    """Returns the curves of the whole model and of some layers, the wanted ones first; `None` where
    fewer than two steps were measured. `medians` are the layers' usual norms."""
    measured = set().union(*(stage.records.norms.steps for stage in stages))
    if len(measured) < 2:
        return None
    points = _CurvePoints(tuple(sorted(measured)))
    not_finite = np.zeros(len(measured))
    for stage in stages:
        norms = stage.records.norms
        is_bad = np.isinf(norms.values[:, stage.places]).any(axis=1)
        not_finite = np.fmax(not_finite, points.spread(norms.steps, is_bad.astype(float)))
    return NormCurves(
        steps=tuple(points.measured[start] for start in points.starts),
        steps_per_point=points.size,
        whole=points.largest(*whole_model(stages)),
        layers={
            name: points.largest(stage.records.norms.steps, values)
            for name, stage, values in _chosen(stages, medians, wanted)
        },
        not_finite=tuple(map(int, np.add.reduceat(not_finite, points.starts))),
    )


@dataclass(frozen=True, slots=True)
class _CurvePoints:
    """Divides the measured steps into the points of the curves: every curve has the same points."""

    measured: tuple[int, ...]
    """The steps that were measured on any rank."""

    @property
    def size(self) -> int:
        """How many measured steps a point stands for."""
        return -(-len(self.measured) // MAX_POINTS)

    @property
    def starts(self) -> range:
        """The index of each point's first measured step."""
        return range(0, len(self.measured), self.size)

    def spread(self, steps: Sequence[int], values: Values) -> Values:
        """Returns the values of some steps as an array over all measured steps; NaN for the
        others."""
        row = np.full(len(self.measured), np.nan)
        row[np.searchsorted(self.measured, steps)] = values
        return row

    def largest(self, steps: Sequence[int], values: Values) -> tuple[float | None, ...]:
        """Returns the largest finite value of each point; `None` where there is none."""
        row = self.spread(steps, values)
        row[~np.isfinite(row)] = np.nan
        most = np.fmax.reduceat(row, self.starts)
        return tuple(None if math.isnan(value) else value for value in most.tolist())


def _chosen(
    stages: Sequence[ModelStage], medians: Mapping[str, float], wanted: Sequence[str]
) -> Iterator[tuple[str, ModelStage, Values]]:
    """Yields the layers to draw with their norms over the steps of their stage: the wanted ones,
    those with the largest norms, and those whose norms changed the most."""
    min_norm = MIN_SHARE * math.hypot(*medians.values())
    changes = {name: change for stage in stages for name, change in _changes(stage, min_norm)}
    largest = sorted(medians, key=lambda name: -medians[name])[:MAX_LARGEST]
    changed = sorted(medians, key=lambda name: -changes[name])
    names = [name for name in (*wanted, *largest, *changed) if name in medians]
    chosen = list(dict.fromkeys(names))[:MAX_LAYERS]
    norms = {
        name: (stage, stage.records.norms.values[:, place])
        for stage in stages
        for name, place in zip(stage.names, stage.places, strict=True)
    }
    for name in sorted(chosen, key=lambda name: -medians[name]):
        yield name, *norms[name]


def _changes(stage: ModelStage, min_norm: float) -> Iterator[tuple[str, float]]:
    """Yields how much each layer's norm changed from the first steps to the last ones, as the
    absolute logarithm of their ratio.

    Norms below `min_norm` count as `min_norm`, so that a layer with next to no gradient does not
    seem to change the most.
    """
    values = stage.records.norms.values[:, stage.places]
    finite = np.where(np.isfinite(values), np.maximum(values, min_norm), np.nan)
    finite = finite[~np.isnan(finite).all(axis=1)]
    if not len(finite) or min_norm <= 0:
        yield from ((name, 0.0) for name in stage.names)
        return
    first, last = (known_median(part, 0) for part in (finite[:END_STEPS], finite[-END_STEPS:]))
    changes: Values = np.nan_to_num(np.abs(np.log(last / first)))
    yield from zip(stage.names, changes.tolist(), strict=True)
