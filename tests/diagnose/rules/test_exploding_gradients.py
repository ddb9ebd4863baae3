"""A gradient that grows a hundredfold is named with its layer; healthy ones are silent."""

from dataclasses import replace

import numpy as np
import pytest

from factories import make_run
from failing import with_loss
from layer_runs import layer_records, with_layers
from traceml.diagnose.engine import diagnose
from traceml.diagnose.rules import exploding_gradients, non_finite_loss
from traceml.facts.gather import gather
from traceml.model.finding import Section, Severity
from traceml.store.layer_records import BadLayer, LayerNumbers

LAYERS = ("", "first", "act", "last")
INF = float("inf")


def with_norms(first, last, run=None, **more):
    """A run with the norms of two layers, by step from 1 on; the other two have no parameters."""
    none = [float("nan")] * len(first)
    values = np.array([none, first, none, last]).T
    norms = LayerNumbers(tuple(range(1, len(first) + 1)), values)
    records = layer_records(forward_ms=dict.fromkeys(LAYERS, 1.0))
    return with_layers(run or make_run(), replace(records, norms=norms, **more))


def growing(steps, factor, begin=1.0):
    return [begin * factor**step for step in range(steps)]


def test_must_fire_and_name_the_layer_that_rose_first():
    run = with_norms(
        first=[1.0] * 20 + growing(20, 2.0), last=[1.0] * 24 + growing(16, 2.0), run=None
    )
    finding = exploding_gradients.check(gather(run))
    assert finding.severity is Severity.INFO  # the loss is not known to be worse
    assert finding.evidence["layer"] == "first"
    assert (finding.evidence["layer_step"], finding.evidence["step"]) == (25, 29)
    assert "layer first rose first: from 1 to" in finding.claim


@pytest.mark.parametrize(
    ("last", "layer"),
    [
        pytest.param([9.6, 190.0, 4000.0], "last", id="what passes it on was just below"),
        pytest.param([1.9, 190.0, 4000.0], "first", id="what had not begun to rise"),
        pytest.param([9.6, 1.2, 4000.0], "first", id="what came back"),
    ],
)
def test_layers_that_rise_together_are_told_by_where_backward_comes_first(last, layer):
    """With few norms, which of them passes a threshold first is left to their noise."""
    run = with_norms(first=[1.0] * 20 + [10.5, 200.0, 5000.0], last=[1.0] * 20 + last)
    assert exploding_gradients.check(gather(run)).evidence["layer"] == layer


@pytest.mark.filterwarnings("error")
def test_a_layer_that_had_no_gradient_may_be_the_first_to_rise():
    """As one of zeros, or an expert that nobody asked until then."""
    run = with_norms(first=[1.0] * 20 + growing(20, 2.0), last=[0.0] * 20 + growing(20, 20.0))
    finding = exploding_gradients.check(gather(run))
    assert finding.evidence["layer"] == "last"
    assert finding.evidence["layer_usual"] == 0.0


def test_must_fire_as_a_warning_where_the_loss_ends_above_its_beginning():
    run = with_norms([1.0] * 20 + growing(20, 2.0), [1.0] * 40, run=with_loss([1.0] * 50 + [9.0]))
    assert exploding_gradients.check(gather(run)).severity is Severity.WARNING


@pytest.mark.parametrize(
    ("first", "last"),
    [
        pytest.param([1.0] * 40, [2.0] * 40, id="nothing changes"),
        pytest.param([1.0] * 20 + [500.0] + [1.0] * 19, [1.0] * 40, id="one spike that came back"),
        pytest.param(growing(40, 1.1), [1.0] * 40, id="grows, but not a hundredfold"),
        pytest.param(
            growing(20, 0.5) + growing(20, 2.0, 1e-6), [0.0] * 40, id="vanished, and came back"
        ),
        pytest.param(
            [1.0] * 10 + [20.0, 300.0, 40.0, 90.0] * 8, [1.0] * 42, id="grew, and scatters widely"
        ),
        pytest.param([0.0] * 10 + [1.0] * 30, [1.0] * 40, id="a layer that wakes up"),
        pytest.param([1.0] * 4 + growing(4, 10.0), [1.0] * 8, id="too few to say what is usual"),
        pytest.param([1.0, INF, INF] * 10 + [1.0], [1.0] * 31, id="steps that were skipped"),
    ],
)
def test_must_stay_silent(first, last):
    assert exploding_gradients.check(gather(with_norms(first, last))) is None


def test_a_gradient_that_is_lost_while_the_loss_is_finite():
    norms = [1.0] * 19 + [INF], [1.0] * 20
    losses = with_loss([1.0] * 20)
    run = with_norms(*norms, run=losses, of_library=frozenset({2, 3}))
    finding = exploding_gradients.check(gather(run))
    assert finding.severity is Severity.WARNING
    claim = (
        "The gradient first became NaN or infinite in the backward pass of layer first (Module), "
        "in step 20, after that of last, which was finite."
    )
    assert finding.claim == f"{claim} The loss was still finite."
    unseen = exploding_gradients.check(gather(with_norms(*norms, of_library=frozenset({2, 3}))))
    assert unseen.claim == claim  # of a loss that nobody saw nothing is said


def test_a_scaler_that_is_about_to_skip_the_last_step_is_silent():
    run = with_norms([1.0] * 19 + [INF], [1.0] * 20, scaled_steps=frozenset(range(1, 21)))
    assert exploding_gradients.check(gather(run)) is None


def lost(**more):
    losses = with_loss([1.0] * 19 + [float("nan")] * 31)
    return with_norms([1.0] * 19 + [INF] * 5, [1.0] * 19 + [INF] * 5, run=losses, **more)


def test_a_loss_that_is_lost_names_the_layer_that_lost_it():
    finding = non_finite_loss.check(gather(lost(bad_layers=(BadLayer(20, 2),))))
    assert finding.severity is Severity.CRITICAL
    assert "Layer act (Module) was the first to return NaN or infinite values" in finding.claim
    assert finding.evidence["bad_layer"] == "act" and finding.evidence["bad_phase"] == "forward"
    assert finding.action.startswith("Look at what act computes in forward")


def test_activations_seen_after_the_gradients_were_lost_name_no_layer():
    seen = LayerNumbers((21,), np.full((1, 4), INF))
    finding = non_finite_loss.check(gather(lost(largest=seen)))
    assert finding.evidence["bad_step"] == 20 and finding.evidence["bad_layer"] is None
    assert "Every layer's gradient was NaN or infinite from step 20 on" in finding.claim


def test_activations_of_the_step_itself_name_the_first_layer_in_the_order_of_return():
    seen = LayerNumbers((20,), np.array([[INF, 1.0, INF, INF]]))
    finding = non_finite_loss.check(gather(lost(largest=seen, return_order=(1, 2, 3, 0))))
    assert finding.evidence["bad_layer"] == "act"


def test_it_is_among_the_findings_of_a_run():
    run = with_norms([1.0] * 20 + growing(20, 2.0), [1.0] * 40)
    found = diagnose(gather(run)).sections[Section.STABILITY]
    assert "EXPLODING_GRADIENTS" in [each.kind.value for each in found]
