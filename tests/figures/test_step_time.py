"""Step time: the rows people know, phases that sum to the step, and a straggler that stands out."""

from dataclasses import replace

import numpy as np
import pytest

from drawn_runs import figure, history_of, page_of, part, standing_of, step_history
from factories import idle_gpu, make_run, make_waiting, place_ranks, work_between
from traceml.facts.history import History
from traceml.figures.charts_over_ranks import MAX_LINES
from traceml.figures.charts_over_steps import MAX_CELLS, rank_heat
from traceml.figures.page import Branch, RunPage, Table
from traceml.figures.run_page import run_page, step_figures
from traceml.model.quantities import percent
from traceml.store.records import RunRecords
from traceml.summaries.build import build

STRAGGLING = make_waiting(
    make_run(ranks=4, gpu=True, communication_ms=2, h2d_ms=1, slow_rank=2, noise=0)
)


def table(page: RunPage, name: str) -> Table:
    (found,) = [table for each in page.parts for table in each.tables if table.id == name]
    return found


def cells(found: Table, row: str) -> dict[str, str]:
    (chosen,) = [each.cells for each in found.rows if each.cells[0] == row]
    return dict(zip(found.columns, chosen, strict=True))


def tiles(page: RunPage) -> dict[str, tuple[str, str | None]]:
    return {tile.label: (tile.value, tile.note) for tile in part(page, "step-time").tiles}


def test_the_tree_says_what_the_gpu_was_idle_for() -> None:
    run = make_run(noise=0, rest_ms=10, gpu=True)
    assert figure(page_of(run), "phase-tree").caption == "Mean of 200 steps, GPU clock."
    caption = figure(page_of(idle_gpu(run)), "phase-tree").caption
    assert caption == (
        "Mean of 200 steps, GPU clock. GPU idle 10.0 ms during the script's own code, 1.0 ms for "
        "input."
    )


def test_the_table_has_the_words_of_the_catalogue() -> None:
    found = table(page_of(make_run(ranks=2)), "step-time-table")
    assert found.columns == (
        "",
        "Input wait",
        "Forward",
        "Backward",
        "Optimizer",
        "Rest",
        "Step",
    )
    assert [row.cells[0] for row in found.rows] == [
        "Mean",
        "Share of step",
        "Median rank",
        "Worst rank",
        "Which rank",
        "Skew",
    ]


def test_copies_and_communication_have_columns_where_they_were_measured() -> None:
    found = table(page_of(STRAGGLING), "step-time-table")
    assert "Copies to device" in found.columns and "Communication" in found.columns
    assert cells(found, "Which rank")["Forward"] == "2"
    assert cells(found, "Skew")["Forward"] == "200%"
    assert cells(found, "Which rank")["Backward"] == "–", "no rank is worse than another"


def test_a_phase_that_was_not_measured_is_not_zero() -> None:
    found = table(page_of(make_run(optimizer_ms=None)), "step-time-table")
    assert cells(found, "Mean")["Optimizer"] == "n/a"


def test_one_rank_has_no_median_no_worst_and_no_skew() -> None:
    found = table(page_of(make_run()), "step-time-table")
    assert [row.cells[0] for row in found.rows] == ["Mean", "Share of step"]
    shares = [cells(found, "Share of step")[name] for name in found.columns[1:]]
    assert sum(float(share.rstrip("%")) for share in shares[:-1]) == pytest.approx(100, abs=2)


def test_a_skew_of_many_times_is_said_in_times() -> None:
    run = make_run(ranks=2, noise=0)
    run.ranks[1].steps["input_ns"] *= 150
    found = table(page_of(run), "step-time-table")
    assert cells(found, "Skew")["Input wait"] == "150×"


def test_ranks_that_wait_for_each_other_are_told_apart_by_their_own_work() -> None:
    shown = tiles(page_of(STRAGGLING))
    assert shown["Worst rank"] == ("2", "the others wait for it")
    assert shown["Gap"][0] == "20.0 ms"
    assert shown["Worst step"][1] == "rank 2, own work 58.0 ms"


def test_a_rank_and_its_step_belong_together() -> None:
    """The longest step may be that of a rank that waits for the worst one."""
    run = make_waiting(make_run(ranks=4, communication_ms=2, slow_rank=2, noise=0))
    for name in ("wall_ns", "body_ns", "communication_ns"):
        run.ranks[0].steps[name] += 3_000_000
    shown = tiles(page_of(run))
    assert shown["Worst step"] == ("59.0 ms", "rank 2, own work 57.0 ms")
    assert cells(table(page_of(run), "step-time-table"), "Worst rank")["Step"] == "62.0 ms"


