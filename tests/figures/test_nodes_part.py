"""The part of the page on nodes: a table, and a cell for every rank."""

from __future__ import annotations

from dataclasses import replace

from drawn_runs import page_of
from factories import make_late, make_run, make_waiting, on_nodes
from traceml.figures.nodes import MAX_NODES, nodes_part
from traceml.figures.page import Part, RankGrid, RunPage, Table
from traceml.store.records import RunRecords
from traceml.summaries.build import build


def job(ranks: int, nodes: int, *late: int) -> RunRecords:
    """Ranks that wait for each other, some of them late."""
    run = make_late(make_run(ranks=ranks, steps=40, communication_ms=4.0), *late, by_ms=25.0)
    return on_nodes(make_waiting(run), nodes)


def part_of(run: RunRecords) -> Part:
    found = nodes_part(build(run, 0.0, "0"))
    assert found is not None
    return found


def table_of(part: Part, name: str = "node-table") -> Table:
    return next(table for table in part.tables if table.id == name)


def grid_of(part: Part) -> RankGrid:
    (grid,) = (figure for figure in part.figures if isinstance(figure, RankGrid))
    return grid


def test_a_run_on_one_machine_has_no_such_part() -> None:
    page: RunPage = page_of(make_run(ranks=4))
    assert all(part.id != "nodes" for part in page.parts)
    assert any(part.id == "nodes" for part in page_of(job(4, 2)).parts)


def test_the_slow_node_leads_the_table_and_is_marked() -> None:
    part = part_of(job(8, 2, 4, 5, 6, 7))
    table = table_of(part)
    assert table.columns[:4] == ("Node", "Ranks", "Step", "Own work")
    assert table.columns[-3:] == ("Arrives", "Clock", "Records")
    first, second = table.rows
    assert (first.cells[:2], first.tone) == (("node-b", "4–7"), "warn")
    assert first.cells[-3:] == ("25.1 ms later", "±100 µs", "sent")
    assert (second.cells[0], second.cells[-1], second.tone) == ("node-a", "head", None)
    assert (part.tiles[0].label, part.tiles[0].value) == ("Slowest node", "node-b")


def test_even_nodes_are_not_called_slow() -> None:
    tile = part_of(job(8, 2)).tiles[0]
    assert (tile.label, tile.tone) == ("Own work by node", None)


def test_what_is_missing_has_a_column_and_a_tile() -> None:
    run = job(4, 2)
    cut = replace(run.nodes[1], state=replace(run.nodes[1].state, is_finished=False), samples=())
    part = part_of(replace(run, nodes=(run.nodes[0], cut)))
    table = table_of(part)
    assert table.columns[-1] == "Missing"
    assert {row.cells[0]: row.cells[-1] for row in table.rows} == {
        "node-a": "nothing",
        "node-b": "its last records, its sensors",
    }
    assert any(tile.label == "Incomplete" and tile.tone == "warn" for tile in part.tiles)


def test_every_rank_has_a_cell_under_its_node() -> None:
    grid = grid_of(part_of(job(8, 4, 6)))
    assert grid.nodes == ("node-a", "node-b", "node-c", "node-d")
    assert grid.ranks == ((0, 1), (2, 3), (4, 5), (6, 7))
    flat = {
        rank: value
        for ranks, values in zip(grid.ranks, grid.values, strict=True)
        for rank, value in zip(ranks, values, strict=True)
    }
    assert max(flat, key=lambda rank: flat[rank] or 0.0) == 6
    assert grid.value.unit == "ms"


def test_a_rank_without_times_has_an_empty_cell() -> None:
    run = job(4, 2)
    silent = replace(run.ranks[3], steps=run.ranks[3].steps[:0])
    grid = grid_of(part_of(replace(run, ranks=(*run.ranks[:3], silent))))
    assert grid.ranks[1] == (2, 3)
    assert grid.values[1][1] is None


def test_many_nodes_have_a_distribution_and_only_the_slowest_rows() -> None:
    part = part_of(job(60, 30, 40, 41))
    assert len(table_of(part).rows) == MAX_NODES
    assert table_of(part).rows[0].cells[0] == "node-0020"
    assert "The slowest 16 of 30 nodes." in (table_of(part).note or "")
    spread = table_of(part, "node-distribution")
    assert [row.cells[0] for row in spread.rows] == [
        "Lowest",
        "Median",
        "95th percentile",
        "Highest",
    ]
    assert len(grid_of(part).nodes) == 30


def test_many_ranks_have_a_distribution_beside_the_slowest_rows() -> None:
    (steps,) = (part for part in page_of(job(20, 2, 7)).parts if part.id == "step-time")
    spread = next(table for table in steps.tables if table.id == "rank-distribution")
    assert spread.columns[1].startswith("Fastest (rank ")
    assert spread.columns[-1] == "Slowest (rank 7)"
    few = next(part for part in page_of(job(4, 2)).parts if part.id == "step-time")
    assert all(table.id != "rank-distribution" for table in few.tables)
