"""Gradient norms and activations by layer: what becomes non-finite first, and where it grew."""

import gc
import math
import os
import weakref
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.trace.deep.test_bursts import Parts, train
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from traceml.diagnose.failure_words import bad_value_advice, bad_value_sentence
from traceml.facts.gradients import gradient_facts
from traceml.store.layer_records import read_layers
from traceml.trace import autograd_graph
from traceml.trace.deep import gradient_norms, loss_graph
from traceml.trace.deep.late_numbers import MAX_COMING, LateNumbers, _Coming
from traceml.trace.deep.loss_graph import InnermostLayers, LayerSpan, usual_around


@pytest.fixture
def deep(begin_deep, monkeypatch):
    """A session with the deep profile that measures the norms of every step."""
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 1.0)
    return begin_deep()


def test_the_norm_of_each_layer_is_that_of_its_gradient_before_clipping(deep):
    model, wanted = Parts(one=nn.Linear(4, 4), act=nn.ReLU(), two=nn.Linear(4, 4)), []

    def clip():
        wanted.append(
            [
                math.hypot(*(float(p.grad.norm()) for p in layer.parameters()))
                for layer in (model.one, model.two)
            ]
        )
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    train(model, steps=12, beside=clip)
    found = deep()
    assert found.norms.steps == tuple(range(2, 13))  # the model is known from the first step on
    assert np.isnan(found.norms.values[:, [0, 2]]).all()  # these have no parameters of their own
    assert np.allclose(found.norms.values[:, [1, 3]], wanted[1:], rtol=1e-4)


class Overflows(nn.Module):
    """Returns infinity from a given call on, made of finite numbers."""

    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, inputs):
        self.calls += 1
        return inputs * 1e30 * 1e30 if self.calls >= self.at else inputs * 1.0


class OverflowsAsUsual(Overflows):
    """The same by the operations that it always does."""

    def forward(self, inputs):
        self.calls += 1
        return inputs * (1e30 if self.calls >= self.at else 1.0) * 1e20 * 1e-20


class OverflowsOnly(Overflows):
    """The same, and no operation at all before."""

    def forward(self, inputs):
        self.calls += 1
        return inputs * 1e30 * 1e30 if self.calls >= self.at else inputs


class _NanBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * float("nan")


class NanBackward(nn.Module):
    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0

    def forward(self, inputs):
        self.calls += 1
        return _NanBackward.apply(inputs) if self.calls >= self.at else inputs * 1.0


BAD_STEP = 11


def bad_value(found):
    return gradient_facts([found], {}).bad_value


def with_planted(planted):
    return Parts(
        first=nn.Linear(4, 4),
        act=nn.Tanh(),
        block=Parts(inner=nn.Linear(4, 4), planted=planted, after=nn.ReLU()),
        last=nn.Linear(4, 4),
    )


def twice(planted):
    """The same with another such layer behind it, which backward has passed and released."""
    return Parts(front=with_planted(planted), behind=FailsBackward())


@pytest.mark.parametrize("planted", [Overflows, OverflowsAsUsual, OverflowsOnly])
def test_the_layer_whose_output_becomes_infinite_is_named(deep, planted):
    train(with_planted(planted(BAD_STEP)), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "block.planted")
    assert (bad.kind, bad.finite_step) == (planted.__name__, BAD_STEP - 1)


def test_dropout_after_the_layer_that_makes_nan_is_not_blamed(deep):
    """On a CPU it multiplies by a mask, and saves nothing else."""

    class Logarithm(Overflows):
        def forward(self, inputs):
            self.calls += 1
            return torch.log(inputs - 1e3) if self.calls >= self.at else inputs * 1.0

    model = Parts(one=nn.Linear(4, 4), lost=Logarithm(BAD_STEP), drop=nn.Dropout(0.1))
    model.two = nn.Linear(4, 4)
    train(model, steps=BAD_STEP + 2)
    found = bad_value(deep())
    assert (found.layer, found.step) == ("lost", BAD_STEP)