@pytest.mark.parametrize("lens", ["mean", "median", "worst", "rank-0", "rank-3"])
def test_every_share_is_of_the_step_that_the_lens_shows(lens: str) -> None:
    summary = build(STRAGGLING, 0.0, "0")
    page = run_page(summary, standing_of(), history_of(STRAGGLING), lens)
    assert page.lens == lens
    found = part(page, "step-time")
    (tree,) = [drawn for drawn in found.figures if drawn.id == "phase-tree"]
    (stack,) = [drawn for drawn in found.figures if drawn.id == "step-time"]
    parts = {branch.name: branch for branch in _leaves(tree.root)}
    largest = max(parts.values(), key=lambda branch: branch.share)
    share, name = tiles(page)["Largest phase"]
    assert share == percent(largest.share) and (name or "").startswith(largest.name)
    drawn = {series.name.lower(): np.mean(series.values) for series in stack.series}
    total = sum(drawn.values())
    for name, branch in parts.items():
        assert drawn[name] / total == pytest.approx(branch.share, abs=0.01)


def _leaves(branch: Branch) -> list[Branch]:
    return [leaf for part in branch.parts for leaf in _leaves(part)] if branch.parts else [branch]


def test_the_page_of_a_straggler_opens_on_the_slow_rank() -> None:
    page = page_of(STRAGGLING)
    assert page.lens == "rank-2"
    assert [lens.label for lens in page.lenses] == [
        "Mean over 4 ranks",
        "Median rank (1)",
        "Worst rank (2)",
        *(f"Rank {number}" for number in range(4)),
    ]
    assert figure(page, "step-time").title == "Where the time of a step goes: rank 2"
    assert (tiles(page)["Largest phase"][1] or "").startswith("forward")
    healthy = page_of(make_run(ranks=4))
    assert healthy.lens == "mean" and page_of(make_run()).lenses == ()


def test_a_rank_that_is_not_there_is_no_lens() -> None:
    summary, history = build(STRAGGLING, 0.0, "0"), history_of(STRAGGLING)
    assert run_page(summary, standing_of(), history, "rank-9").lens == "rank-2"


def test_the_rank_that_the_others_wait_for_is_the_slowest() -> None:
    assert table(page_of(STRAGGLING), "rank-table").rows[0].cells[0] == "rank 2"


def test_one_rank_has_tiles_of_its_steps() -> None:
    shown = tiles(page_of(make_run(input_ms=80)))
    assert shown["Largest phase"] == ("69%", "input wait")
    assert shown["Throughput"] == ("8.62 steps/s", "276 samples/s")
    assert {"Mean step", "Median step", "Slow steps", "Rest"} <= shown.keys()


def test_stacked_phases_sum_to_the_step() -> None:
    run = make_run(ranks=3, h2d_ms=2, communication_ms=3)
    drawn = figure(page_of(run), "step-time")
    history = step_history(run)
    assert drawn.stacked and drawn.zooms and drawn.y.unit == "ms"
    total = np.sum([series.values for series in drawn.series], axis=0)
    assert np.allclose(total, history.step_s.mean(axis=0) * 1e3, rtol=1e-3)
    assert [series.colour for series in drawn.series] == [
        "input",
        "h2d",
        "forward",
        "backward",
        "optimizer",
        "communication",
        "residual",
    ]


def test_work_between_steps_is_a_layer_of_its_own() -> None:
    drawn = figure(page_of(work_between(make_run(), "evaluation", 100, every=10)), "step-time")
    assert drawn.series[-1].name == "Between steps"


def test_a_slow_first_step_does_not_flatten_the_others() -> None:
    drawn = figure(page_of(make_run(first_step_ms=5000)), "step-time")
    assert drawn.y.high is not None and drawn.y.high < 100
    assert "the highest is 5.00 s, at step 1" in drawn.caption


def test_findings_are_marked_from_where_they_hold() -> None:
    drawn = figure(page_of(make_run(slowdown_at=100, slowdown=2.0)), "step-time")
    (span,) = [span for span in drawn.spans if span.label == "SLOWDOWN"]
    assert (span.begin, span.until, span.tone) == (101.0, None, "warn")


def test_a_healthy_run_has_nothing_marked() -> None:
    assert figure(page_of(make_run(ranks=2)), "step-time").spans == ()


def test_the_tree_divides_the_step() -> None:
    root = figure(page_of(STRAGGLING), "phase-tree").root
    assert [part.name for part in root.parts] == [
        "input wait",
        "copies to device",
        "compute",
        "communication",
        "rest",
    ]
    assert sum(part.share for part in root.parts) == pytest.approx(1, abs=1e-3)
    compute = root.parts[2]
    assert sum(part.share for part in compute.parts) == pytest.approx(compute.share, abs=1e-3)


def test_the_tree_of_a_run_with_work_between_its_steps_begins_at_the_wall_clock() -> None:
    root = figure(page_of(work_between(make_run(), "checkpoint", 100, every=10)), "phase-tree").root
    assert [root.name, *(part.name for part in root.parts)] == [
        "wall time per step",
        "step time",
        "between steps, per step",
    ]


def test_the_median_rank_stands_beside_the_worst() -> None:
    bars = figure(page_of(STRAGGLING), "median-worst")
    assert bars.categories[1] == "Worst: rank 2"
    forward = next(series for series in bars.series if series.colour == "forward")
    assert forward.values[1] == pytest.approx(30, rel=0.01)
    assert forward.values[0] == pytest.approx(10, rel=0.01)


