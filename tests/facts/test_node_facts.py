"""The facts of machines: their ranks' times, their sensors, and arrivals on clocks that were
aligned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import delay_node, make_late, make_run, make_waiting, on_nodes
from traceml.facts.gather import gather
from traceml.facts.nodes import MAX_SAMPLES, thinned
from traceml.model.node import NodeWay
from traceml.store.records import RunRecords


def job(ranks: int = 8, nodes: int = 4, **changes: object) -> RunRecords:
    """Ranks that wait for each other in every step."""
    return on_nodes(make_waiting(make_run(ranks=ranks, communication_ms=8.0)), nodes, **changes)


def test_a_node_has_the_means_of_its_ranks_and_its_own_sensors() -> None:
    late = make_waiting(make_late(make_run(ranks=4, communication_ms=4.0), 3, by_ms=20))
    first, second = gather(on_nodes(late, 2, cpu_share=0.9)).nodes
    assert (first.ranks, second.ranks) == ((0, 1), (2, 3))
    assert (first.node_rank, second.node_rank) == (0, 1)
    assert second.slowest_rank == 3
    assert first.own_s == pytest.approx(0.037, rel=0.02)
    assert second.own_s == pytest.approx(0.047, rel=0.02)
    assert second.slowest_own_s == pytest.approx(0.057, rel=0.02)
    assert (first.host.cpu_share.mean, second.host.cpu_share.mean) == (0.5, pytest.approx(0.9))
    assert first.round_trip_s is None
    assert second.round_trip_s == pytest.approx(0.0002)


def test_a_run_on_one_machine_has_no_nodes() -> None:
    facts = gather(make_run(ranks=2))
    assert facts.nodes == ()
    assert facts.node_names == {}


def test_a_node_that_is_behind_arrives_late_by_that_much() -> None:
    nodes = gather(delay_node(job(), 2, by_ms=6.0)).nodes
    late = nodes[2].arrival
    assert late is not None
    assert late.late_s == pytest.approx(0.006, abs=0.0005)
    assert late.is_certain
    assert late.late_share == 1.0
    assert not any(
        node.arrival.is_certain for node in nodes if node.arrival and node is not nodes[2]
    )


def test_lateness_within_the_clocks_uncertainty_is_not_certain() -> None:
    nodes = gather(delay_node(job(uncertainty_s=0.010), 2, by_ms=6.0)).nodes
    assert nodes[2].arrival is not None
    assert nodes[2].arrival.uncertainty_s == pytest.approx(0.020)
    assert not nodes[2].arrival.is_certain


@pytest.mark.parametrize("by_ms", [20.0, 300_000.0], ids=["more than a step waits", "minutes"])
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_clock_that_was_set_during_the_run_makes_nobody_late(nodes: int, by_ms: float) -> None:
    """The others wait 8 ms in a step: nobody comes later than that."""
    late = gather(delay_node(job(nodes=nodes), 1, by_ms)).nodes
    assert late[1].arrival is None
    early = gather(delay_node(job(nodes=nodes), 1, -by_ms)).nodes
    assert early[1].arrival is None


@pytest.mark.parametrize(
    ("age_s", "uncertainty_s"), [(0.0, 0.0002), (-100.0, 0.0052), (100.0, 0.0052)]
)
def test_a_clock_is_less_certain_long_before_and_after_it_was_measured(
    age_s: float, uncertainty_s: float
) -> None:
    run = job()
    ahead_s = 50.0
    head, node, *others = run.nodes
    measured_unix_s = run.ranks[0].rank.unix_ns / 1e9 - age_s
    clock = {"clock_offset_s": ahead_s, "clock_unix_s": measured_unix_s + ahead_s}
    node = replace(node, state=replace(node.state, **clock))
    late = gather(replace(run, nodes=(head, node, *others))).nodes[1].arrival
    assert late is not None
    assert late.uncertainty_s == pytest.approx(uncertainty_s, abs=0.0005)


def test_a_clock_that_was_not_measured_is_compared_with_no_other() -> None:
    nodes = gather(job(uncertainty_s=None)).nodes
    assert [node.arrival for node in nodes] == [None] * 4
    assert nodes[1].missing == ("its clock's offset",)
    assert nodes[0].missing == ()


def test_arrivals_are_not_known_without_communication_or_behind_a_gpu() -> None:
    alone = gather(on_nodes(make_run(ranks=4), 2)).nodes
    behind = gather(on_nodes(make_run(ranks=4, communication_ms=4.0, gpu=True), 2)).nodes
    assert [node.arrival for node in (*alone, *behind)] == [None] * 4


def test_what_a_node_lacks_is_told_once_the_run_is_over() -> None:
    run = job()
    cut = replace(run.nodes[1], state=replace(run.nodes[1].state, is_finished=False), samples=())
    over = replace(run, nodes=(run.nodes[0], cut))
    assert gather(over).nodes[1].missing == ("its last records", "its sensors")
    assert not gather(over).nodes[1].is_complete
    assert gather(replace(over, ending=None)).nodes[1].missing == ()
    copied = replace(run.nodes[1].state, way=NodeWay.COPIED, files_left=("a.log", "b.log"))
    left = replace(run, nodes=(run.nodes[0], replace(run.nodes[1], state=copied)))
    assert gather(left).nodes[1].missing == ("2 files",)


def test_samples_of_very_many_nodes_are_thinned_evenly() -> None:
    samples = make_run(sampled_s=500).samples
    assert thinned(samples, 2) == samples
    kept = thinned(samples, MAX_SAMPLES // 100)
    assert len(kept) == 100
    assert (kept[0], kept[-1]) == (samples[0], samples[-1])