class PassesOn(TorchDispatchMode):
    """Does what it sees, as the mode does that counts operations."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


def test_a_mode_that_sees_every_operation_hides_no_layer(deep):
    model = with_planted(OverflowsAsUsual(BAD_STEP))
    train(model, steps=BAD_STEP - 1)
    with PassesOn():
        train(model, steps=1)
    train(model, steps=5)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "block.planted")


class Scaled(nn.Linear):
    """Multiplies what it returns by a factor."""

    factor = 1.0

    def forward(self, inputs):
        return super().forward(inputs) * self.factor


class Attends(nn.Module):
    """Attention with a mask of minus infinity for what is hidden, as torch's own masks have it."""

    def __init__(self, at=10_000):
        super().__init__()
        self.queries, self.keys, self.values = Scaled(4, 4), Scaled(4, 4), nn.Linear(4, 4)
        self.at, self.calls = at, 0
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(2))

    def forward(self, inputs):
        self.calls += 1
        self.queries.factor = self.keys.factor = 1e30 if self.calls >= self.at else 1.0
        made = (layer(inputs[None, None]) for layer in (self.queries, self.keys, self.values))
        return nn.functional.scaled_dot_product_attention(*made, attn_mask=self.mask)[0, 0]


def test_the_mask_of_an_attention_is_no_bad_value(deep):
    train(Parts(attention=Attends(), later=with_planted(Overflows(BAD_STEP))), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "later.block.planted")


def test_an_attention_that_overflows_is_named_and_no_layer_that_it_calls(deep):
    train(Parts(one=nn.Linear(4, 4), attention=Attends(BAD_STEP), last=nn.Linear(4, 4)), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "attention")


class ActorAndCritic(nn.Module):
    """One part returns log-probabilities that are minus infinity where an action is not allowed."""

    def __init__(self, planted):
        super().__init__()
        self.actor, self.critic, self.planted = nn.Linear(4, 4), nn.Linear(4, 4), planted

    def forward(self, inputs):
        hidden = torch.tensor([False, False, True, False])
        actions = self.actor(inputs).masked_fill(hidden, float("-inf")).log_softmax(-1)
        return actions[:, :1] + self.critic(self.planted(inputs * self.critic.weight.sum()))


def test_what_is_hidden_in_one_part_of_a_model_is_not_what_another_part_lost(deep):
    train(ActorAndCritic(Overflows(BAD_STEP)), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "planted")


class Complex(nn.Module):
    """Multiplies by complex numbers, and overflows from a given call on."""

    def __init__(self, at):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4, dtype=torch.cfloat))
        self.at, self.calls = at, 0

    def forward(self, inputs):
        self.calls += 1
        found = inputs.to(torch.cfloat) @ self.weight
        if self.calls >= self.at:
            found = found * 1e30 * 1e30
        return (found * found).real


def test_complex_numbers_have_norms_and_bad_values(deep):
    model = Parts(one=nn.Linear(4, 4), planted=Complex(BAD_STEP), last=nn.Linear(4, 4))
    wanted = []
    train(model, steps=16, beside=lambda: wanted.append(float(model.planted.weight.grad.norm())))
    found = deep()
    norms = found.norms.values[:, found.names.index("planted")]
    before = BAD_STEP - 2  # the norms begin with step 2
    assert np.allclose(norms[:before], wanted[1 : BAD_STEP - 1], rtol=1e-4)
    bad = bad_value(found)
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "planted")


class AddsToItsInput(nn.Module):
    """Does something itself after the layer that it calls, and before it."""

    def __init__(self, planted):
        super().__init__()
        self.inner, self.planted = nn.Linear(4, 4), planted

    def forward(self, inputs):
        return inputs + self.planted(self.inner(inputs) * 1.0)


@pytest.mark.parametrize("planted", [Overflows, OverflowsAsUsual, OverflowsOnly])
def test_a_layer_between_operations_of_the_one_that_calls_it_is_named(deep, planted):
    train(with_planted(AddsToItsInput(planted(BAD_STEP))), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "block.planted.planted")


class OverflowsAfterItsLayer(nn.Module):
    """Returns what its layer does, and from a given call on more than that."""

    def __init__(self, at):
        super().__init__()
        self.inner, self.at, self.calls = nn.Linear(4, 4), at, 0

    def forward(self, inputs):
        self.calls += 1
        found = self.inner(inputs)
        return found * 1e30 * 1e30 if self.calls >= self.at else found


