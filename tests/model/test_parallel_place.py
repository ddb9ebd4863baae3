"""A rank's place is told in words, and says whose work can be compared with its own."""

import pytest

from traceml.model.parallel_place import (
    NO_PLACE,
    MeshDimension,
    ParallelPlace,
    common_place,
    peer_groups,
)


def mesh(**dimensions):
    """Every place of a mesh with these sizes; the last dimension changes fastest."""
    places = [()]
    for name, size in dimensions.items():
        places = [(*each, MeshDimension(name, at, size)) for each in places for at in range(size)]
    return [ParallelPlace(each) for each in places]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        pytest.param(NO_PLACE, "", id="no mesh"),
        pytest.param(mesh(dp=2, tp=2)[3], "dp 1, tp 1", id="a mesh"),
        pytest.param(ParallelPlace((), (2,)), "stage 2", id="a pipeline without a mesh"),
        pytest.param(ParallelPlace((), (0, 4)), "stages 0 and 4", id="interleaved stages"),
        pytest.param(
            ParallelPlace(mesh(pp=2, dp=2)[2].dimensions, (1,)), "pp 1, dp 0", id="said once"
        ),
    ],
)
def test_a_place_is_told_in_words(place, words):
    assert place.label == words


@pytest.mark.parametrize(
    ("places", "groups"),
    [
        pytest.param([NO_PLACE] * 3, [(0, 1, 2)], id="no mesh: all do the same"),
        pytest.param(mesh(dp=2, tp=2), [(0, 1, 2, 3)], id="two of a slice are too few alone"),
        pytest.param(mesh(dp=3, tp=2), [(0, 2, 4), (1, 3, 5)], id="three of each slice"),
        pytest.param(mesh(pp=2, dp=2), [(0, 1), (2, 3)], id="stages are no peers"),
        pytest.param(mesh(pp=3), [(0,), (1,), (2,)], id="a pipeline alone has no peers"),
        pytest.param(
            [ParallelPlace((), (at % 2,)) for at in range(4)], [(0, 2), (1, 3)], id="by stages"
        ),
        pytest.param(
            mesh(dp_replicate=2, dp_shard=2), [(0, 1, 2, 3)], id="shards do the same work"
        ),
        pytest.param(
            [ParallelPlace(model=(3 + at % 2, 9)) for at in range(4)],
            [(0, 2), (1, 3)],
            id="other models in a pipeline of the script's own",
        ),
        pytest.param(
            [ParallelPlace(model=(3, 9)), NO_PLACE], [(0, 1)], id="one model is not known"
        ),
        pytest.param([ParallelPlace((), (0,), (at, 9)) for at in (3, 4)], [(0, 1)], id="one stage"),
    ],
)
def test_peers_are_those_that_do_the_same_work(places, groups):
    assert list(peer_groups(places)) == groups


def test_places_have_in_common_what_all_of_them_share():
    places = mesh(dp=2, tp=2)
    assert common_place([places[1], places[3]]) == "tp 1"
    assert common_place([places[0], places[3]]) == ""
    assert common_place(places[:1]) == "dp 0, tp 0"
    assert common_place([]) == ""
