"""A layer that takes longer since some step is named, with the ranks on which it does."""

import pytest

from factories import make_run, make_waiting
from layer_runs import burst_records, with_layers
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import layer_slowed_down
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Section, Severity

LAYER = "blocks.3.attn"


def slowed_run(ranks=1, on=None, factor=2.0, bursts=20, slow_from=10, run=None):
    """A run in which a layer becomes slow on some ranks; by default on all."""
    run = run or make_run(ranks)
    on = range(ranks) if on is None else on
    return with_layers(
        run,
        *(
            burst_records(
                each.rank.pid,
                bursts,
                slow={LAYER: factor} if each.rank.rank in on else None,
                slow_from=slow_from,
            )
            for each in run.ranks
        ),
    )


def test_must_fire_with_the_step_and_the_cost():
    found = layer_slowed_down.check(gather(slowed_run(factor=3.0)))
    assert found.severity is Severity.WARNING and found.ranks == (0,)
    assert found.evidence["layer"] == LAYER and found.evidence["since_step"] == 135
    assert found.evidence["factor"] == pytest.approx(3.0, rel=0.05)
    assert found.evidence["excess_ms"] == pytest.approx(4.0, rel=0.1)
    assert found.lost_s_per_step == pytest.approx(0.002, rel=0.1)  # in half of the steps
    assert f"Layer {LAYER} takes" in found.claim and "since about step 135" in found.claim


@pytest.mark.parametrize(
    ("ranks", "on", "said"),
    [
        pytest.param(4, (2,), "on rank 2; the other ranks have not slowed down", id="one of four"),
        pytest.param(2, (1,), "on rank 1; the other rank has not slowed down in it", id="of two"),
        pytest.param(3, (0, 1, 2), "on all ranks", id="all"),
    ],
)
def test_must_fire_and_say_on_which_ranks(ranks, on, said):
    found = layer_slowed_down.check(gather(slowed_run(ranks, on)))
    assert said in found.claim and found.ranks == on


def test_it_explains_a_slowdown_and_claims_no_second_time():
    run = make_run(slowdown_at=100, slowdown=1.5)
    told = diagnose(gather(slowed_run(factor=4.0, run=run))).sections[Section.STEP_TIME]
    by_kind = {each.kind: each for each in told}
    assert by_kind[layer_slowed_down.KIND].part_of is Kind.SLOWDOWN
    claimed_s = by_kind[layer_slowed_down.KIND].lost_s_per_step
    assert 0 < claimed_s <= by_kind[Kind.SLOWDOWN].lost_s_per_step


def test_what_costs_little_is_a_remark():
    run = make_waiting(make_run(4, forward_ms=200.0))
    found = layer_slowed_down.check(gather(slowed_run(4, (1,), factor=1.5, run=run)))
    assert found.severity is Severity.INFO


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(slowed_run(on=()), id="nothing changes"),
        pytest.param(slowed_run(factor=1.2), id="just below 1.25 times"),
        pytest.param(slowed_run(slow_from=16), id="just below five bursts after"),
        pytest.param(slowed_run(slow_from=4), id="just below five bursts before"),
        pytest.param(slowed_run(bursts=1, slow_from=0), id="one burst"),
        pytest.param(make_run(), id="no deep profile"),
    ],
)
def test_must_stay_silent(run):
    assert layer_slowed_down.check(gather(run)) is None