class WithReluOfItsOwn(nn.Module):
    """Applies functions between its layers, and more of them from a given call on."""

    def __init__(self, block, at=10_000):
        super().__init__()
        self.block, self.last, self.at, self.calls = block, nn.Linear(4, 4), at, 0

    def forward(self, inputs):
        self.calls += 1
        found = self.block(inputs)
        if self.calls >= self.at:
            found = found * 1e30 * 1e30
        return self.last(found.relu())


class Doubles(nn.Module):
    def forward(self, inputs):
        return inputs * 2.0


@pytest.mark.parametrize(
    ("model", "inner"),
    [
        pytest.param(
            WithReluOfItsOwn(OverflowsAfterItsLayer(BAD_STEP)),
            "layer block (OverflowsAfterItsLayer)",
            id="a block, after its layer",
        ),
        pytest.param(
            WithReluOfItsOwn(Parts(inner=nn.Linear(4, 4), own=Doubles()), BAD_STEP),
            "layer block.own (Doubles), layer block (Parts)",
            id="the model, after its block",
        ),
    ],
)
def test_new_operations_where_calls_end_may_be_those_of_each(deep, model, inner):
    """Which operations lie in which call is only known of a step without them."""
    train(model, steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase) == (BAD_STEP, "forward")
    said = f"{inner} or the model itself (WithReluOfItsOwn) was the first"
    assert said in bad_value_sentence(bad).replace("Layer", "layer", 1)


def test_new_operations_after_the_last_layer_may_be_those_of_the_loss(deep):
    train(Parts(one=nn.Linear(4, 4), own=Overflows(BAD_STEP)), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer, bad.or_loss) == (BAD_STEP, "forward", "own", True)
    said = f"{bad_value_sentence(bad)} {bad_value_advice(bad, '')}"
    assert "the model itself (Parts) or the loss function was the first to return" in said
    assert "Look at what own, the model itself and the loss function compute in" in said


