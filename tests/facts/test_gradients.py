"""The norm of the whole model, also where no rank has all of it."""

from dataclasses import replace

import numpy as np
import pytest

from layer_runs import layer_records
from restarted_runs import Start, restarted
from traceml.diagnose.failure_words import bad_value_advice, bad_value_sentence
from traceml.facts.gather import gather
from traceml.facts.gradients import gradient_facts
from traceml.store.layer_records import BadLoss, LayerNumbers, LayerRecords


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
    assert (found.steps, found.usual, found.last) == (20, None, None)
    assert found.bad_value is not None and found.bad_value.rank == 1
    assert found.layer_norms == {"0": pytest.approx(3.0)}


# Over steps


def moving(pid, norms, steps):
    """A process whose norms, by layer, are lists over the steps."""
    names = tuple(norms)
    return LayerRecords(
        pid=pid,
        names=names,
        kinds=("Linear",) * len(names),
        norms=LayerNumbers(tuple(steps), np.array([norms[name] for name in names], float).T),
        return_order=tuple(range(len(names))),
    )


def test_curves_are_of_the_largest_layers_and_of_those_that_changed_the_most():
    steady = {f"steady.{n}": [float(n)] * 20 for n in range(20)}
    growing = {"grows": [0.5] * 10 + [20.0] * 10, "shrinks": [4.0] * 10 + [0.1] * 10}
    tiny = {"tiny": [1e-9] * 10 + [1e-5] * 10, "unused": [0.0] * 20}
    curves = facts_of(moving(0, {**steady, **growing, **tiny}, range(1, 21))).curves
    assert curves is not None and len(curves.layers) == 7
    assert {"steady.19", "steady.18", "grows", "shrinks"} <= set(curves.layers)
    assert not {"tiny", "unused"} & set(curves.layers)
    assert curves.steps == tuple(range(1, 21)) and curves.steps_per_point == 1
    assert curves.layers["grows"] == (0.5,) * 10 + (20.0,) * 10
    assert curves.whole[0] == pytest.approx(np.sqrt(sum(n**2 for n in range(20)) + 16.25))
    assert curves.not_finite == (0,) * 20


