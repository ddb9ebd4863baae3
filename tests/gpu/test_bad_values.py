"""Gradient norms, activations and memory by layer on a GPU: nothing waits for it."""

import json
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from traceml.facts.gradients import gradient_facts  # noqa: E402
from traceml.trace import current  # noqa: E402
from traceml.trace import loss as reads_losses  # noqa: E402
from traceml.trace.deep import gradient_norms  # noqa: E402

WIDTH = 256


@pytest.fixture
def deep(begin_deep, monkeypatch):
    """A session with the deep profile that measures norms as often as they can be read."""
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 1e9)
    return begin_deep()


class NanBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs, is_bad):
        context.is_bad = is_bad
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * (math.nan if context.is_bad else 1.0), None


class Planted(nn.Module):
    def __init__(self, forward_at=math.inf, backward_at=math.inf):
        super().__init__()
        self.calls, self.forward_at, self.backward_at = 0, forward_at, backward_at

    def forward(self, inputs):
        self.calls += 1
        inputs = inputs * (math.inf if self.calls >= self.forward_at else 1.0)
        return NanBackward.apply(inputs, self.calls >= self.backward_at)


def model_with(planted):
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), planted, nn.Linear(WIDTH, WIDTH), nn.ReLU()
    ).cuda()


def train(model, steps, dtype=None, clip=False):
    norms = []
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for _ in range(steps):
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = model(torch.randn(64, WIDTH, device="cuda")).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        torch.cuda.synchronize()  # so that each step's norms have come before the next
    return [float(norm) for norm in norms]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_norms_are_those_before_clipping(deep, dtype):
    wanted = train(model_with(nn.Identity()), 20, dtype, clip=True)
    found = deep()
    assert len(found.norms.steps) >= 15
    totals = np.sqrt(np.nansum(found.norms.values**2, axis=1))
    expected = [wanted[step - 1] for step in found.norms.steps]
    assert np.allclose(totals, expected, rtol=1e-3)


def test_a_gradient_that_is_lost_in_backward_names_its_layer(deep):
    train(model_with(Planted(backward_at=12)), 20)
    bad = gradient_facts([deep()], {}).bad_value
    assert (bad.step, bad.phase, bad.layer) == (12, "backward", "2")


def test_a_value_that_is_lost_in_forward_is_told_from_one_lost_in_backward(deep):
    train(model_with(Planted(forward_at=12)), 20)
    bad = gradient_facts([deep()], {}).bad_value
    assert (bad.step, bad.phase) == (12, "forward")


def test_a_loss_that_grows_has_the_next_steps_measured(begin_deep, monkeypatch):
    """Nothing is measured but what the growth of the loss asks for, once it is known."""
    monkeypatch.setattr(gradient_norms, "NORMS_SHARE", 0.0)
    monkeypatch.setattr(reads_losses, "SENT_EVERY_NS", 0)  # however quick these steps are
    deep = begin_deep()
    model, at = model_with(nn.Identity()), 40
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for step in range(120):
        loss = model(torch.randn(64, WIDTH, device="cuda")).square().mean()
        optimizer.zero_grad()
        (loss + (1e3 if step >= at else 0.0)).backward()
        optimizer.step()
        torch.cuda.synchronize()
    growing = [step for step in deep().norms.steps if step > at]
    assert len(growing) >= gradient_norms.GROWING_STEPS


def test_activations_are_looked_at_after_an_alarm(deep):
    """A script that skips what is not finite: the layer goes on making bad values."""
    model = model_with(Planted(forward_at=12))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for _ in range(24):
        loss = model(torch.randn(64, WIDTH, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        optimizer.step()
        torch.cuda.synchronize()
    found = deep()
    bad = found.largest.values[np.isinf(found.largest.values).any(axis=1)]
    assert len(bad)
    values = dict(zip(found.names, bad[0], strict=True))
    assert math.isinf(values["2"]) and math.isfinite(values["0"]) and math.isfinite(values["1"])


def test_looking_never_waits_for_the_gpu(traced_as_usual):
    """Torch itself raises where anything synchronises, once it is asked to."""
    model = model_with(nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    inputs = torch.randn(64, WIDTH, device="cuda")
    current.current().begin_deep_profile()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(60):
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    traced_as_usual()  # which asserts that none of our hooks failed


def test_training_is_the_same_bit_by_bit(deep):
    def trained():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.GELU(), nn.Linear(WIDTH, WIDTH)
        ).cuda()
        torch.cuda.manual_seed(1)
        train(model, 25)
        return {name: value.cpu() for name, value in model.state_dict().items()}

    seen = trained()
    assert deep().norms.steps
    for name, value in trained().items():  # the session is over
        assert torch.equal(value, seen[name]), name


OUT_OF_MEMORY_IN_BACKWARD = """\
import torch
from torch import nn

class Greedy(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs, is_greedy):
        context.is_greedy = is_greedy
        context.save_for_backward(inputs)
        return inputs.clone()

    @staticmethod
    def backward(context, gradient):
        if context.is_greedy:
            torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
        return gradient, None

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after, self.is_greedy = nn.Linear(512, 512), nn.Linear(512, 512), False

    def forward(self, x):
        return self.after(Greedy.apply(self.before(x), self.is_greedy))

model = nn.Sequential(*[Block() for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(20):
    model[2].is_greedy = step == 14
    loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_memory_that_runs_out_in_backward_is_told_by_layer(tmp_path):
    (tmp_path / "train.py").write_text(OUT_OF_MEMORY_IN_BACKWARD)
    words = [
        "run",
        "--profile=deep",
        "--mode=summary",
        "--oom-snapshot",
        "--run-name",
        "full",
        "train.py",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "traceml", *words],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    summary = json.loads((tmp_path / "logs/full/final_summary.json").read_bytes())
    failure = summary["failure"]
    assert (failure["step"], failure["phase"], failure["module"]) == (15, "backward", "2")
    evidence = failure["evidence"]
    assert evidence["checkpoint_block"] == "*"
    assert "*.before" in evidence["layers"] and evidence["saved_bytes"] > 4 * 64 * 512 * 4
    (snapshot,) = (tmp_path / "logs/full").glob("memory-snapshot-*.pickle")
    assert evidence["snapshot"] == snapshot.name
    assert pickle.loads(snapshot.read_bytes())["segments"]


def test_the_most_that_was_allocated_inside_each_layer_is_told(deep):
    model = model_with(nn.Identity())
    train(model, 20)
    found = deep()
    reached = dict(zip(found.names, found.held_bytes["reached"].tolist(), strict=True))
    parameters = sum(each.numel() * each.element_size() for each in model.parameters())
    assert parameters < reached["0"] <= reached[""] <= torch.cuda.max_memory_allocated()