class OverflowsBetweenLayers(nn.Module):
    """Does so in its own `forward`, between two layers of torch's."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, inputs):
        self.calls += 1
        inputs = self.inner(inputs)
        return self.outer(inputs * 1e30 * 1e30 if self.calls >= BAD_STEP else inputs)


def test_an_operation_between_layers_of_torch_belongs_to_the_module_that_calls_them(deep):
    train(with_planted(OverflowsBetweenLayers()), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "block.planted")


def test_the_layer_whose_backward_gives_nan_is_named(deep):
    train(with_planted(NanBackward(BAD_STEP)), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "backward", "block.planted")
    assert bad.finite_layer == "last"


class NormOfZero(nn.Module):
    """Has a weight; from a given call on its rows are zeros, where a root has no gradient."""

    def __init__(self, at):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.at, self.calls = at, 0

    def forward(self, inputs):
        self.calls += 1
        rows = inputs * (0.0 if self.calls >= self.at else 1.0)
        return self.weight * rows / (rows.square().sum(-1, keepdim=True).sqrt() + 1e-3)


def test_a_layer_with_parameters_that_loses_the_gradient_of_its_inputs_is_named(deep):
    train(Parts(one=nn.Linear(4, 4), norm=NormOfZero(BAD_STEP), two=nn.Linear(4, 4)), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "backward", "norm")
    assert (bad.kind, bad.others, bad.finite_layer) == ("NormOfZero", (), "norm")


class WithPositions(nn.Module):
    """Adds the weights of a layer that it never calls, as positions are often added to words."""

    def __init__(self, body):
        super().__init__()
        self.positions, self.body = nn.Embedding(1, 4), body

    def forward(self, inputs):
        return self.body(inputs + self.positions.weight)


def test_a_layer_that_is_never_called_is_not_taken_for_the_first_of_backward(deep):
    train(WithPositions(with_planted(NanBackward(BAD_STEP))), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "backward", "body.block.planted")
    assert bad.finite_layer == "body.last"


def test_a_loss_that_is_lost_outside_of_any_layer_is_no_layer_s(deep):
    model = with_planted(nn.Identity())
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, 17):
        out = model(torch.randn(2, 4)).square().mean()
        loss = (out - out).sqrt() / 0.0 if step >= BAD_STEP else out
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", None)


class _TimesBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs, factor):
        context.factor = factor
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


class GrowsBackward(nn.Module):
    """A layer whose gradient is three times larger in every step, from a given one on."""

    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs):
        self.calls += 1
        factor = 3.0 ** max(0, self.calls - self.at)
        return _TimesBackward.apply(self.inner(inputs), factor)


def test_the_layer_whose_gradient_explodes_is_named(deep):
    model = with_planted(GrowsBackward(20))
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    for _ in range(30):
        loss = model(torch.randn(64, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rise = gradient_facts([deep()], {}).rise
    assert rise.layer == "block.planted.inner"
    assert 22 <= rise.layer_step <= 24 and rise.layer_step < rise.step <= 28 and rise.lasts
    assert rise.layer_norm > 20 * rise.layer_usual and rise.norm > 100 * rise.usual


def gan_step(generator, critic, optimizers):
    fake = generator(torch.randn(8, 4))
    optimizers[1].zero_grad()
    (critic(fake.detach()).mean() - critic(torch.randn(8, 4)).mean()).backward()
    optimizers[1].step()
    optimizers[0].zero_grad()
    (-critic(fake).mean()).backward()
    optimizers[0].step()


def test_a_healthy_gan_is_silent(deep):
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(each.parameters(), 1e-3) for each in (generator, critic)]
    for _ in range(40):
        gan_step(generator, critic, optimizers)
    found = gradient_facts([deep()], {})
    assert found.steps > 20 and found.bad_value is None and found.rise is None


class _HalfBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient.half().float()  # overflows above 65,504


class HalfBackward(nn.Module):
    def forward(self, inputs):
        return _HalfBackward.apply(inputs)


def test_steps_that_a_scaler_skips_are_silent_and_its_factor_is_taken_out(deep):
    torch.manual_seed(0)
    model = with_planted(HalfBackward())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    skipped = []
    for _ in range(40):
        loss = model(torch.randn(8, 4)).square().mean() * 4
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        skipped.append(not all(p.grad.isfinite().all() for p in model.parameters()))
        scaler.step(optimizer)
        scaler.update()
    assert any(skipped[10:])  # the scaler goes on trying
    facts = gradient_facts([deep()], {})
    assert facts.steps > 20 and facts.rise is None and facts.usual < 100
    assert facts.bad_value is None or facts.bad_value.is_scaled


def test_training_is_the_same_with_norms_and_activations(deep):
    def trained():
        torch.manual_seed(1)
        model = Parts(one=nn.Linear(4, 8), drop=nn.Dropout(0.2), two=nn.Linear(8, 4))
        train(model, steps=30)
        return model.state_dict()

    seen = trained()
    assert deep().norms.steps
    for name, value in trained().items():  # the session is over
        assert torch.equal(value, seen[name]), name


def test_no_model_is_kept_alive(deep):
    model = Parts(one=nn.Linear(4, 4))
    train(model, steps=3)
    gone = weakref.ref(model.one.weight)
    del model
    gc.collect()
    assert gone() is None


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs, error):
        context.error = error
        context.save_for_backward(inputs)
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        if context.error is not None:
            raise context.error
        return gradient, None


class FailsBackward(nn.Module):
    """Fails in the backward pass between its two layers."""

    def __init__(self):
        super().__init__()
        self.before, self.after, self.error = nn.Linear(4, 4), nn.Linear(4, 4), None

    def forward(self, inputs):
        passed = _FailsBackward.apply(torch.sigmoid(self.before(inputs)), self.error)
        return self.after(passed)


def failed_in_backward(traced, error):
    planted = FailsBackward()
    model = twice(planted)
    train(model, steps=8)
    planted.error = error
    with pytest.raises(type(error)):
        train(model, steps=1)
    traced.finish()
    (found,) = [said for said in traced.messages() if said["kind"] == "failure"]
    assert found["phase"] == "backward"
    return found["module"]


OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."


@pytest.mark.parametrize("error", [RuntimeError(OUT_OF_MEMORY), ArithmeticError("mine")])
@pytest.mark.parametrize("is_deep", [True, False])
def test_the_layer_whose_backward_fails_is_named(traced, error, is_deep):
    if is_deep:
        traced.session.begin_deep_profile()
    assert failed_in_backward(traced, error) == "front.block.planted"


class _FailsWithoutSaving(_FailsBackward):
    @staticmethod
    def forward(context, inputs, error):
        context.error = error
        return inputs.clone()


class FailsWithoutSaving(nn.Module):
    """Fails in the backward pass of an operation that has saved nothing: from what is released it
    cannot be told that backward has reached it."""

    def __init__(self):
        super().__init__()
        self.error = None

    def forward(self, inputs):
        return _FailsWithoutSaving.apply(inputs, self.error)


@pytest.mark.parametrize("is_deep", [True, False])
def test_a_function_that_saves_nothing_and_fails_is_not_attributed_to_the_layer_before_it(
    traced, is_deep
):
    if is_deep:
        traced.session.begin_deep_profile()
    planted = FailsWithoutSaving()
    model = Parts(before=nn.Linear(4, 4), planted=planted, after=nn.Linear(4, 4))
    train(model, steps=8)
    planted.error = RuntimeError(OUT_OF_MEMORY)
    with pytest.raises(RuntimeError, match="allocate"):
        train(model, steps=1)
    traced.finish()
    (found,) = [said for said in traced.messages() if said["kind"] == "failure"]
    assert (found["phase"], found["module"]) == ("backward", "planted" if is_deep else None)


def test_an_error_before_backward_began_is_no_layer_s(traced):
    model = with_planted(nn.Identity())
    train(model, steps=3)
    with pytest.raises(RuntimeError, match="scalar outputs"):
        model(torch.randn(2, 4)).backward()
    traced.finish()
    (found,) = [said for said in traced.messages() if said["kind"] == "failure"]
    assert (found["phase"], found["module"]) == ("backward", None)


def largest_by_name(found, row=0):
    return dict(zip(found.names, found.largest.values[row].tolist(), strict=True))


class Constant(nn.Module):
    """Returns a number that is known beforehand, whatever it is given."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, inputs):
        return inputs * 0 + self.number


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_activation_of_each_layer_is_seen_after_an_alarm(deep, dtype):
    model = Parts(
        one=nn.Linear(4, 4), large=Constant(-4096.0), last=nn.Linear(4, 4), spike=GrowsBackward(6)
    )
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for step in range(24):
        model.spike.at = 6 if step < 12 else 10_000  # a gradient that explodes, and comes back
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = model(torch.randn(2, 4)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = deep()
    assert found.largest.steps
    assert largest_by_name(found)["large"] == 4096.0
    order = [found.names[place] for place in found.return_order]
    assert order.index("one") < order.index("large") < order.index("last") < order.index("")
    assert gradient_facts([found], {}).bad_value is None


class Recomputed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return checkpoint(self.inner, inputs, use_reentrant=False)


def test_what_a_hook_has_packed_is_left_alone(traced):
    """Looking at the graph must not compute a checkpointed block again, nor guess."""
    planted, calls = FailsBackward(), []
    model = Parts(front=nn.Linear(4, 4), block=Recomputed(planted), last=nn.Linear(4, 4))
    train(model, steps=4)
    planted.register_forward_hook(lambda *_: calls.append(1))
    planted.error = RuntimeError(OUT_OF_MEMORY)
    with pytest.raises(RuntimeError, match="allocate"):
        train(model, steps=1)
    assert len(calls) <= 2  # forward, and once more in backward
    traced.finish()
    (found,) = [said for said in traced.messages() if said["kind"] == "failure"]
    assert found["phase"] == "backward" and found["module"] in (None, "block.inner")


def test_norms_are_measured_as_often_as_their_share_of_the_time_allows(begin_deep, monkeypatch):
    """On a clock on which a step takes a second, measuring its norms a twentieth of one,
    and sending for them and reading them another each."""
    now = [0]

    def clock():
        now[0] += 50_000_000
        return now[0]

    def pass_time():
        now[0] += 950_000_000

    monkeypatch.setattr(gradient_norms, "perf_counter_ns", clock)
    deep = begin_deep()
    train(Parts(one=nn.Linear(4, 4)), steps=400, beside=pass_time)
    assert len(deep().norms.steps) == pytest.approx(400 * gradient_norms.NORMS_SHARE / 0.15, abs=1)


def test_the_first_step_that_can_be_measured_is(begin_deep, monkeypatch):
    """In the one before it no model is known: looking for it in vain may not use up the budget."""
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 1e-12)
    deep = begin_deep()
    train(Parts(one=nn.Linear(4, 4)), steps=6)
    assert deep().norms.steps == (2,)


