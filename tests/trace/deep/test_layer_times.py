"""From marks to the time of each layer, without torch and without a clock."""

import pytest

from traceml.trace.deep.layer_times import (
    BACKWARD,
    BEGIN_PHASE,
    BEGIN_WAIT,
    END_PHASE,
    END_WAIT,
    ENTER,
    ENTER_AGAIN,
    FORWARD,
    HAVE_GRADIENTS,
    LEAVE,
    LEAVE_BACKWARD,
    OUTSIDE,
    REACH,
    LayerMark,
    own_times,
)

FIRST, SECOND = 0, 1


def times_of(*marks):
    """Each mark as its kind, its place and how long it is until the next."""
    kinds = [(kind, place) for kind, place, _ in marks] + [(END_PHASE, FORWARD)]
    found = [LayerMark(kind, place, 0, None, 0) for kind, place in kinds]
    return own_times(found, [took for _, _, took in marks])


def test_waiting_for_other_ranks_is_the_layer_s_but_not_in_its_own_time():
    """As a sharded block gathers its parameters before it computes."""
    times = times_of(
        (BEGIN_PHASE, FORWARD, 1),
        (BEGIN_WAIT, OUTSIDE, 2),
        (END_WAIT, OUTSIDE, 4),
        (ENTER, FIRST, 8),
        (BEGIN_WAIT, OUTSIDE, 16),
        (END_WAIT, OUTSIDE, 32),
        (ENTER, SECOND, 64),
        (LEAVE, SECOND, 128),
        (LEAVE, FIRST, 256),
    )
    assert times.forward == {OUTSIDE: 1 + 4 + 256, FIRST: 8 + 32 + 128, SECOND: 64}
    assert times.communication == {OUTSIDE: 2, FIRST: 16}


def test_waiting_while_a_layer_computes_again_is_in_no_phase_of_it():
    times = times_of(
        (BEGIN_PHASE, BACKWARD, 1),
        (REACH, SECOND, 2),
        (ENTER_AGAIN, FIRST, 4),
        (BEGIN_WAIT, OUTSIDE, 8),
        (END_WAIT, OUTSIDE, 16),
        (LEAVE, FIRST, 32),
        (END_PHASE, BACKWARD, 64),
    )
    assert times.recompute == {FIRST: 4 + 16}
    assert times.backward == {OUTSIDE: 1, SECOND: 2 + 32}
    assert times.communication == {FIRST: 8}


def test_the_end_of_backward_with_all_own_gradients_there_is_waiting():
    """DDP: of several such moments the last one counts, and its own wait is not counted twice."""
    times = times_of(
        (BEGIN_PHASE, BACKWARD, 1),
        (REACH, SECOND, 2),
        (HAVE_GRADIENTS, OUTSIDE, 4),
        (REACH, FIRST, 8),
        (HAVE_GRADIENTS, OUTSIDE, 16),
        (BEGIN_WAIT, OUTSIDE, 32),
        (END_WAIT, OUTSIDE, 64),
        (LEAVE_BACKWARD, OUTSIDE, 128),
        (END_PHASE, BACKWARD, 256),
    )
    assert times.backward == {OUTSIDE: 1, SECOND: 2 + 4, FIRST: 8}
    assert times.communication == {OUTSIDE: 16 + 32 + 64 + 128}


@pytest.mark.parametrize("kind", [BEGIN_WAIT, HAVE_GRADIENTS])
def test_waiting_outside_of_the_phases_is_nobody_s(kind):
    assert times_of((kind, OUTSIDE, 8), (END_WAIT, OUTSIDE, 8)) == ({}, {}, {}, {})
