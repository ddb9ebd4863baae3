"""The part of a run's page about the layers of its model; there with a deep profile only."""

from __future__ import annotations

from collections.abc import Iterator

from traceml.figures.gradient_norms import norm_lines
from traceml.figures.layer_tree import layer_tree
from traceml.figures.page import Part, Row, Table, Tile
from traceml.figures.words import cell, joined, line
from traceml.model.layer_names import MODEL
from traceml.model.printable import shorten_middle
from traceml.model.quantities import (
    NOT_MEASURED,
    count,
    factor_words,
    milliseconds,
    operations,
    percent,
)
from traceml.summaries.layer_record import (
    ActivitySummary,
    LayersSummary,
    SlowedLayerSummary,
    SlowLayerSummary,
)

MAX_KERNELS = 15
"""Rows of the table of kernels; the JSON file has all of them."""
MAX_SLOW = 12
"""Rows of either kind in the table of slow layers."""
MAX_NOTES = 5
MAX_NAME_CHARS = 72
"""Of a kernel: its template's arguments would fill the page."""
_CLOCKS = {"gpu": "GPU clock", "cpu": "CPU clock"}


def layers_part(found: LayersSummary | None) -> Part | None:
    """Returns the layers of a run, and the kernels of its GPU; `None` without a deep profile."""
    if found is None:
        return None
    drawn = (layer_tree(found), norm_lines(found.gradients))
    figures = tuple(figure for figure in drawn if figure is not None)
    if not (figures or found.activity or found.notes):
        return None
    kernels = None if found.activity is None else _kernels(found.activity)
    return Part(
        id="layers",
        title="Layers",
        note=_note(found),
        tiles=tuple(_tiles(found)),
        figures=figures,
        tables=tuple(table for table in (_slow(found), kernels) if table is not None),
        is_wide=True,
    )


def _note(found: LayersSummary) -> str | None:
    """Returns how much was looked at, and what could not be seen."""
    looked = f"{count(found.steps, 'step')} looked at" if found.steps else None
    told = [line(note) for note in found.notes[:MAX_NOTES]]
    hidden = len(found.notes) - len(told)
    more = f"{count(hidden, 'more note')}" if hidden > 0 else None
    return joined((looked, _CLOCKS.get(found.clock or ""), *told, more)) or None


def _tiles(found: LayersSummary) -> Iterator[Tile]:
    for label, in_layers_ms, rest_ms, mean_ms in (
        ("Forward in layers", found.forward_ms, found.rest_forward_ms, found.mean_forward_ms),
        ("Backward in layers", found.backward_ms, found.rest_backward_ms, found.mean_backward_ms),
    ):
        if in_layers_ms is not None:
            rest = None if rest_ms is None else f"{milliseconds(rest_ms)} outside of layers"
            mean = None if mean_ms is None else f"whole phase {milliseconds(mean_ms)} in all steps"
            yield Tile(label, milliseconds(in_layers_ms), note=joined((rest, mean)) or None)
    waited_ms = (found.communication_ms or 0.0) + (found.rest_communication_ms or 0.0)
    if waited_ms:
        in_layers = (
            f"{milliseconds(found.communication_ms or 0.0)} of it in layers, beside their time"
        )
        yield Tile("Communication, forward and backward", milliseconds(waited_ms), note=in_layers)
    if found.recompute_ms is not None:
        yield Tile("Computed again in backward", milliseconds(found.recompute_ms))
    if found.flops_per_step is not None:
        again = found.recompute_flops_per_step
        more = f"{operations(again)} more are computed again in backward" if again else None
        yield Tile("Operations per step", operations(found.flops_per_step), note=more)
    if found.flops_per_s is not None:
        yield Tile("Operations per second", operations(found.flops_per_s, "/s"))
    if found.mfu is not None and found.peak_flops_per_s is not None:
        most = f"of {operations(found.peak_flops_per_s, '/s')}"
        yield Tile("FLOPs utilisation (MFU)", percent(found.mfu), note=most)
    if found.activity is not None:
        yield from _activity_tiles(found.activity)


def _activity_tiles(found: ActivitySummary) -> Iterator[Tile]:
    steps = f"by its own record of {count(found.steps, 'step')}"
    yield Tile("GPU busy per step", milliseconds(found.busy_ms), note=steps)
    yield Tile("Kernels per step", count(round(found.kernels_per_step)))
    if found.copies_ms:
        apart = found.copies_alone_ms
        alone = None if apart is None else f"{milliseconds(apart)} of it alone"
        yield Tile("Copies per step", milliseconds(found.copies_ms), note=alone)
    if found.communication_ms:
        alone = f"{milliseconds(found.communication_alone_ms)} of it alone"
        yield Tile("Communication per step", milliseconds(found.communication_ms), note=alone)


def _slow(found: LayersSummary) -> Table | None:
    """Returns the layers that are slow on one rank alone, or since some step."""
    rows = [
        Row(
            (
                _with_kernel(each),
                str(each.rank),
                factor_words(each.factor, each.interval),
                milliseconds(each.rank_ms),
                f"{milliseconds(each.others_ms)} elsewhere",
                f"{each.high_bursts} of {count(each.bursts, 'burst')}",
            ),
            tone="warn",
        )
        for each in found.slow_on_rank[:MAX_SLOW]
    ]
    rows += [
        Row(
            (
                _with_kernel(each),
                ", ".join(map(str, sorted((each.rank, *each.also_ranks)))),
                factor_words(each.factor, each.interval),
                milliseconds(each.after_ms),
                f"{milliseconds(each.before_ms)} before",
                f"since step {count(each.since_step)}",
            ),
            tone="warn",
        )
        for each in found.slowed_down[:MAX_SLOW]
    ]
    if not rows:
        return None
    hidden = len(found.slow_on_rank) + len(found.slowed_down) - len(rows)
    more = f" {count(hidden)} more, in the JSON file." if hidden > 0 else ""
    return Table(
        id="slow-layers-table",
        title="Layers that are slow on one rank, or became slow",
        columns=("Layer", "Rank", "Factor", "Per step", "Instead of", "When"),
        rows=tuple(rows),
        note="Beyond what slows all layers of that rank or time; corrected for all that was "
        f"compared.{more}",
    )


def _with_kernel(each: SlowLayerSummary | SlowedLayerSummary) -> str:
    layer = cell(each.layer) or MODEL
    if each.kernel is None:
        return layer
    return f"{layer}: {shorten_middle(cell(each.kernel), MAX_NAME_CHARS)}"


def _kernels(found: ActivitySummary) -> Table | None:
    rows = tuple(
        Row(
            (
                shorten_middle(cell(kernel.name), MAX_NAME_CHARS),
                f"{kernel.calls:,.4g}",
                milliseconds(kernel.time_ms),
                percent(kernel.time_ms / found.busy_ms) if found.busy_ms else NOT_MEASURED,
                "–" if kernel.layer is None else cell(kernel.layer) or MODEL,
            )
        )
        for kernel in found.kernels[:MAX_KERNELS]
    )
    if not rows:
        return None
    hidden = len(found.kernels) - len(rows)
    return Table(
        id="kernels-table",
        title="GPU kernels",
        columns=("Kernel", "Calls per step", "Time per step", "Of busy time", "Layer"),
        rows=rows,
        note=f"{count(hidden)} more, in the JSON file." if hidden > 0 else None,
    )