def test_of_a_long_run_the_first_and_the_last_norms_are_kept_and_ever_fewer_between(
    deep, monkeypatch
):
    monkeypatch.setattr(gradient_norms, "MAX_NUMBERS", 60)  # of the model and its layer, 30 steps
    train(Parts(one=nn.Linear(4, 4)), steps=300)
    steps = deep().norms.steps
    assert steps[:9] == tuple(range(2, 11)) and steps[-10:] == tuple(range(291, 301))
    assert 19 < len(steps) <= 30


def test_a_forked_child_begins_anew(deep, traced):
    train(Parts(one=nn.Linear(4, 4)), steps=3)
    child = os.fork()
    if child == 0:
        train(Parts(other=nn.Linear(4, 4)), steps=3)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    train(Parts(one=nn.Linear(4, 4)), steps=3)
    traced.finish()
    by_pid = {each.pid: each for each in read_layers(traced.folder)}
    assert "one" in by_pid[os.getpid()].names and "other" not in by_pid[os.getpid()].names


def test_a_loss_that_a_scaler_skips_for_ever_names_its_layer(deep):
    torch.manual_seed(0)
    model = with_planted(OverflowsAsUsual(BAD_STEP))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(20):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "block.planted")


def test_an_operation_that_is_not_as_usual_belongs_to_what_it_stands_in_the_place_of():
    usual = ["linear one", "mul", "add", "norm two", "linear two"]
    found = ["linear one", "sub", "log", "add", "norm two", "relu", "linear two"]
    around = usual_around(usual, found)
    assert around == [(0, 0), (1, 1), (1, 1), (2, 2), (3, 3), (3, 4), (4, 4)]
    assert usual_around(["a", "a", "b"], ["a", "b"]) in ([(0, 0), (2, 2)], [(1, 1), (2, 2)])
    assert usual_around([], ["new"]) == [(None, None)]


