"""What the agents of several nodes saw of one stall is put together."""

from dataclasses import replace

import pytest

from traceml.model.failure import Doing, Stall, Standing, StuckCollective
from traceml.store.node_stalls import merge_stalls

WAITS = StuckCollective(
    "default_pg", 7, "all_reduce", since_unix_s=12.0, waiting=(0,), missing=(1,), unknown=(2, 3)
)


def standing(rank: int, doing: Doing = Doing.COLLECTIVE, moved: bool = False) -> Standing:
    return Standing(rank, 1000 + rank, doing, steps=5, moved=moved)


def stall(*ranks: Standing, since: float = 10.0, seen: float = 50.0, **more: object) -> Stall:
    return replace(Stall(since, seen, 1.0, ranks), **more)


def stuck_of(own: StuckCollective, *other: StuckCollective, at: Doing) -> StuckCollective:
    """The collective, as two nodes know it together whose second one's ranks are at this."""
    head = stall(standing(0), standing(1, Doing.CODE), collectives=(own,))
    node = stall(standing(2, at), standing(3, at), collectives=other)
    (merged,) = merge_stalls([(head,), (node,)])
    return merged.collectives[0]


def test_stalls_that_overlap_are_one_with_the_ranks_of_all_nodes() -> None:
    head = stall(standing(0), since=11.0, stacks=("a",), usual_s=2.0, first_seen_unix_s=45.0)
    node = stall(standing(1), since=10.0, seen=60.0, stacks=("b",))
    (merged,) = merge_stalls([(head,), (node,)])
    assert [each.rank for each in merged.ranks] == [0, 1]
    assert (merged.since_unix_s, merged.seen_unix_s) == (10.0, 60.0)
    assert (merged.noticed_unix_s, merged.usual_s) == (45.0, 2.0)
    assert merged.stacks == ("a", "b")
    assert merged.resumed_unix_s is None


def test_a_pause_of_all_nodes_is_one_pause() -> None:
    pauses = [(stall(standing(each), resumed_unix_s=55.0 + each),) for each in range(3)]
    (merged,) = merge_stalls(pauses)
    assert merged.resumed_unix_s == 57.0
    assert len(merged.ranks) == 3


def test_the_stalls_of_one_node_and_of_other_times_stay_apart() -> None:
    first, second = stall(standing(0)), stall(standing(0), since=40.0, seen=90.0)
    later = stall(standing(1), since=200.0, seen=240.0)
    assert merge_stalls([(first, second), (later,)]) == (first, second, later)


def test_a_stall_that_goes_on_is_not_one_that_resumed() -> None:
    hangs, paused = stall(standing(0)), stall(standing(1), seen=60.0, resumed_unix_s=70.0)
    assert merge_stalls([(hangs,), (paused,)]) == (hangs, paused)


@pytest.mark.parametrize(
    ("at", "missing", "unknown"),
    [
        pytest.param(Doing.INPUT, (1, 2, 3), (), id="in the loader"),
        pytest.param(Doing.CODE, (1, 2, 3), (), id="in the script"),
        pytest.param(Doing.COLLECTIVE, (1,), (2, 3), id="in a collective"),
        pytest.param(Doing.BACKWARD, (1,), (2, 3), id="in backward, where collectives begin"),
        pytest.param(Doing.UNKNOWN, (1,), (2, 3), id="nobody knows where"),
    ],
)
def test_a_rank_without_a_dump_is_missing_where_it_is_in_no_collective(at, missing, unknown):
    found = stuck_of(WAITS, at=at)
    assert (found.missing, found.unknown, found.waiting) == (missing, unknown, (0,))


def test_a_rank_whose_gpu_is_busy_may_be_in_the_collective() -> None:
    head = stall(standing(0), collectives=(WAITS,))
    node = stall(standing(2, Doing.CODE, moved=True), standing(3, Doing.CODE, moved=True))
    (merged,) = merge_stalls([(head,), (node,)])
    assert merged.collectives == (WAITS,)


def test_a_rank_that_waits_in_another_groups_collective_is_missing() -> None:
    other = StuckCollective("data", 3, "all_gather", 13.0, waiting=(2, 3))
    assert stuck_of(WAITS, other, at=Doing.COLLECTIVE).missing == (1, 2, 3)


def test_ranks_of_all_nodes_wait_in_one_collective() -> None:
    node = replace(WAITS, since_unix_s=14.0, waiting=(2, 3), missing=(), unknown=(0, 1))
    found = stuck_of(WAITS, node, at=Doing.COLLECTIVE)
    assert (found.waiting, found.missing, found.unknown) == ((0, 2, 3), (1,), ())
    assert found.since_unix_s == 14.0


def test_nodes_that_began_different_operations_took_different_branches() -> None:
    own = replace(WAITS, waiting=(0, 1), missing=())
    node = replace(WAITS, name="broadcast", waiting=(2, 3), missing=(), unknown=(0, 1))
    found = stuck_of(own, node, at=Doing.COLLECTIVE)
    assert (found.name, found.waiting, found.missing) == ("all_reduce", (0, 1), ())
    assert found.others == ((2, "broadcast"), (3, "broadcast"))


def test_ranks_that_wait_further_on_have_been_there() -> None:
    node = replace(WAITS, number=9, waiting=(2, 3), missing=(), unknown=(0, 1))
    found = stuck_of(WAITS, node, at=Doing.COLLECTIVE)
    assert (found.number, found.waiting, found.missing, found.unknown) == (7, (0,), (1,), ())


def test_groups_of_one_name_on_two_nodes_are_two_groups() -> None:
    own = replace(WAITS, group="tensor", unknown=())
    node = replace(own, since_unix_s=13.0, waiting=(2,), missing=(3,))
    head = stall(standing(0), standing(1, Doing.CODE), collectives=(own,))
    other = stall(standing(2), standing(3, Doing.CODE), collectives=(node,))
    (merged,) = merge_stalls([(head,), (other,)])
    assert merged.collectives == (own, node)