def test_a_straggler_is_a_stripe_though_all_ranks_take_equally_long() -> None:
    heat = figure(page_of(STRAGGLING), "rank-heat")
    rows = np.array(heat.values)
    assert heat.rows == ("rank 0", "rank 1", "rank 2", "rank 3")
    assert rows[2].min() > np.delete(rows, 2, axis=0).max()
    assert heat.value.low <= rows[0].mean() < rows[2].mean() <= heat.value.high * 1.01


def test_a_healthy_map_has_no_pattern() -> None:
    heat = figure(page_of(make_run(ranks=4, first_step_ms=4000)), "rank-heat")
    typical = np.median(heat.values)
    assert heat.value.low < 0.92 * typical
    assert 1.08 * typical < heat.value.high < 1.3 * typical


def test_one_rank_has_no_map_and_no_bars() -> None:
    assert {"rank-heat", "median-worst"}.isdisjoint(
        drawn.id for drawn in part(page_of(make_run()), "step-time").figures
    )


@pytest.mark.parametrize("ranks", [2, MAX_LINES, MAX_LINES + 1])
def test_many_ranks_are_shown_by_their_median_and_extremes(ranks: int) -> None:
    series = figure(page_of(make_run(ranks=ranks, steps=20)), "step-spread").series
    if ranks <= MAX_LINES:
        assert [line.name for line in series] == [f"rank {rank}" for rank in range(ranks)]
    else:
        assert [line.name for line in series] == ["Highest rank", "Median rank", "Lowest rank"]


def test_one_rank_in_long_buckets_shows_its_longest_steps() -> None:
    run = make_run(steps=256, between_ms=0)
    for name in ("wall_ns", "body_ns"):
        run.ranks[0].steps[name][100] += 1_000_000_000
    longest, mean = figure(page_of(run, bucket_steps=16), "step-spread").series
    assert (longest.name, mean.name) == ("Longest step", "Mean step")
    assert max(longest.values) > 900 > max(mean.values)


def test_a_map_of_many_ranks_stays_small() -> None:
    history = step_history(make_run(ranks=2, steps=100))
    wide = replace(
        history,
        ranks=tuple(range(512)),
        step_s=np.full((512, 1000), 0.05),
        phase_s={},
        first_steps=np.arange(1, 1001),
    )
    heat = rank_heat(wide)
    assert heat is not None
    assert len(heat.rows) * len(heat.at) <= MAX_CELLS
    assert heat.at[0] == 1.0 and len(heat.rows) == 512


def test_steps_that_nobody_timed_are_left_out() -> None:
    run = make_run(steps=40)
    history = history_of(run)
    assert history.steps is not None
    history.steps.step_s[:, ::2] = np.nan
    for values in history.steps.phase_s.values():
        values[:, ::2] = np.nan
    page = run_page(build(run, 0.0, "0"), standing_of(), history)
    assert figure(page, "step-time").at == tuple(float(step) for step in range(2, 41, 2))


def test_a_run_without_a_summary_has_its_figures() -> None:
    page = run_page(None, standing_of("live", None), history_of(make_run(ranks=2)))
    found = [drawn.id for drawn in part(page, "step-time").figures]
    assert found == ["step-time", "step-spread", "rank-heat"]


@pytest.mark.parametrize("run", [make_run(), STRAGGLING], ids=["one rank", "four ranks"])
def test_finer_figures_are_called_as_on_the_page(run: RunRecords) -> None:
    history = step_history(run)
    assert history is not None
    finer = step_figures(History(steps=history), build(run, 0.0, "0"))
    on_page = {drawn.id for each in page_of(run).parts for drawn in each.figures}
    assert {drawn.id for drawn in finer} <= on_page
    assert all(getattr(drawn, "zooms", False) for drawn in finer)


def test_ranks_are_named_with_their_places_in_the_mesh() -> None:
    page = page_of(place_ranks(STRAGGLING, dp=2, tp=2))
    assert table(page, "rank-table").rows[0].cells[0] == "rank 2 (dp 1, tp 0)"
    assert "Rank 2 (dp 1, tp 0)" in {lens.label for lens in page.lenses}
    assert not any(each.id == "mesh-table" for part in page.parts for each in part.tables)


def test_many_ranks_have_a_table_by_the_dimensions_of_the_mesh() -> None:
    run = make_run(ranks=24, steps=20, communication_ms=2, slow_rank=5, noise=0)
    found = table(page_of(place_ranks(make_waiting(run), dp=4, tp=6)), "mesh-table")
    assert [row.cells[:2] for row in found.rows][:5] == [
        ("dp 0", "6"),
        ("dp 1", "6"),
        ("dp 2", "6"),
        ("dp 3", "6"),
        ("tp 0", "4"),
    ]
    assert cells(found, "tp 5")["Forward"] == "15.0 ms"