def test_graphs_that_differ_in_very_much_are_not_compared_one_by_one(monkeypatch):
    def compare(*given, **options):
        raise AssertionError("training waits for this")

    monkeypatch.setattr(loss_graph, "SequenceMatcher", compare)
    usual, found = ["a", *(["b", "c"] * 5000), "d"], ["a", *(["c", "e"] * 5000), "d"]
    around = usual_around(usual, found)
    assert around[0] == (0, 0) and around[-1] == (len(usual) - 1, len(usual) - 1)
    assert set(around[1:-1]) == {(None, None)}


def test_parameters_that_a_lost_gradient_has_spoiled_tell_which_layer_lost_it(traced):
    """With norms measured as seldom as usual, the first that is seen is the next step's loss."""
    traced.session.begin_deep_profile()
    train(with_planted(NanBackward(BAD_STEP)), steps=16)
    traced.finish()
    (found,) = read_layers(traced.folder)
    bad = bad_value(found)
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "backward", "block.planted")


def test_parameters_that_are_all_lost_to_clipping_name_no_layer(traced, monkeypatch):
    """A clipped norm that is lost is in every gradient: nothing tells whose it was."""
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 0.0)  # no norm of that step is measured
    traced.session.begin_deep_profile()
    model = with_planted(NanBackward(BAD_STEP))
    train(model, steps=16, beside=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    traced.finish()
    (found,) = read_layers(traced.folder)
    bad = bad_value(found)
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "backward", None)
    assert bad.is_of_parameters
    assert bad_value_sentence(bad) == (
        f"Parameters were NaN or infinite after step {BAD_STEP}, whose gradients were not "
        "measured: a gradient or the update had become so."
    )


