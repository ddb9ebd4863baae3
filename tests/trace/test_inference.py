"""`time_inference`: latency and throughput of a model, on a clock of the test's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import traceml
from traceml.store import logged
from traceml.trace import inference
from traceml.trace.inference import percentile


class Clock:
    """A clock that moves only when the model works."""

    def __init__(self):
        self.ns = 0

    def __call__(self):
        return self.ns


class Working(nn.Module):
    """Takes the next of these milliseconds; remembers how it was called."""

    def __init__(self, clock, times_ms):
        super().__init__()
        self.clock = clock
        self.times_ms = list(times_ms)
        self.seen = []
        self.dropout = nn.Dropout()

    def forward(self, *inputs, **named):
        place = len(self.seen) % len(self.times_ms)
        self.clock.ns += int(self.times_ms[place] * 1e6)
        self.seen.append((self.training, torch.is_grad_enabled(), inputs, named))
        return inputs


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(inference, "now_ns", made)
    return made


def test_percentiles_and_throughput_leave_the_warmup_out(clock):
    warmup, timed = [1000.0] * 10, [float(ms) for ms in range(1, 101)]
    model = Working(clock, [*warmup, *timed, *[2.0] * 100])
    found = traceml.time_inference(model, torch.zeros(8, 3), max_s=1e9)
    assert (found.calls, found.batch_size, found.device) == (100, 8, "cpu")
    assert found.latency_mean_ms == pytest.approx(50.5)
    for share in (50, 90, 95, 99):
        assert getattr(found, f"latency_p{share}_ms") == pytest.approx(np.percentile(timed, share))
    assert (found.latency_min_ms, found.latency_max_ms) == pytest.approx((1.0, 100.0))
    assert found.throughput_per_s == pytest.approx(8 * 1000 / 2.0)
    assert found.gpu_p50_ms is None


@pytest.mark.parametrize("count", [1, 2, 7])
def test_percentiles_are_numpys(count):
    values = [float(n * 37 % 11) for n in range(count)]
    for share in (0.0, 0.5, 0.95, 1.0):
        assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))


def test_the_model_evaluates_without_gradients_and_keeps_its_mode(clock):
    model = Working(clock, [1.0])
    model.dropout.eval()
    traceml.time_inference(model, torch.zeros(2), calls=3, warmup=1)
    assert {(training, grad) for training, grad, *_ in model.seen} == {(False, False)}
    assert (model.training, model.dropout.training) == (True, False)


class Merging(nn.Linear):
    """As LoRA's layers: `eval()` merges two weights, `train()` takes them apart."""

    def __init__(self):
        super().__init__(2, 2)
        self.low = nn.Parameter(torch.ones(2, 2))
        self.merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode is self.merged:
            self.weight.data += -self.low.data if mode else self.low.data
            self.merged = not mode
        return self

    def forward(self, x):
        return super().forward(x) if self.merged else super().forward(x) + x @ self.low.T


def test_a_module_that_merges_its_weights_to_evaluate_takes_them_apart_again():
    model = nn.Sequential(Merging(), nn.Sequential(Merging(), nn.Dropout()))
    model[1].eval()
    traceml.time_inference(model, torch.ones(1, 2), calls=1, warmup=0)
    assert (model[0].training, model[0].merged) == (True, False)
    assert (model[1][0].training, model[1][0].merged) == (False, True)
    model(torch.ones(1, 2)).sum().backward()
    assert model[0].low.grad is not None


def test_what_a_model_keeps_from_a_call_can_be_trained_with():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.table = None

        def forward(self, x):
            if self.table is None:
                self.table = torch.ones(2)
            return self.linear(x) * self.table

    model = Keeping()
    traceml.time_inference(model, torch.ones(1, 2), calls=1, warmup=0)
    model(torch.ones(1, 2)).sum().backward()
    assert model.linear.weight.grad is not None


def test_a_module_of_two_parents_and_one_that_is_deaf_keep_their_modes():
    class Deaf(nn.Module):
        def train(self, mode=True):
            return super().train(False)

        def forward(self, x):
            return x

    shared = nn.Dropout()
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared), Deaf())
    model.training = shared.training = False
    before = [module.training for module in model.modules()]
    traceml.time_inference(model, torch.ones(1), calls=1, warmup=0)
    assert [module.training for module in model.modules()] == before
    assert True in before


def test_a_model_that_fails_keeps_its_mode_and_its_error(clock):
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    model = Failing()
    with pytest.raises(KeyError, match="mine"):
        traceml.time_inference(model, torch.zeros(2))
    assert model.training


@pytest.mark.parametrize(
    ("batch", "inputs", "named", "size"),
    [
        pytest.param(3, (3,), {}, None, id="one thing"),
        pytest.param((1, 2), (1, 2), {}, None, id="a tuple"),
        pytest.param({"x": torch.zeros(4, 2)}, (), {"x"}, 4, id="by name"),
        pytest.param([torch.zeros(()), torch.zeros(5)], None, {}, 5, id="tensors"),
    ],
)
def test_a_batch_is_passed_as_models_take_it(clock, batch, inputs, named, size):
    model = Working(clock, [1.0])
    found = traceml.time_inference(model, batch, calls=1, warmup=0)
    assert found.batch_size == size
    *_, seen, seen_named = model.seen[0]
    assert set(seen_named) == set(named)
    if inputs is not None:
        assert seen == inputs


def test_time_is_bounded_and_some_calls_are_always_made(clock):
    model = Working(clock, [600.0])
    found = traceml.time_inference(model, torch.zeros(1), max_s=1.0)
    assert found.calls == inference.MIN_CALLS
    assert found.throughput_per_s == pytest.approx(1 / 0.6)
    assert len(model.seen) == 1 + inference.MIN_CALLS + 1


def test_the_time_is_for_warmup_latency_and_throughput_together(clock):
    found = traceml.time_inference(Working(clock, [100.0]), torch.zeros(1), warmup=50, max_s=6.0)
    assert found.calls == 20
    assert clock.ns == pytest.approx(6e9, rel=0.01)


def test_a_clock_that_stands_still_gives_no_throughput(clock):
    found = traceml.time_inference(Working(clock, [0.0]), torch.zeros(1), calls=2)
    assert found.throughput_per_s is None
    assert "inference/throughput_per_s" not in found.metrics()


@pytest.mark.parametrize("wrong", [{"calls": 0}, {"warmup": -1}, {"max_s": 0}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match="expected warmup"):
        traceml.time_inference(nn.Identity(), torch.zeros(1), **wrong)


def test_they_are_metrics_of_the_run_with_their_direction(traced, clock):
    traceml.time_inference(Working(clock, [2.0]), torch.zeros(4), name="serve", calls=5, step=3)
    traced.finish()
    found = {each.name: each for each in logged.reduce_metrics(traced.messages())}
    assert found["serve/latency_p95_ms"].last == pytest.approx(2.0)
    assert found["serve/latency_p95_ms"].higher_is_better is False
    assert found["serve/throughput_per_s"].last == pytest.approx(2000.0)
    assert found["serve/throughput_per_s"].higher_is_better is True
    assert found["serve/latency_p50_ms"].last_step == 3
