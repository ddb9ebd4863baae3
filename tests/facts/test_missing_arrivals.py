"""The rank that did not arrive is the one whose collectives end before the one others wait in."""

import pytest

from flight_dumps import CREATED_UNIX_S, dump_bytes, entry
from traceml.facts.missing_arrivals import stuck_collectives
from traceml.store.flight_recorder import FlightDump, read_dump


@pytest.fixture
def dumped(tmp_path):
    """Reads what ranks have written: their entries, by rank; `None` for a rank without a file."""

    def read(by_rank, ranks=None) -> list[FlightDump]:
        found = []
        for rank, entries in by_rank.items():
            path = tmp_path / f"rank_{rank}"
            path.write_bytes(dump_bytes(*entries, ranks=ranks or sorted(by_rank)))
            found.append(read_dump(path, rank))
        return found

    return read


def done(*numbers):
    return [entry(number, state="completed") for number in numbers]


def test_the_rank_that_never_began_it_is_missing(dumped):
    waits = [*done(1, 2), entry(3, sizes=[[4 << 20]])]
    (stuck,) = stuck_collectives(dumped({0: waits, 1: waits, 2: done(1, 2), 3: waits}))
    assert stuck.missing == (2,)
    assert stuck.waiting == (0, 1, 3)
    assert (stuck.name, stuck.number, stuck.group) == ("all_reduce", 3, "default_pg")
    assert stuck.size_bytes == 16 << 20
    assert stuck.since_unix_s == CREATED_UNIX_S


def test_of_two_ranks_the_one_that_is_missing_is_named_with_the_collective(dumped):
    gathers = [*done(1), entry(2, name="_all_gather_base", sizes=[[1 << 10]])]
    (stuck,) = stuck_collectives(dumped({0: gathers, 1: done(1)}))
    assert (stuck.missing, stuck.waiting) == ((1,), (0,))
    assert (stuck.name, stuck.number) == ("_all_gather_base", 2)


def test_ranks_that_all_completed_are_stuck_nowhere(dumped):
    assert stuck_collectives(dumped({0: done(1, 2), 1: done(1, 2)})) == ()
    assert stuck_collectives([]) == ()


def test_a_rank_without_a_file_is_not_known_and_not_missing(dumped):
    waits = [*done(1), entry(2)]
    (stuck,) = stuck_collectives(dumped({0: waits, 2: waits}, ranks=[0, 1, 2]))
    assert stuck.unknown == (1,)
    assert stuck.missing == ()


def test_ranks_in_different_operations_took_different_branches(dumped):
    (stuck,) = stuck_collectives(
        dumped({0: [*done(1), entry(2)], 1: [*done(1), entry(2, "broadcast")]})
    )
    assert stuck.missing == ()
    assert stuck.waiting == (0,)
    assert stuck.others == ((1, "broadcast"),)


def test_work_queued_behind_the_first_that_waits_is_not_it(dumped):
    ahead = [*done(1), entry(2), entry(3), entry(4)]
    (stuck,) = stuck_collectives(dumped({0: ahead, 1: done(1)}))
    assert (stuck.number, stuck.missing) == (2, (1,))


def test_a_rank_that_lost_its_old_entries_had_arrived(dumped):
    (stuck,) = stuck_collectives(
        dumped({0: [entry(2000)], 1: done(3999), 2: [*done(1998), *done(1999)]})
    )
    assert stuck.missing == (2,)


def test_of_several_groups_the_one_begun_first_comes_first(dumped):
    tensor = ("1", "mesh_tp")
    early = entry(5, group=tensor, created_unix_s=CREATED_UNIX_S - 9)
    first, second = stuck_collectives(dumped({0: [entry(7), early], 1: done(6)}))
    assert (first.group, second.group) == ("mesh_tp", "default_pg")
    assert second.missing == (1,)