def test_a_long_curve_keeps_its_highest_points_and_says_where_norms_were_not_finite():
    norms = np.ones(1000)
    norms[[501, 700, 701, 999]] = 90.0, np.inf, np.inf, np.nan
    curves = facts_of(moving(0, {"0": norms, "1": np.ones(1000)}, range(0, 3000, 3))).curves
    assert curves is not None and len(curves.steps) <= 120
    assert curves.steps_per_point == 9 and curves.steps[:2] == (0, 27)
    assert max(filter(None, curves.layers["0"])) == curves.layers["0"][501 // 9] == 90.0
    assert sum(curves.not_finite) == curves.not_finite[700 // 9] == 2


def test_the_stages_of_a_pipeline_have_curves_where_each_was_measured():
    stages = [moving(0, {"0": [3.0] * 4}, (1, 2, 3, 4)), moving(1, {"1": [4.0] * 3}, (2, 3, 5))]
    curves = facts_of(*stages).curves
    assert curves is not None and curves.steps == (1, 2, 3, 4, 5)
    assert curves.layers == {"1": (None, 4, 4, None, 4), "0": (3, 3, 3, 3, None)}
    assert curves.whole == (None, 5.0, 5.0, None, None)


def test_the_layer_that_rose_first_has_a_curve_and_a_single_step_has_none():
    quiet = {f"quiet.{n}": [5.0] * 40 for n in range(9)}
    burst = [1.0] * 20 + [1e4] * 20
    found = facts_of(moving(0, {**quiet, "bursts": burst}, range(40)))
    assert found.rise is not None and found.rise.layer == "bursts"
    assert "bursts" in found.curves.layers
    assert facts_of(moving(0, {"a": [1.0]}, (4,))).curves is None


@pytest.mark.parametrize(
    ("largest", "layer", "is_of_loss", "are_layers_finite"),
    [
        pytest.param((12, [1, 1, np.inf]), "head", False, False, id="a layer returned it"),
        pytest.param((12, [1, np.inf, np.inf]), "body", False, False, id="the first of two"),
        pytest.param((12, [1, 1, 1]), None, True, True, id="all returned finite values"),
        pytest.param((12, [np.nan, 1, 1]), None, True, False, id="the model's own is not known"),
        pytest.param((11, [1, 1, 1]), None, True, False, id="another step was looked at"),
    ],
)
def test_a_bad_loss_is_a_layer_s_where_one_was_seen_to_return_it(
    largest, layer, is_of_loss, are_layers_finite
):
    step, values = largest
    lost = np.array([[1.0, 1.0, 1.0]] * 11 + [[np.inf] * 3] * 3)
    record = layer_records(
        forward_ms=dict.fromkeys(("", "body", "head"), 1.0),
        norms=LayerNumbers(tuple(range(1, 15)), lost),
        largest=LayerNumbers((step,), np.array([values], float)),
        return_order=(1, 2, 0),
        bad_losses=(BadLoss(12),),
    )
    bad = gradient_facts([record], {}).bad_value
    assert (bad.step, bad.phase, bad.layer) == (12, "forward", layer)
    assert (bad.is_of_loss, bad.are_layers_finite) == (is_of_loss, are_layers_finite)
    assert ("NaN or infinite" in bad_value_sentence(bad)) and bad.finite_step == 11


@pytest.mark.parametrize(
    ("head", "layer"), [(1.0, "body"), (1e30, None)], ids=["one layer", "exploded before it"]
)
def test_a_gradient_that_had_exploded_before_it_was_lost_is_no_layer_s(head, layer):
    """Backward gets to the head first."""
    norms = np.array([[np.nan, 1.0, 1.0, 1.0]] * 5 + [[np.nan, np.inf, np.inf, head]])
    record = layer_records(
        forward_ms=dict.fromkeys(("", "first", "body", "head"), 1.0),
        norms=LayerNumbers(tuple(range(1, 7)), norms),
        return_order=(1, 2, 3, 0),
        of_library=frozenset({3}),
    )
    bad = gradient_facts([record], {}).bad_value
    assert (bad.step, bad.phase, bad.layer, bad.finite_layer) == (6, "backward", layer, "head")
    said = f"{bad_value_sentence(bad)} {bad_value_advice(bad, '')}"
    assert ("learning rate" in said) == ("exploded" in said) == (layer is None)
    assert ("body" in said) == (layer is not None)


LAST_WAS_FINITE = "the gradient of the parameters of norm was finite, that of the next was not."


@pytest.mark.parametrize(
    ("of_library", "layers", "said"),
    [
        pytest.param(
            {1, 3},
            ["norm"],
            f"layer norm (Module), in step 6: {LAST_WAS_FINITE}",
            id="the script's own is the one with the finite gradient",
        ),
        pytest.param(
            {2, 3},
            ["first"],
            "layer first (Module), in step 6, after that of norm, which was finite.",
            id="it is the one with the bad gradient",
        ),
        *(
            pytest.param(
                of_library,
                ["first", "norm"],
                "layer first (Module) or layer norm (Module), or between them, in step "
                f"6: {LAST_WAS_FINITE}",
                id=name,
            )
            for of_library, name in (({3}, "both are"), ({1, 2, 3}, "neither is"))
        ),
    ],
)
def test_the_layer_with_the_last_finite_gradient_may_have_made_the_bad_one(
    of_library, layers, said
):
    """That of its parameters was finite, that of its inputs is not known to have been."""
    norms = np.array([[np.nan, 1.0, 1.0, 1.0]] * 5 + [[np.nan, np.inf, 1.0, 1.0]])
    record = layer_records(
        forward_ms=dict.fromkeys(("", "first", "norm", "head"), 1.0),
        norms=LayerNumbers(tuple(range(1, 7)), norms),
        return_order=(1, 2, 3, 0),
        of_library=frozenset(of_library),
    )
    bad = gradient_facts([record], {}).bad_value
    assert [bad.layer, *(each.name for each in bad.others)] == layers
    assert bad_value_sentence(bad).endswith(f" in the backward pass of {said}")
    advice = bad_value_advice(bad, "")
    assert advice is not None and f"Look at what {' and '.join(layers)} compute" in advice
    assert ("between them" in advice) == (len(layers) > 1)


# Of attempts


def test_gradients_are_those_of_the_last_attempt_with_its_ranks_and_steps():
    run = restarted(Start(40), Start(60, status=0))
    exploded, good = {"0": np.inf}, {"0": 3.0}
    earlier = [normed(1000, {"0": 3.0}, range(1, 40)), normed(1001, exploded, range(1, 40))]
    last = [normed(1100, good, range(1, 50)), normed(1101, good, range(1, 50))]
    found = gather(replace(run, layers=(*earlier, *last))).layers.gradients
    assert found.bad_value is None
    assert (found.steps, found.last_step) == (49, 40 + 49)
    assert found.curves is not None
    assert found.curves.steps[0] == 41
    lost = [last[0], normed(1101, exploded, range(1, 50))]
    found = gather(replace(run, layers=(*earlier, *lost))).layers.gradients
    assert found.bad_value is not None
    assert (found.bad_value.rank, found.bad_value.step) == (1, 41)


def test_where_the_last_attempt_measured_no_gradient_those_before_it_are_told():
    run = restarted(Start(40), Start(0), Start(1, status=0))
    lost = (normed(1000, {"0": 3.0}), normed(1001, {"0": np.inf}))
    found = gather(replace(run, layers=lost)).layers.gradients
    assert found.bad_value is not None
    assert found.bad_value.rank == 1
