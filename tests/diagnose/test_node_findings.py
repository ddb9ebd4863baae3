"""Findings of a run over several machines name the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_late, make_run, make_waiting, on_nodes
from traceml.diagnose.engine import diagnose
from traceml.diagnose.what_if import predict
from traceml.facts.gather import gather
from traceml.model.finding import Finding, Kind, Section
from traceml.store.records import RunRecords

MIB = 1 << 20


def late_run(*late: int, nodes: int = 2, **host: object) -> RunRecords:
    """Eight ranks, some of which wait longer for data."""
    run = make_late(make_run(ranks=8, communication_ms=4.0), *late, phase="input", by_ms=25.0)
    return on_nodes(make_waiting(run), nodes, **host)


def straggler(run: RunRecords) -> Finding:
    found = diagnose(gather(run)).sections[Section.STEP_TIME]
    return next(each for each in found if each.kind is Kind.INPUT_STRAGGLER)


def in_system(run: RunRecords) -> Finding:
    return diagnose(gather(run)).sections[Section.SYSTEM][0]


def test_late_ranks_of_one_node_are_told_as_the_node() -> None:
    facts = gather(late_run(4, 5, 6, 7))
    found = diagnose(facts).sections[Section.STEP_TIME][0]
    assert (found.kind, found.nodes, found.ranks) == (
        Kind.INPUT_STRAGGLER,
        ("node-b",),
        (4, 5, 6, 7),
    )
    assert found.claim.startswith("All 4 ranks of node-b take up to 25.0 ms longer")
    assert found.evidence["node"] == "node-b"
    assert predict(facts, [found])[0].words == "if all 4 ranks of node-b kept up with the others"


def test_most_ranks_of_a_node_are_enough() -> None:
    assert straggler(late_run(4, 5, 6)).claim.startswith("3 of 4 ranks of node-b take up to")


@pytest.mark.parametrize(
    ("late", "nodes"),
    [
        pytest.param((4,), 2, id="one rank of four"),
        pytest.param((4, 5), 2, id="half of its ranks"),
        pytest.param((3, 4), 2, id="a rank of each node"),
    ],
)
def test_single_ranks_of_a_node_are_named_themselves(late: tuple[int, ...], nodes: int) -> None:
    found = straggler(late_run(*late, nodes=nodes))
    assert found.nodes == ()
    assert found.claim.startswith("Rank")


def test_a_late_rank_elsewhere_is_told_beside_the_node() -> None:
    found = straggler(late_run(1, 4, 5, nodes=4))
    assert found.nodes == ("node-c",)
    assert found.claim.startswith("All 2 ranks of node-c, and rank 1 take up to")
    assert "Nearly all late ranks are on node-c" in found.action


def test_the_only_rank_of_a_node_is_named_with_it() -> None:
    run = make_waiting(make_late(make_run(ranks=2, communication_ms=4.0), 1, phase="input"))
    found = straggler(on_nodes(run, 2))
    assert (found.nodes, found.ranks) == (("node-b",), (1,))
    assert found.claim.startswith("Rank 1 of node-b takes")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ({"cpu_steal_share": 0.3}, "its hypervisor takes 30% of its CPU time (elsewhere 0.0%)"),
        ({"disk_busy_share": 0.9}, "its busiest disk is at work 90% of the time"),
        ({"cpu_share": 0.95}, "its CPU is 95% busy (elsewhere 50%)"),
    ],
)
def test_the_sensors_in_which_a_late_node_differs_are_told(
    host: dict[str, float], words: str
) -> None:
    quiet = late_run(4, 5, 6, 7)
    calm = {"cpu_steal_share": 0.0, "disk_busy_share": 0.1}
    nodes = tuple(
        replace(
            node,
            samples=tuple(
                replace(sample, host=replace(sample.host, **{**calm, **changed}))
                for sample in node.samples
            ),
        )
        for node, changed in zip(quiet.nodes, ({}, host), strict=True)
    )
    assert words in straggler(replace(quiet, nodes=nodes)).action


def test_a_late_node_whose_sensors_are_like_the_others_is_said_to_be() -> None:
    assert "read like those of the others" in straggler(late_run(4, 5, 6, 7)).action


def test_a_system_finding_names_the_node_that_has_it() -> None:
    swapping = {"swap_in_bytes_per_s": 4.0 * MIB, "swap_out_bytes_per_s": 0.0}
    found = in_system(on_nodes(make_run(ranks=4), 2, **swapping))
    assert (found.kind, found.nodes) == (Kind.SWAPPING, ("node-b",))
    assert found.claim.startswith("Node node-b: the machine swapped 4.0 MiB a second")


def test_a_system_finding_of_several_nodes_leads_with_the_worst() -> None:
    run = on_nodes(make_run(ranks=4), 4, cpu_share=0.99)
    busy = tuple(
        replace(sample, host=replace(sample.host, cpu_share=0.85)) for sample in run.samples
    )
    some = replace(run, nodes=(replace(run.nodes[0], samples=busy), *run.nodes[1:]))
    found = in_system(some)
    assert (found.kind, found.nodes) == (Kind.HIGH_CPU, ("node-d", "node-a"))
    assert found.claim.startswith("Node node-d, and less so node-a: the machine's CPU was 99% busy")
    both = replace(on_nodes(make_run(ranks=2), 2, cpu_share=0.99))
    both = replace(both, nodes=(replace(both.nodes[0], samples=busy), both.nodes[1]))
    assert in_system(both).claim.startswith("Both nodes, node-b the most: the machine's CPU was")
    every = replace(run, nodes=tuple(replace(node, samples=busy) for node in run.nodes))
    assert in_system(every).claim.startswith("All 4 nodes, node-a the most: ")


def test_of_gpus_with_little_work_the_node_with_the_least_is_named_first() -> None:
    run = on_nodes(make_run(ranks=2, gpu=True, steps=400, sampled_s=10), 2)
    used = {0: 0.25, 1: 0.10}
    nodes = tuple(
        replace(
            node,
            samples=tuple(
                replace(
                    sample,
                    gpus=tuple(replace(gpu, utilisation=used[gpu.index]) for gpu in sample.gpus),
                )
                for sample in node.samples
            ),
        )
        for node in run.nodes
    )
    found = in_system(replace(run, samples=nodes[0].samples, nodes=nodes))
    assert (found.kind, found.nodes) == (Kind.LOW_GPU_UTILIZATION, ("node-b", "node-a"))


def test_a_healthy_run_says_that_no_node_shows_anything() -> None:
    found = in_system(on_nodes(make_run(ranks=4), 2))
    assert (found.kind, found.nodes) == (Kind.NORMAL, ())
    assert found.claim == "None of the 2 nodes showed anything to act on."


def test_a_node_without_samples_does_not_hide_the_others() -> None:
    run = on_nodes(make_run(ranks=4), 2)
    silent = replace(run, nodes=(run.nodes[0], replace(run.nodes[1], samples=())))
    assert in_system(silent).kind is Kind.NORMAL
    nothing = replace(run, samples=(), nodes=tuple(replace(node, samples=()) for node in run.nodes))
    assert in_system(nothing).kind is Kind.NO_DATA


def test_the_cpu_quota_of_another_node_is_seen() -> None:
    run = on_nodes(make_run(ranks=4, sampled_s=5), 2, cpu_throttled_share=0.4)
    found = diagnose(gather(run)).sections[Section.STEP_TIME]
    starved = next(each for each in found if each.kind is Kind.CPU_STARVED)
    assert starved.nodes == ("node-b",)
    assert starved.claim.startswith("Node node-b: the CPU quota stopped this job for 40%")
