"""The part about layers: sums below a name, repeated layers as one, nothing without a profile."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from drawn_runs import page_of, part
from factories import make_run
from layer_runs import burst_records, kernel_step, layer_records, with_layers, with_norms
from traceml.figures.gradient_norms import norm_lines
from traceml.figures.layer_record import LayerRows, LayerTree
from traceml.figures.layer_tree import MAX_LAYERS, layer_tree
from traceml.figures.layers import MAX_KERNELS, layers_part
from traceml.figures.page import Lines, Part
from traceml.summaries.build import build
from traceml.summaries.layer_record import (
    GradientRiseSummary,
    GradientsSummary,
    LayersSummary,
    LayerSummary,
    NormCurvesSummary,
)

OWN_MS = {
    "": 0.5,
    "blocks": 0.0,
    "blocks.0": 1.0,
    "blocks.0.attn": 3.0,
    "blocks.1": 1.0,
    "blocks.1.attn": 5.0,
    "head": 4.0,
}


def part_of(*records: Any) -> Part:
    found = layers_part(build(with_layers(make_run(steps=40), *records), 0.0, "0").layers)
    assert found is not None
    return found


def tree_of(*records: Any) -> LayerTree:
    found = part_of(*records).figures[0]
    assert isinstance(found, LayerTree)
    return found


def values(rows: LayerRows, column: str, own: bool = False) -> dict[str, float | None]:
    found = next(each for each in rows.columns if each.id == column)
    shown = found.own if own and found.own is not None else found.whole
    return {row.name: value for row, value in zip(rows.rows, shown, strict=True)}


def test_a_run_without_a_deep_profile_has_no_such_part() -> None:
    assert "layers" not in [found.id for found in page_of(make_run(steps=40)).parts]


def test_what_is_computed_again_is_said_beside_the_operations_of_a_step() -> None:
    counted = {"forward_flops": np.array([3_000_000]), "recompute_flops": np.array([1_000_000])}
    found = part_of(layer_records(forward_ms={"a": 1.0}, counted=counted))
    (tile,) = (tile for tile in found.tiles if tile.label == "Operations per step")
    assert tile.value == "3.00 MFLOP"
    assert tile.note == "1.00 MFLOP more are computed again in backward"
    assert [tile.value for tile in found.tiles if tile.label == "Operations per second"] != []


def test_the_part_stands_beside_the_step_s_time() -> None:
    page = page_of(with_layers(make_run(steps=40), layer_records(forward_ms=OWN_MS)))
    assert [found.id for found in page.parts][:2] == ["step-time", "layers"]
    note = part(page, "layers").note or ""
    assert note.startswith("4 steps looked at · CPU clock · Floating-point operations are not")


def test_a_row_counts_what_is_below_its_name_and_its_own_time_apart() -> None:
    rows = tree_of(layer_records(forward_ms=OWN_MS, backward_ms=OWN_MS)).single
    assert values(rows, "total")["(the model itself)"] == 29.0
    assert values(rows, "total")["blocks"] == 20.0
    assert values(rows, "total", own=True)["blocks"] == 0.0
    assert values(rows, "own")["blocks.1"] == 2.0
    assert values(rows, "forward")["blocks.1"] == 6.0
    assert values(rows, "forward", own=True)["blocks.1"] == 1.0


def test_rows_know_the_one_above_them_which_comes_first() -> None:
    for rows in (tree := tree_of(layer_records(forward_ms=OWN_MS))).single, tree.grouped:
        assert rows is not None
        for place, row in enumerate(rows.rows):
            assert row.parent < place
            if row.parent >= 0:
                above = rows.rows[row.parent].name
                assert row.name in (row.label, f"{above}.{row.label}")


def test_layers_that_repeat_are_one_row_with_their_sum() -> None:
    rows = tree_of(layer_records(forward_ms=OWN_MS)).grouped
    assert rows is not None
    counts = {row.name: row.layers for row in rows.rows}
    assert counts == {
        "(the model itself)": 1,
        "blocks": 1,
        "head": 1,
        "blocks.*": 2,
        "blocks.*.attn": 2,
    }
    assert values(rows, "own")["blocks.*.attn"] == 8.0
    assert values(rows, "total")["blocks.*"] == 10.0
    assert values(rows, "calls")["blocks.*"] == 2.0


def test_layers_of_another_class_are_no_repetition() -> None:
    found = LayersSummary(
        layers={
            "net": LayerSummary(kind="Sequential", forward_ms=0.0),
            "net.0": LayerSummary(kind="Linear", forward_ms=1.0),
            "net.1": LayerSummary(kind="ReLU", forward_ms=2.0),
            "net.2": LayerSummary(kind="Linear", forward_ms=4.0),
        }
    )
    tree = layer_tree(found)
    assert tree is not None and tree.grouped is not None
    assert {(row.name, row.kind, row.layers) for row in tree.grouped.rows} == {
        ("net", "Sequential", 1),
        ("net.*", "Linear", 2),
        ("net.1", "ReLU", 1),
    }


def test_without_repetition_there_is_one_tree() -> None:
    assert tree_of(layer_records(forward_ms={"": 1.0, "a": 2.0})).grouped is None


def test_memory_is_summed_but_a_peak_is_the_highest() -> None:
    held = {"parameters": [0, 1 << 20, 2 << 20], "peak": [3 << 20, 9 << 20, 5 << 20]}
    rows = tree_of(layer_records(forward_ms={"": 1.0, "a": 1.0, "b": 1.0}, held=held)).single
    assert values(rows, "parameters") == {"(the model itself)": 3.0, "a": 1.0, "b": 2.0}
    assert values(rows, "peak") == {"(the model itself)": 9.0, "a": 9.0, "b": 5.0}
    assert {each.unit for each in rows.columns if each.id in ("parameters", "peak")} == {"MiB"}


def test_what_was_not_measured_has_no_column() -> None:
    columns = {each.id for each in tree_of(layer_records(forward_ms=OWN_MS)).single.columns}
    assert columns == {"total", "own", "forward", "calls"}


def test_the_worst_rank_of_a_layer_is_named_with_what_it_takes_more() -> None:
    fast, slow = {"": 1.0, "a": 2.0}, {"": 1.0, "a": 5.0}
    records = [layer_records(pid=pid, forward_ms=slow if pid == 2 else fast) for pid in range(3)]
    run = with_layers(make_run(ranks=3, steps=40), *records)
    found = layers_part(build(run, 0.0, "0").layers)
    assert found is not None
    tree = found.figures[0]
    assert isinstance(tree, LayerTree)
    assert values(tree.single, "over-median")["a"] == 3.0
    rows = {row.name: row.worst_rank for row in tree.single.rows}
    assert rows["a"] != "" and rows["(the model itself)"] == ""


def test_of_two_ranks_the_slower_one_is_compared_with_the_other() -> None:
    records = [layer_records(pid=pid, forward_ms={"a": 2.0 + 3 * pid}) for pid in range(3)]
    for ranks, label in ((2, "Slower rank over the other"), (3, "Worst rank over median")):
        run = with_layers(make_run(ranks=ranks, steps=40), *records[:ranks])
        found = layers_part(build(run, 0.0, "0").layers)
        assert found is not None
        tree = found.figures[0]
        assert isinstance(tree, LayerTree)
        (column,) = [each for each in tree.single.columns if each.id == "over-median"]
        assert (column.label, column.whole) == (label, (3.0,))


def test_waiting_for_other_ranks_has_a_column_a_piece_of_the_bar_and_a_tile() -> None:
    record = layer_records(forward_ms={"": 1.0, "a": 2.0})
    record.times_ns["host_communication"] = np.full((4, 2), [0.0, 30e6])
    record.outside_ns["host_communication"] = np.full(4, 6e6)
    found = part_of(record)
    tree = found.figures[0]
    assert isinstance(tree, LayerTree)
    assert values(tree.single, "communication")["a"] == 30.0
    assert values(tree.single, "total")["(the model itself)"] == 3.0
    assert "communication" in tree.bars[0].columns
    (tile,) = [tile for tile in found.tiles if tile.label == "Communication, forward and backward"]
    assert (tile.value, tile.note) == ("36.0 ms", "30.0 ms of it in layers, beside their time")


def norm_chart(norms: dict[str, list[float]]) -> Lines:
    found = part_of(with_norms(layer_records(forward_ms=dict.fromkeys(norms, 1.0)), norms))
    (chart,) = [figure for figure in found.figures if isinstance(figure, Lines)]
    return chart


def test_gradient_norms_are_drawn_over_steps_on_a_log_axis() -> None:
    explosion = {"a": [3.0] * 30 + [3e4] * 10, "b": [4.0] * 30 + [4e4] * 10}
    chart = norm_chart(explosion)
    assert chart.is_log and [one.name for one in chart.series] == ["whole model", "b", "a"]
    assert chart.series[0].values == (5.0,) * 30 + (5e4,) * 10
    assert chart.at == tuple(map(float, range(1, 41)))
    (span,) = chart.spans
    assert (span.begin, span.until, span.label) == (31.0, None, "10,000 × the usual norm")


def test_norms_that_are_not_finite_are_marked_where_they_are() -> None:
    norms = [1.0, math.inf, math.inf, 1.0, math.inf, *[1.0] * 3]
    chart = norm_chart({"a": norms, "b": [1.0] * 8})
    assert [(mark.begin, mark.until) for mark in chart.marks] == [(2.0, 3.0), (5.0, 5.0)]
    assert chart.marks[0].label == "2 × not finite"
    assert chart.caption is not None
    assert chart.caption.endswith("Marked on top: 3 × not finite, first at step 2.")


def test_norms_that_do_not_fit_their_steps_are_not_drawn() -> None:
    curves = NormCurvesSummary((1, 2), 1, (1.0, 2.0), {"a": (1.0, 2.0)}, (0, 0))
    assert norm_lines(GradientsSummary(curves=curves)) is not None
    for damaged in (
        structs.replace(curves, not_finite=(0, 0, 1)),
        structs.replace(curves, whole=(1.0,)),
        structs.replace(curves, layers={"a": (1.0,)}),
    ):
        assert norm_lines(GradientsSummary(curves=damaged)) is None
    rise = GradientRiseSummary(1, 0.0, 1.0, "a", 1, 0.0, 1.0)
    chart = norm_lines(GradientsSummary(curves=curves, rise=rise))
    assert chart is not None and chart.spans == ()


def test_lines_of_layers_whose_shown_names_are_alike_have_names_of_their_own() -> None:
    long = "block." + "x" * 300
    chart = norm_chart(
        {f"{long}.a": [1.0] * 9, f"{long}.a.b.c": [2.0] * 9, "whole model": [3.0] * 9}
    )
    assert len({one.name for one in chart.series}) == len(chart.series) == 4


@pytest.mark.parametrize(
    ("norms", "unit", "shown"),
    [
        ((3.5, 0.25), "", (3.5, 0.25)),
        ((0.298, 0.235), "", (0.298, 0.235)),
        ((3.5e-5, 2e-6), "10⁻⁶", (35.0, 2.0)),
        ((0.004, 0.0), "10⁻³", (4.0, 0.0)),
    ],
)
def test_the_norm_of_each_layer_is_a_column(
    norms: tuple[float, ...], unit: str, shown: tuple[float, ...]
) -> None:
    by_name = {"a": [norms[0]] * 9, "b": [norms[1]] * 9}
    tree = tree_of(with_norms(layer_records(forward_ms={"a": 1.0, "b": 1.0}), by_name))
    (column,) = [each for each in tree.single.columns if each.id == "gradient-norm"]
    assert (column.unit, column.whole, column.own) == (unit, shown, None)


def test_kernels_and_busy_time_are_told_and_the_many_are_cut() -> None:
    kernels = [(f"gemm{n}", 12, 1_000_000 * (90 - n), 0 if n else -1) for n in range(40)]
    record = layer_records(forward_ms={"a": 10.0}, kernels=(kernel_step(90.0, kernels, (9.0,)),))
    found = part_of(record)
    assert {tile.label: tile.value for tile in found.tiles}["GPU busy per step"] == "90.0 ms"
    table = found.tables[0]
    assert len(table.rows) == MAX_KERNELS and table.note == "25 more, in the JSON file."
    assert table.rows[0].cells == ("gemm0", "12", "90.0 ms", "100%", "–")
    assert table.rows[1].cells[-1] == "a"


def test_why_nothing_was_seen_is_told() -> None:
    found = part_of(layer_records(steps=0, forward_ms={"a": 1.0}, notes=("it is compiled",)))
    assert (found.note, found.figures) == ("it is compiled", ())


def test_what_limits_a_group_is_told_where_all_agree() -> None:
    def layers(*bounds: str | None) -> LayersSummary:
        found = {
            f"blocks.{place}": LayerSummary(
                kind="Block", forward_ms=1.0, flops=2e9, bound=bound, peak_share=0.2
            )
            for place, bound in enumerate(bounds)
        }
        return LayersSummary(layers=found, peak_flops_per_s=1e13)

    same, mixed = layer_tree(layers("compute", "compute")), layer_tree(layers("compute", "launch"))
    assert same is not None and same.grouped is not None
    assert same.grouped.rows[0].bound == "compute"
    assert values(same.grouped, "mfu") == {"blocks.*": pytest.approx(20.0)}
    assert mixed is not None and mixed.grouped is not None and mixed.grouped.rows[0].bound == ""


def test_how_fast_layers_compute_is_told_where_all_below_were_counted() -> None:
    layers = {
        "": LayerSummary(forward_ms=1.0, flops=0.0, flops_per_s=0.0),
        "a": LayerSummary(forward_ms=0.0, flops=0.0),
        "a.0": LayerSummary(forward_ms=1.0, flops=2e12, flops_per_s=2e15),
        "a.1": LayerSummary(forward_ms=3.0, flops=2e12, flops_per_s=2e12 / 3e-3),
        "b": LayerSummary(forward_ms=1.0, flops=1e12, flops_per_s=1e15),
        "b.own": LayerSummary(forward_ms=1.0),
    }
    tree = layer_tree(LayersSummary(layers=layers, peak_flops_per_s=4e15))
    assert tree is not None
    speeds, shares = (values(tree.single, column) for column in ("flops-per-s", "mfu"))
    assert speeds == {
        "(the model itself)": None,
        "a": 1000.0,
        "a.0": 2000.0,
        "a.1": pytest.approx(666.67),
        "b": None,
        "b.own": None,
    }
    assert shares["a"] == 25.0 and shares["b"] is None
    own = values(tree.single, "flops-per-s", own=True)
    assert own["b"] == 1000.0 and own["a"] is None and own["(the model itself)"] == 0.0
    (column,) = [each for each in tree.single.columns if each.id == "flops-per-s"]
    assert (column.label, column.unit) == ("FLOP/s", "TFLOP/s")


def test_a_small_layer_of_a_large_model_keeps_its_digits() -> None:
    rows = tree_of(layer_records(forward_ms={"": 0.0, "huge": 2500.0, "small": 0.42})).single
    assert values(rows, "total")["small"] == 0.42


def test_hostile_names_are_one_short_line() -> None:
    own = {"a\n\x1b[31m" + "x" * 500: 1.0, "a." * 300 + "b": 1.0, "..": 1.0}
    for row in tree_of(layer_records(forward_ms=own)).single.rows:
        assert "\x1b" not in row.name and "\n" not in row.name and len(row.name) <= 160


def test_a_summary_of_too_many_layers_makes_a_page_that_opens() -> None:
    found = LayersSummary(
        layers={f"a{n}": LayerSummary(forward_ms=1.0) for n in range(MAX_LAYERS + 2)}
    )
    tree = layer_tree(found)
    assert tree is not None and len(tree.single.rows) == MAX_LAYERS
    assert tree.caption is not None and "2 more layers in the JSON file." in tree.caption


def test_layers_that_are_slow_on_one_rank_or_became_slow_have_a_table() -> None:
    run = make_run(3, 40)
    records = [
        burst_records(each.rank.pid, 24, slow={"blocks.5.mlp": 2.0} if number == 2 else None)
        for number, each in enumerate(run.ranks)
    ]
    records[0].times_ns["host_forward"][24:, 4] *= 2.0
    found = layers_part(build(with_layers(run, *records), 0.0, "0").layers)
    assert found is not None
    (table,) = [each for each in found.tables if each.id == "slow-layers-table"]
    slow, slowed = (row.cells for row in table.rows)
    assert slow[:2] == ("blocks.5.mlp", "2")
    assert slow[4].endswith("elsewhere") and slow[5] == "24 of 24 bursts"
    assert slowed[:2] == ("blocks.2.attn", "0")
    assert slowed[4].endswith("before") and slowed[5] == "since step 161"


def test_equal_ranks_have_no_table_of_slow_layers() -> None:
    found = part_of(burst_records(0), burst_records(1))
    assert [each.id for each in found.tables] == []