def train_until_parameters_are_lost(model, spoil):
    """Trains, and calls a function with the optimizer in the step in which it does so."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, 17):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        if step == BAD_STEP:
            spoil(optimizer)
        optimizer.step()


def test_parameters_that_the_script_spoils_are_not_laid_to_a_gradient(deep):
    model = with_planted(nn.Identity())

    def spoil(optimizer):
        with torch.no_grad():
            model.block.inner.weight[1, 2] = math.nan

    train_until_parameters_are_lost(model, spoil)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "optimizer", "block.inner")
    assert bad_value_sentence(bad) == (
        f"Parameters of layer block.inner (Linear) were NaN or infinite after step {BAD_STEP}, "
        "although every gradient of it was finite: the optimizer's update made them so, or code "
        "that writes to parameters."
    )


def test_a_frozen_layer_whose_parameters_are_lost_has_no_gradient_to_blame(deep):
    model = with_planted(nn.Identity())
    model.block.inner.requires_grad_(False)

    def spoil(optimizer):
        model.block.inner.weight[1, 2] = math.nan

    train_until_parameters_are_lost(model, spoil)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "optimizer", "block.inner")


def test_an_update_that_spoils_all_parameters_is_no_layer_s(deep):
    def spoil(optimizer):
        optimizer.param_groups[0]["lr"] = math.inf

    train_until_parameters_are_lost(with_planted(nn.Identity()), spoil)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "optimizer", None)


def test_frozen_parameters_that_are_lost_where_no_norm_was_measured(traced, monkeypatch):
    """Nothing is said of gradients that nobody measured."""
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 0.0)
    traced.session.begin_deep_profile()
    model = with_planted(nn.Identity())
    model.block.inner.requires_grad_(False)

    def spoil(optimizer):
        model.block.inner.weight[1, 2] = math.nan

    train_until_parameters_are_lost(model, spoil)
    traced.finish()
    (found,) = read_layers(traced.folder)
    bad = bad_value(found)
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "optimizer", "block.inner")
    assert bad_value_sentence(bad) == (
        f"Parameters of layer block.inner (Linear) were NaN or infinite after step {BAD_STEP}; "
        "they have no gradient: code that writes to parameters made them so."
    )


def test_parameters_that_are_lost_before_the_first_step_are_no_step_s(deep):
    model = with_planted(nn.Identity())
    with torch.no_grad():
        model.block.inner.weight[1, 2] = math.nan
    train(model, steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (1, "start", "block.inner")
    assert bad.finite_step is None
    assert bad_value_sentence(bad) == (
        "Parameters of layer block.inner (Linear) were NaN or infinite before the first step: no "
        "step made them so."
    )
    advice = bad_value_advice(bad, "")
    assert advice is not None and "the weights that were loaded" in advice


def test_a_first_loss_that_nothing_explains_is_no_later_layer_s(deep):
    """No step has shown yet to which layer an operation without parameters belongs."""
    train(with_planted(Overflows(1)), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (1, "forward", None)
    assert bad_value_sentence(bad) == (
        "The loss of step 1 was NaN or infinite; no layer is known to have caused it: the loss "
        "function itself may have."
    )
    advice = bad_value_advice(bad, "")
    assert advice is not None and "loss function" in advice and "anomaly" not in advice


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("lose", ["square", "softmax"], ids=["input seen", "result seen"])
def test_a_loss_behind_a_checkpointed_model_is_no_last_layer_s(deep, use_reentrant, lose):
    """What the layers have saved is packed, or hidden: any of them may have been the first."""
    model = with_planted(nn.Identity())
    model.block.planted = planted = OverflowsAsUsual(10_000)
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, 17):
        planted.at = 0 if step >= BAD_STEP else 10_000
        batch = torch.randn(2, 4, requires_grad=True)
        out = checkpoint(model, batch, use_reentrant=use_reentrant)
        loss = out.square().mean() if lose == "square" else out.softmax(-1)[:, 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", None)
    assert bad.is_packed and "checkpointing" in bad_value_sentence(bad)
    advice = bad_value_advice(bad, "")
    assert advice is not None and "script's own layers compute (OverflowsAsUsual" in advice


class OverflowsAsUsualBetweenLayers(OverflowsBetweenLayers):
    """The same by the operations that it always does."""

    def forward(self, inputs):
        self.calls += 1
        factor = 1e30 if self.calls >= BAD_STEP else 1.0
        return self.outer(self.inner(inputs) * factor * factor)


def test_advice_on_the_model_itself_names_it(deep):
    train(OverflowsAsUsualBetweenLayers(), steps=16)
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "forward", "")
    advice = bad_value_advice(bad, "")
    assert advice is not None and advice.startswith("Look at what the model itself computes in")


def test_a_loss_whose_own_backward_is_lost_is_no_layer_s(deep):
    model = with_planted(nn.Identity())
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, 17):
        out = model(torch.randn(2, 4))
        loss = out.square().mean()
        if step == BAD_STEP:
            loss = loss + (out - out.detach()).square().sum().sqrt()  # finite, its gradient is not
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer) == (BAD_STEP, "backward", None)
    assert bad_value_sentence(bad).startswith(
        f"Every layer's gradient was NaN or infinite in step {BAD_STEP}, although the loss was"
    )


def test_a_batch_that_is_not_finite_is_no_layer_s(deep):
    model = with_planted(nn.Identity())
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(1, 17):
        batch = torch.randn(2, 4)
        if step >= BAD_STEP:
            batch[0, 0] = math.nan
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    bad = bad_value(deep())
    assert (bad.step, bad.phase, bad.layer, bad.is_of_inputs) == (BAD_STEP, "forward", None, True)


def test_rows_of_ever_other_lengths_keep_little_memory():
    numbers, passed = LateNumbers(), SimpleNamespace(query=lambda: True)
    for length in range(1, 50):
        row = _Coming(None, torch.zeros(length), passed)
        numbers._coming.append(row)
        assert [values for _, values in numbers.arrived()] == [[0.0] * length]
        assert numbers._free_row(length) is row.host
        numbers._free.append(row.host)
    assert len(numbers._free) == MAX_COMING


def nested_spans(random, first, end, depth=0):
    """Calls as they return: those inside a call before it."""
    found, at = [], first
    while depth < 4 and at < end and random.random() < 0.8:
        inner = random.randint(at, end)
        found += nested_spans(random, at, inner, depth + 1)
        at = inner + random.randint(0, 2)
    return [*found, LayerSpan(random.randint(0, 99), first, end)]


def test_an_operation_belongs_to_the_innermost_call_that_holds_it():
    random = Random(0)
    for _ in range(200):
        spans = nested_spans(random, 5, 60)
        innermost = InnermostLayers(spans)
        for number in range(70):
            around = [span for span in spans if span.first <= number < span.end]
            expected = min(around, key=lambda span: span.end - span.first, default=None)
            assert innermost.at(number) == (None if expected is None else expected.place)
    assert InnermostLayers([]).at(3) is None


def test_what_is_done_between_two_operations_may_be_of_any_call_that_ends_or_begins_there():
    """The model is 0; 1 calls 2, and 3 calls 4."""
    calls = [(2, 5, 6), (1, 5, 6), (4, 8, 9), (3, 8, 9), (0, 5, 10)]
    innermost = InnermostLayers([LayerSpan(*call) for call in calls])
    assert innermost.between(5, 6) == [2, 1, 0]
    assert innermost.between(6, 7) == [0]
    assert innermost.between(7, 8) == [0, 3, 4]
    assert innermost.between(9, None) == [0, None]
    assert innermost.between(None, 5) == [None, 0, 1, 2]


def test_operations_of_very_many_calls_are_looked_up_quickly():
    spans = [LayerSpan(number % 7, 2 * number, 2 * number + 2) for number in range(40_000)]
    spans.append(LayerSpan(9, 0, 100_000))
    compared = []

    class Counted(LayerSpan):
        @property
        def first(self):
            compared.append(self)
            return self[1]

    innermost = InnermostLayers([Counted(*span) for span in spans])
    assert [innermost.at(2 * number) for number in (0, 8, 39_999, 49_999)] == [0, 1, 1, 9]
    assert len(compared) < 10 * len(spans)


def test_of_parameters_that_are_spread_over_ranks_only_the_own_part_is_looked_at():
    """Asking for the whole may mean to wait for ranks that have no reason to ask."""

    def layer(*parts):
        spread = {
            str(place): SimpleNamespace(_local_tensor=part) for place, part in enumerate(parts)
        }
        return SimpleNamespace(module=SimpleNamespace(_parameters=spread))

    fine, bad = torch.ones(3), torch.tensor([1.0, torch.nan])
    layers = [layer(fine), layer(fine, bad), layer(torch.ones(0)), layer()]
    assert loss_graph.places_with_bad_parameters(layers) == [1]
    spread = SimpleNamespace(_local_tensor=fine)  # the storage of a real one has no address
    assert autograd_graph._memory(spread) == fine.untyped_storage().data_ptr()
