"""A layer that is slow on one rank alone is named, with what it costs; a slow device is not it."""

from dataclasses import replace

import numpy as np
import pytest

from factories import make_late, make_run, make_waiting
from layer_runs import burst_records, kernel_step, with_layers
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import layer_slowed_down, slow_layer_on_rank
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section, Severity
from traceml.model.phase import Phase

LAYER = "blocks.5.mlp"


def late_run(ranks=4, by_ms=4.0, slow=None, **more):
    """A run whose last rank takes longer in forward, because of these layers."""
    run = make_waiting(make_late(make_run(ranks), ranks - 1, phase="forward", by_ms=by_ms))
    return with_layers(run, *layers_of(run, slow or {}, **more))


def layers_of(run, slow, **more):
    last = run.ranks[-1].rank.rank
    return [
        burst_records(each.rank.pid, slow=slow if each.rank.rank == last else None, **more)
        for each in run.ranks
    ]


@pytest.mark.parametrize("ranks", [2, 4])
def test_must_fire_and_name_layer_rank_and_cost(ranks):
    facts = gather(late_run(ranks, slow={LAYER: 3.0}))
    found = slow_layer_on_rank.check(facts)
    assert found.severity is Severity.WARNING and found.ranks == (ranks - 1,)
    assert found.evidence["layer"] == LAYER and found.evidence["bursts"] == 14
    assert found.evidence["factor"] == pytest.approx(3.0, rel=0.05)
    assert found.evidence["excess_ms"] == pytest.approx(4.0, rel=0.1)
    assert 0.003 <= found.lost_s_per_step <= 0.0044  # of four ranks with noise, the slowest counts
    whom = "rank 0" if ranks == 2 else "the other ranks"
    assert f"Rank {ranks - 1}: {LAYER} takes" in found.claim
    assert f"what it takes on {whom}, in 14 of 14 bursts" in found.claim


def test_must_fire_behind_the_straggler_and_claim_its_time_once():
    facts = gather(late_run(slow={LAYER: 3.0}))
    told = diagnose(facts).sections[Section.STEP_TIME]
    kinds = [each.kind for each in told]
    place = kinds.index(slow_layer_on_rank.KIND)
    assert kinds[place - 1] is Kind.COMPUTE_STRAGGLER
    assert told[place].part_of is Kind.COMPUTE_STRAGGLER
    assert told[place].lost_s_per_step <= told[place - 1].lost_s_per_step * 1.001


def test_several_layers_of_a_rank_point_to_its_data_or_its_device():
    slow = {f"blocks.{n}.mlp": 1.8 for n in range(5)}
    found = slow_layer_on_rank.check(gather(late_run(slow=slow, by_ms=8.0)))
    assert found.evidence["layers"] == 5
    assert "The same holds for" in found.claim and "and 1 more" in found.claim
    assert found.action.startswith("5 layers are slow there and the others are not")


def test_the_slow_kernel_of_the_layer_is_named():
    run = late_run(slow={LAYER: 3.0})
    layers = []
    for each in run.layers:
        random = np.random.default_rng(each.pid)
        place, steps = each.names.index(LAYER), []
        for number in range(8):
            took = 1e6 * np.exp(0.02 * random.standard_normal(12))
            took[place] *= 3.0 if each is run.layers[-1] else 1.0
            kernels = [("nvjet_tst", 2, int(ns), n) for n, ns in enumerate(took)]
            steps.append(kernel_step(12.0, kernels, [1.0] * 12, step=20 + 40 * number))
        layers.append(replace(each, kernels=tuple(steps)))
    found = slow_layer_on_rank.check(gather(with_layers(run, *layers)))
    assert found.evidence["kernel"] == "nvjet_tst"
    assert found.evidence["kernel_factor"] == pytest.approx(3.0, rel=0.05)
    assert "Its kernel nvjet_tst takes" in found.claim


def test_a_rank_that_is_not_the_slowest_costs_the_job_nothing():
    run = make_waiting(make_late(make_run(4), 0, phase="forward", by_ms=30.0))
    found = slow_layer_on_rank.check(gather(with_layers(run, *layers_of(run, {LAYER: 3.0}))))
    assert found.ranks == (3,) and found.severity is Severity.INFO
    assert found.lost_s_per_step == pytest.approx(0.0, abs=2e-4)
    assert "per step makes the job slower" in found.claim


def test_a_rank_that_waits_for_the_others_may_have_waited_in_the_layer():
    """Its peers are late, and the waiting lies in a layer of its own."""
    run = make_waiting(make_late(make_run(2), 0, phase="input", by_ms=20.0))
    facts = gather(with_layers(run, *layers_of(run, {LAYER: 3.0})))
    assert facts.layers.slow_on_rank and slow_layer_on_rank.check(facts) is None


def test_long_waits_of_a_few_steps_do_not_hide_the_layer():
    """On a busy machine the other rank is interrupted now and then, and this one waits for it."""
    run = make_late(make_run(2), 1, phase="forward", by_ms=4.0)
    run = make_waiting(make_late(run, 0, phase="rest", by_ms=60.0, every=5))
    facts = gather(with_layers(run, *layers_of(run, {LAYER: 3.0})))
    own_s, other_s = (each.times.phase(Phase.COMMUNICATION) for each in facts.ranks_used[::-1])
    assert own_s - other_s > 0.004  # in the mean step it waits for longer than the layer costs
    assert slow_layer_on_rank.check(facts).evidence["layer"] == LAYER


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(late_run(slow={}), id="the rank is late for another reason"),
        pytest.param(late_run(slow={LAYER: 1.2}), id="just below 1.25 times"),
        pytest.param(late_run(slow={LAYER: 3.0}, bursts=3), id="just below four bursts"),
        pytest.param(make_run(4), id="no deep profile"),
        pytest.param(late_run(1, slow={LAYER: 3.0}), id="one rank"),
    ],
)
def test_must_stay_silent(run):
    assert slow_layer_on_rank.check(gather(run)) is None


def test_a_slow_device_is_the_straggler_s():
    run = make_waiting(make_late(make_run(4), 3, phase="forward", by_ms=10.0))
    layers = [
        burst_records(each.rank.pid, device=2.0 if each is run.ranks[-1] else 1.0)
        for each in run.ranks
    ]
    facts = gather(with_layers(run, *layers))
    kinds = {each.kind for each in diagnose(facts).sections[Section.STEP_TIME]}
    assert Kind.COMPUTE_STRAGGLER in kinds and slow_layer_on_rank.KIND not in kinds


def test_a_layer_that_became_slow_early_is_told_by_one_rule_alone():
    run = late_run(slow={LAYER: 3.0}, bursts=40, slow_from=6)
    facts = gather(run)
    assert facts.layers.slow_on_rank and facts.layers.slowed_down
    assert slow_layer_on_rank.check(facts) is None
    assert layer_slowed_down.check(facts).evidence["layer"] == LAYER
