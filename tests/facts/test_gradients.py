"""The norm of the whole model, also where no rank has all of it."""

import numpy as np
import pytest

from traceml.facts.gradients import gradient_facts
from traceml.store.layer_records import LayerNumbers, LayerRecords


def normed(pid, norms, steps=range(20)):
    """A process with these norms by layer in each of the steps."""
    steps = tuple(steps)
    return LayerRecords(
        pid=pid,
        names=tuple(norms),
        kinds=("Linear",) * len(norms),
        norms=LayerNumbers(steps, np.tile(list(norms.values()), (len(steps), 1))),
        return_order=tuple(range(len(norms))),
    )


def facts_of(*records):
    return gradient_facts(records, {each.pid: each.pid for each in records})


def test_the_norms_of_a_pipeline_s_stages_make_that_of_the_whole_model():
    found = facts_of(normed(0, {"0": 3.0}), normed(1, {"1": 4.0}), normed(2, {"2": 12.0}))
    assert (found.steps, found.first, found.usual, found.last) == (20, 13.0, 13.0, 13.0)
    assert found.layer_norms == {"0": 3.0, "1": 4.0, "2": 12.0}


def test_ranks_that_do_the_same_count_once_and_so_does_a_layer_of_several_stages():
    tied = [normed(0, {"embed": 3.0, "0": 4.0}), normed(1, {"embed": 3.0, "0": 4.0})]
    assert facts_of(*tied).usual == 5.0
    assert facts_of(*tied, normed(2, {"embed": 3.0, "1": 12.0})).usual == 13.0


def test_stages_are_taken_together_in_the_steps_in_which_all_were_measured():
    first = normed(0, {"0": 3.0}, range(20))
    assert facts_of(first, normed(1, {"1": 4.0}, range(10, 30))).steps == 10
    apart = facts_of(first, normed(1, {"1": 4.0}, range(20, 30)))
    assert (apart.steps, apart.usual) == (0, None)


def test_a_stage_whose_gradient_is_not_finite_is_the_whole_model_s():
    found = facts_of(normed(0, {"0": 3.0}), normed(1, {"1": np.inf}))
    assert found.bad_to_the_end == 20 and found.usual is None
    assert found.bad_value is not None and found.bad_value.rank == 1
    assert found.layer_norms == {"0": pytest.approx(3.0)}
