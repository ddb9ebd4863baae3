"""What mattered as figures: with a known answer, with few runs, and with odd ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from traceml.compare.importance_record import (
    Estimate,
    ForestFit,
    ParameterImportance,
    WhatMattered,
)
from traceml.compare.metric_surface import surface_of
from traceml.compare.parameter_importance import what_mattered
from traceml.figures.exploration_record import WhatMatteredPage
from traceml.figures.what_mattered_page import importance_figure, what_mattered_page


def made_runs(count: int = 60):
    random = np.random.default_rng(7)
    lr = 10.0 ** random.uniform(-4, -1, count)
    width = random.integers(1, 20, count)
    params = [
        {"lr": float(a), "width": int(b), "name": f"run {n}", "kind": "ab"[n % 2]}
        for n, (a, b) in enumerate(zip(lr, width, strict=True))
    ]
    loss = np.log10(lr) + 0.01 * random.standard_normal(count)
    return params, [float(value) for value in loss]


def page_of(params, loss, asked=(None, None)) -> WhatMatteredPage:
    found = what_mattered(params, loss, "loss", higher_is_better=False)
    return what_mattered_page(found, params, loss, "metrics.loss", asked)


def test_the_parameter_that_matters_leads() -> None:
    params, loss = made_runs()
    page = page_of(params, loss)
    assert page.title == "What mattered for loss"
    assert page.metric == "metrics.loss"
    assert page.correlation is not None
    first = page.correlation.rows[0]
    assert (first.name, first.tone) == ("lr", "info")
    assert first.value == pytest.approx(1.0, abs=0.01)
    assert (page.correlation.axis.low, page.correlation.axis.high) == (-1.0, 1.0)
    assert page.along[0].title == "loss along lr"
    means = [row.value for row in page.along[0].rows]
    assert means == sorted(means)
    assert page.down == "params.lr"


def test_the_grid_is_of_the_parameters_that_were_asked_for() -> None:
    params, loss = made_runs()
    page = page_of(params, loss, ("kind", "lr"))
    assert (page.down, page.across) == ("params.kind", "params.lr")
    assert page.grid is not None
    assert set(page.grid.rows) == {"a", "b"}
    assert page.contour is None, "words have no contour"
    filled = [cell for row in page.grid.cells for cell in row if cell.value is not None]
    assert sum(int(cell.note.split()[0]) for cell in filled) == 60
    assert page.grid.low == min(cell.value for cell in filled)


def test_two_numbers_have_a_contour() -> None:
    params, loss = made_runs()
    page = page_of(params, loss, ("width", "lr"))
    contour = page.contour
    assert contour is not None
    assert contour.is_across_log and not contour.is_down_log
    assert len(contour.points) == 60
    assert list(contour.levels) == sorted(contour.levels)
    assert len(contour.surface) == len(contour.at_down)


def test_few_runs_are_warned_of() -> None:
    params, loss = made_runs(3)
    page = page_of(params, loss)
    assert page.warnings[0].startswith("3 settings with loss: too few")
    assert page.correlation is None and page.grid is None


def test_runs_without_the_metric_are_counted() -> None:
    params, loss = made_runs(20)
    page = page_of(params, [*loss[:-2], math.nan, None])
    assert "2 without a finite value are left out" in page.notes[0]


def test_importance_has_its_uncertainty() -> None:
    found = WhatMattered(
        metric="loss",
        runs=50,
        settings=50,
        forest=ForestFit(explained=0.8, settings=50),
        parameters=(
            ParameterImportance(
                name="lr",
                kind="number",
                distinct=9,
                settings=50,
                forest=Estimate(value=0.9, interval=(0.7, 1.1), p=0.001),
                together_with=("warmup",),
            ),
            ParameterImportance(
                name="width",
                kind="number",
                distinct=9,
                settings=50,
                forest=Estimate(value=0.01, interval=(-0.1, 0.12), p=0.9),
            ),
        ),
    )
    figure = importance_figure(found)
    assert figure is not None
    assert [row.text for row in figure.rows] == ["0.90 [0.70, 1.10] *", "0.01 [-0.10, 0.12]"]
    assert figure.rows[0].note == "varies together with warmup"
    assert figure.caption is not None and "explains 80%" in figure.caption


def test_a_surface_follows_a_known_function_and_ends_where_no_run_is() -> None:
    random = np.random.default_rng(3)
    x, y = random.uniform(0, 1, 400), random.uniform(0, 0.5, 400)
    y[0] = 1.0
    surface = surface_of(x, y, 3 * x)
    assert surface is not None
    low = np.abs(surface.at_down - 0.25).argmin()
    known = surface.values[low]
    error = np.abs(known - 3 * surface.at_across)[4:-4]
    assert error.max() < 0.25
    assert np.isnan(surface.values[-8:]).mean() > 0.5


@pytest.mark.parametrize("values", [np.full(40, 3.0), np.arange(40) % 3.0])
def test_few_different_values_have_no_surface(values) -> None:
    random = np.random.default_rng(3)
    assert surface_of(values, random.uniform(0, 1, 40), random.uniform(0, 1, 40)) is None
