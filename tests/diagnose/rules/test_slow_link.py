"""Slow link fires where communication waits for one machine whose ranks are not slow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories import delay_node, make_late, make_run, make_waiting, on_nodes
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import slow_link
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section, Severity
from traceml.store.records import RunRecords


def job(
    communication_ms: float = 12.0,
    nodes: int = 4,
    late: int | None = None,
    uncertainty_s: float = 0.0001,
    by_ms: float = 9.0,
    steps: int = 60,
) -> RunRecords:
    """Ranks that wait for each other in every step; all those of one node may be late."""
    run = make_run(ranks=8, steps=steps, communication_ms=communication_ms)
    each = 8 // nodes
    if late is not None:
        run = make_late(run, *range(late * each, (late + 1) * each), by_ms=by_ms)
    return on_nodes(make_waiting(run), nodes, uncertainty_s)


def far(run: RunRecords, place: int, round_trip_ms: float) -> RunRecords:
    """The run in which an exchange with one node takes so long."""
    changed = replace(run.nodes[place].state, clock_uncertainty_s=round_trip_ms / 2e3)
    nodes = list(run.nodes)
    nodes[place] = replace(nodes[place], state=changed)
    return replace(run, nodes=tuple(nodes))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        pytest.param(delay_node(job(), 2, 9.0), "ready to communicate 9", id="late arrivals"),
        pytest.param(far(job(), 2, 20.0), "at least 20.0 ms, and 200 µs", id="a long round trip"),
        pytest.param(
            far(job(late=2, by_ms=2.0), 2, 20.0), "at least 20.0 ms", id="a little more own work"
        ),
    ],
)
def test_must_fire(run: RunRecords, words: str) -> None:
    facts = gather(run)
    finding = slow_link.check(facts)
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.SLOW_LINK, Severity.WARNING)
    assert finding.nodes == ("node-c",)
    assert words in finding.claim
    assert finding.lost_s_per_step is not None
    assert finding.lost_s_per_step <= (facts.mean.communication_s or 0.0)


@pytest.mark.parametrize(
    ("nodes", "named", "words"),
    [
        pytest.param(
            2, ("node-a", "node-b"), "the link between node-a and node-b: an", id="of two nodes"
        ),
        pytest.param(
            4, ("node-a",), "node-a, or for the network between all machines", id="of the head"
        ),
    ],
)
def test_a_link_that_is_slow_for_every_other_node_is_the_heads(nodes, named, words) -> None:
    run = job(nodes=nodes)
    for place in range(1, nodes):
        run = far(run, place, 20.0)
    finding = slow_link.check(gather(run))
    assert finding is not None
    assert finding.nodes == named
    assert words in finding.claim


def test_a_long_exchange_says_more_than_arrivals_that_follow_from_it() -> None:
    finding = slow_link.check(gather(far(delay_node(job(), 1, 9.0), 2, 20.0)))
    assert finding is not None
    assert finding.nodes == ("node-c",)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(job(), id="nobody is late"),
        pytest.param(delay_node(job(), 2, 2.0), id="just below the line"),
        pytest.param(delay_node(job(), 2, 2.8), id="as late as one that waits for a core"),
        pytest.param(delay_node(job(steps=24), 2, 9.0), id="late in a few steps"),
        pytest.param(delay_node(job(uncertainty_s=0.0023), 2, 4.0), id="within the uncertainty"),
        pytest.param(job(late=2), id="its ranks are slow themselves"),
        pytest.param(delay_node(job(late=2, by_ms=2.0), 2, 2.0), id="half of it is its own work"),
        pytest.param(far(job(), 2, 4.0), id="a short round trip"),
        pytest.param(far(job(late=2), 2, 20.0), id="slow ranks behind a long round trip"),
        pytest.param(far(job(communication_ms=6.0), 2, 40.0), id="another network trains"),
        pytest.param(delay_node(job(communication_ms=2.0), 2, 9.0), id="nobody waits"),
        pytest.param(make_waiting(make_run(8, communication_ms=12.0)), id="one machine"),
    ],
)
def test_must_stay_silent(run: RunRecords) -> None:
    assert slow_link.check(gather(run)) is None


def test_comm_bound_names_the_node_and_what_to_do_about_its_link() -> None:
    told = diagnose(gather(delay_node(job(), 2, 9.0))).sections[Section.STEP_TIME]
    assert [finding.kind for finding in told][:2] == [Kind.COMM_BOUND, Kind.SLOW_LINK]
    assert told[0].nodes == ("node-c",)
    assert told[0].claim.endswith("They wait for the link of node-c.")
    assert "Test the link of node-c" in told[0].action
    assert told[1].part_of is Kind.COMM_BOUND
