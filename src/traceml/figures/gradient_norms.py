"""Draws the norms of gradients over steps: of the whole model, and of some of its layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from traceml.figures.charts_over_steps import STEPS
from traceml.figures.colours import STEP, series_colour
from traceml.figures.page import Axis, Lines, Mark, Series, Span
from traceml.figures.words import cell
from traceml.model.layer_names import MODEL
from traceml.model.quantities import count
from traceml.summaries.layer_record import GradientsSummary, NormCurvesSummary

WHOLE_MODEL = "whole model"
NOT_FINITE = "not finite"


def norm_lines(found: GradientsSummary | None) -> Lines | None:
    """Returns the chart; `None` where norms were not measured over steps."""
    curves = None if found is None else found.curves
    if found is None or curves is None or not curves.steps:
        return None
    lengths = {len(curves.whole), len(curves.not_finite), *map(len, curves.layers.values())}
    if lengths != {len(curves.steps)}:
        return None  # a damaged summary
    whole = Series(WHOLE_MODEL, STEP, curves.whole)
    layers = (
        Series(name, series_colour(number), norms)
        for number, (name, norms) in enumerate(
            zip(_line_names(curves.layers), curves.layers.values(), strict=True)
        )
    )
    return Lines(
        id="gradient-norms",
        title="Gradient norm by layer",
        x=STEPS,
        y=Axis("gradient norm"),
        at=tuple(map(float, curves.steps)),
        series=(whole, *layers),
        spans=tuple(_spans(found)),
        marks=tuple(_marks(curves)),
        caption=_caption(curves),
        is_log=True,
    )


def _line_names(layers: Iterable[str]) -> Iterator[str]:
    """Yields a different name for each line: long names of layers are cut, and may then be
    alike."""
    taken = {WHOLE_MODEL}
    for layer in layers:
        name = shown = cell(layer) or MODEL
        number = 2
        while name in taken:
            name, number = f"{shown} ({number})", number + 1
        taken.add(name)
        yield name


def _caption(curves: NormCurvesSummary) -> str:
    said = [
        "Before clipping, on a log axis: the layers with the largest norms, and those whose norms "
        "changed the most."
    ]
    if curves.steps_per_point > 1:
        said.append(f"A point is the largest of {count(curves.steps_per_point)} measured steps.")
    bad = sum(curves.not_finite)
    if bad:
        first = next(s for s, n in zip(curves.steps, curves.not_finite, strict=True) if n)
        said.append(f"Marked on top: {count(bad)} × {NOT_FINITE}, first at step {count(first)}.")
    return " ".join(said)


def _spans(found: GradientsSummary) -> Iterator[Span]:
    rise = found.rise
    if rise is not None and rise.usual > 0:
        yield Span(
            float(rise.step), None, f"{rise.norm / rise.usual:,.0f} × the usual norm", "crit"
        )


def _marks(curves: NormCurvesSummary) -> Iterator[Mark]:
    """Yields where norms cannot be drawn; neighbouring points are one mark."""
    for first, until in _runs(curves.not_finite):
        steps = sum(curves.not_finite[first:until])
        begin, end = curves.steps[first], curves.steps[until - 1]
        yield Mark(float(begin), float(end), f"{count(steps)} × {NOT_FINITE}")


def _runs(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the beginning and end of each stretch of values above zero; the end is exclusive."""
    first: int | None = None
    for place, number in enumerate((*counts, 0)):
        if number and first is None:
            first = place
        elif not number and first is not None:
            yield first, place
            first = None
