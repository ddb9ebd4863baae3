"""The table of nodes in the summary's text, and ranks that are too many for rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from factories import make_late, make_run, make_waiting, on_nodes
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.own_time import own_time_spread
from traceml.summaries.record import NodeSummary
from traceml.text.nodes import clock_words, rank_range
from traceml.text.summary import summary_text


def text_of(run: RunRecords) -> str:
    text = summary_text(build(run, 0.0, "0"))
    assert max(map(len, text.splitlines())) <= 80
    return text


def late_job(ranks: int, nodes: int, *late: int) -> RunRecords:
    run = make_late(make_run(ranks=ranks, steps=40, communication_ms=4.0), *late, by_ms=25.0)
    return on_nodes(make_waiting(run), nodes)


def test_nodes_have_rows_the_slowest_first() -> None:
    lines = text_of(late_job(4, 2, 2, 3)).splitlines()
    head = lines.index("  Nodes (in ms)")
    assert lines[head + 1].split() == ["node", "ranks", "own", "comm.", "CPU", "RAM", "clock"]
    assert lines[head + 2].split()[:2] == ["node-b", "2,"]
    assert lines[head + 2].endswith("  ±100 µs")
    assert lines[head + 3].startswith("  node-a")
    assert lines[head + 3].endswith("  head")


def test_where_no_step_was_taken_no_unit_is_named() -> None:
    lines = text_of(on_nodes(make_run(ranks=2, steps=0), 2)).splitlines()
    head = lines.index("  Nodes")
    assert lines[head + 1].split() == ["node", "ranks", "CPU", "RAM", "clock"]


def test_one_machine_has_no_table_of_nodes() -> None:
    assert "Nodes" not in text_of(make_run(ranks=4))


def test_of_many_nodes_and_ranks_the_slowest_and_the_distribution_are_told() -> None:
    lines = text_of(late_job(96, 12, *range(40, 48))).splitlines()
    table = lines[lines.index("  Nodes (the slowest 8 of 12, in ms)") :]
    assert table[2].startswith("  node-f             40–47    62.0")
    assert not table[10].strip()
    ranks = lines[lines.index("  Ranks (the slowest 8 of 96)") :]
    assert {int(line.split()[0]) for line in ranks[2:10]} == set(range(40, 48))
    assert ranks[10].startswith("  own time in ms: fastest (rank ")
    assert ", median 37.0, p95 " in ranks[10]


def test_what_a_node_lacks_stands_below_the_table() -> None:
    run = late_job(4, 2)
    cut = replace(run.nodes[1], state=replace(run.nodes[1].state, is_finished=False))
    assert "  node-b lacks its last records" in text_of(replace(run, nodes=(run.nodes[0], cut)))


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((), "none"),
        ((3,), "3"),
        ((0, 1), "0, 1"),
        (tuple(range(10232, 10240)), "10232–10239"),
        ((0, 2, 4, 6), "0, 2, 4, 6"),
        ((0, 2, 4, 6, 8), "5 ranks"),
    ],
)
def test_ranks_in_few_characters(ranks: tuple[int, ...], words: str) -> None:
    assert rank_range(ranks) == words


@pytest.mark.parametrize(
    ("offset_s", "uncertainty_s", "words"),
    [
        pytest.param(300.0, 0.0001, "+5 min ±100 µs", id="minutes ahead"),
        pytest.param(-0.25, 0.002, "−250.0 ms ±2.0 ms", id="behind"),
        pytest.param(0.001, 0.002, "±2.0 ms", id="not told apart"),
        pytest.param(None, None, "not measured", id="never asked"),
    ],
)
def test_clocks_in_words(offset_s: float | None, uncertainty_s: float | None, words: str) -> None:
    node = NodeSummary("node-b", way="http")
    node = structs.replace(node, clock_offset_s=offset_s, clock_uncertainty_s=uncertainty_s)
    assert clock_words(node) == words


def test_the_distribution_names_the_ranks_at_both_ends() -> None:
    section = build(late_job(20, 2, 7), 0.0, "0").step_time
    assert section is not None
    spread = own_time_spread(section.groups.rows)
    assert spread is not None
    assert (spread.ranks, spread.worst_rank) == (20, "7")
    ordered = [spread.best_ms, *spread.quantiles_ms.values(), spread.worst_ms]
    assert ordered == sorted(ordered)
    assert spread.quantiles_ms["median"] < spread.worst_ms - 20
