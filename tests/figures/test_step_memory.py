"""Step memory: peaks against the capacity, a creep that can be seen, and never an empty card."""

import numpy as np
import pytest

from drawn_runs import figure, history_of, page_of, part, standing_of
from factories import make_run
from memory_runs import with_steps_memory
from traceml.figures.page import Lines
from traceml.figures.run_page import run_page
from traceml.summaries.build import build


def rows(page: object) -> dict[str, tuple[str, ...]]:
    (table,) = part(page, "step-memory").tables
    return {row.cells[0]: row.cells[1:] for row in table.rows}


def test_the_table_has_the_rows_that_people_know() -> None:
    run = with_steps_memory("allocated_bytes", lambda at, rank: 1000 + 500 * rank + at, 2, True)
    found = rows(page_of(run))
    assert list(found) == ["Median rank", "Worst rank", "Which rank", "Skew", "Rise"]
    assert found["Which rank"][0] == "1"
    assert found["Skew"][0] == "38%"
    assert found["Rise"][0].startswith("+")


def test_gpu_memory_far_below_the_capacity_is_drawn_by_itself() -> None:
    lines = figure(page_of(make_run(gpu=True)), "gpu-memory")
    assert [series.name for series in lines.series] == ["allocated", "reserved"]
    assert lines.limits == ()
    assert "8.6% of 140.0 GiB at most." in lines.caption


def test_gpu_memory_near_the_capacity_is_drawn_below_it() -> None:
    run = with_steps_memory("reserved_bytes", lambda at, rank: 0 * at + 130 * 1024, gpu=True)
    (limit,) = figure(page_of(run), "gpu-memory").limits
    assert (limit.value, limit.label) == (140.0, "capacity 140.0 GiB")


def test_the_host_s_memory_stands_in_where_there_is_no_gpu() -> None:
    run = with_steps_memory("rss_bytes", lambda at, rank: 500 + at)
    found = part(page_of(run), "step-memory")
    assert [drawn.id for drawn in found.figures] == ["host-memory"]
    assert found.note == "No GPU memory was measured: this is the host's."
    assert {tile.label for tile in found.tiles} >= {"Peak", "Of capacity", "Rise"}
    assert list(rows(page_of(run))) == ["Peak", "Rise"], "one rank has no median and no worst"


def test_what_is_read_now_and_then_is_drawn_where_it_was_read() -> None:
    run = with_steps_memory(
        "rss_bytes", lambda at, rank: np.where(at % 50 == 0, 500 + at, np.nan), ranks=2
    )
    lines = figure(page_of(run), "host-memory")
    assert lines.at == (1.0, 51.0, 101.0, 151.0, 201.0, 251.0)
    assert all(None not in series.values for series in lines.series)


def test_a_creep_is_marked_from_where_it_began() -> None:
    run = with_steps_memory("allocated_bytes", lambda at, rank: 4096 + 20 * at, gpu=True)
    lines = figure(page_of(run), "gpu-memory")
    assert [span.label for span in lines.spans] == ["MEMORY CREEP"]
    low, high = lines.y.low, lines.y.high
    values = [value for value in lines.series[0].values if value is not None]
    assert high is None or (max(values) - min(values)) > 0.3 * (high - (low or 0.0))


def test_a_creep_of_the_host_is_shown_beside_the_gpu() -> None:
    run = with_steps_memory("rss_bytes", lambda at, rank: 1000 + 30 * at, gpu=True)
    shown = [drawn.id for drawn in part(page_of(run), "step-memory").figures]
    assert shown == ["gpu-memory", "host-memory"]


def test_many_ranks_are_three_lines() -> None:
    run = with_steps_memory("allocated_bytes", lambda at, rank: 1000 + rank + 0 * at, 17, True)
    lines: Lines = figure(page_of(run), "gpu-memory")
    assert [series.name for series in lines.series] == [
        "Highest rank",
        "Median rank",
        "Lowest rank",
    ]


@pytest.mark.parametrize("with_summary", [True, False])
def test_without_any_memory_there_is_no_card(with_summary: bool) -> None:
    run = make_run(sampled_s=0)
    summary = build(run, 0.0, "0") if with_summary else None
    page = run_page(summary, standing_of(), history_of(run))
    assert "step-memory" not in [found.id for found in page.parts]
