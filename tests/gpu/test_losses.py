"""Losses on a CUDA device: read without waiting for it, with the step that they belong to."""

import sys
import time

import pytest
import torch
from torch import nn

from gpu_programs import TRACEML_RUN, run_all
from traceml.facts.gather import gather
from traceml.store.load import drain_rings, load_run
from traceml.store.record_file import RankFiles
from traceml.trace import current, hooks
from traceml.trace import loss as loss_reader

pytestmark = pytest.mark.gpu


@pytest.fixture
def loss_of(tmp_path):
    """A session in this process; call the fixture's value to end it and get what its loss did."""
    (tmp_path / "run.json").write_text('{"run_name": "gpu", "started_unix_s": 0}')
    hooks.install(current.start(tmp_path, None, None))

    def facts():
        current.end()
        drain_rings(tmp_path, everything=True)
        (files,) = RankFiles.all_in(tmp_path)
        assert files.head().counters["failures"] == 0, files.head().counters["last_failure"]
        return gather(load_run(tmp_path)).stability.loss

    yield facts
    current.end()


class Training:
    """A small model, step by step; the losses that it passed to backward stay on the device."""

    def __init__(self, width=256):
        self.model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 1)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-5)
        self.inputs = torch.randn(64, width, device="cuda")
        self.passed = []

    def step(self, times=1.0):
        loss = self.model(self.inputs).square().mean() * times
        self.passed.append(loss.detach().clone())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def settle(self):
        """Wait, without synchronising, until the device has done everything."""
        mark = torch.cuda.Event()
        mark.record()
        deadline = time.monotonic() + 10
        while not mark.query():
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture
def training():
    return Training()


@pytest.fixture
def without_waiting(training):
    """Once the model is on the device, whatever waits for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("lost", [3, 40, 200, 300])
@pytest.mark.usefixtures("without_waiting")
def test_a_loss_is_lost_between_the_two_steps_that_are_named(loss_of, training, lost):
    for step in range(1, 301):
        training.step(1.0 if step < lost else float("inf"))
    training.settle()
    found = loss_of().not_finite
    assert found.finite_step < lost <= found.first_step


@pytest.mark.usefixtures("without_waiting")
def test_the_step_is_exact_where_the_device_keeps_up(loss_of, training, monkeypatch):
    monkeypatch.setattr(loss_reader, "SENT_EVERY_NS", 0)
    for step in range(1, 101):
        training.step(1.0 if step < 50 else float("nan"))
        training.settle()
    found = loss_of().not_finite
    assert (found.finite_step, found.first_step) == (49, 50)


@pytest.mark.parametrize("steps", [5, 90, 400])
@pytest.mark.usefixtures("without_waiting")
def test_the_first_and_the_last_loss_are_those_of_the_script(loss_of, training, steps):
    for step in range(steps):
        training.step(0.5 + step)
    training.settle()
    found = loss_of()
    torch.cuda.set_sync_debug_mode("default")
    assert (found.first, found.last) == (training.passed[0].item(), training.passed[-1].item())


def test_the_last_loss_of_a_side_stream_is_read_there(loss_of, training):
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for step in range(100):
            training.step(0.5 + step)
        training.settle()
    assert loss_of().last == training.passed[-1].item()


def test_a_loss_that_was_changed_in_place_is_not_taken_for_the_last(loss_of, training):
    for _ in range(80):
        training.step()
    loss = training.model(training.inputs).square().mean()
    loss.backward()
    training.optimizer.step()
    with torch.no_grad():
        loss.fill_(1e9)
    training.settle()
    assert loss_of().last < 1e6


@pytest.mark.usefixtures("without_waiting")
def test_a_scaled_loss_is_told_before_scaling(loss_of, training):
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    for _ in range(20):
        with torch.autocast("cuda", torch.float16):
            loss = training.model(training.inputs).square().mean()
        training.passed.append(loss.detach().clone())
        scaler.scale(loss).backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    training.settle()
    found = loss_of()
    torch.cuda.set_sync_debug_mode("default")
    assert (found.first, found.last) == (training.passed[0].item(), training.passed[-1].item())


def test_a_loss_that_is_one_of_many_numbers_does_not_keep_them_alive(loss_of, training):
    for _ in range(80):
        training.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    many = training.model(training.inputs).expand(64, 1 << 16).contiguous()
    many[0, 0].backward()
    del many
    training.optimizer.zero_grad()
    assert torch.cuda.memory_allocated() - before < 1 << 20
    assert loss_of().last is not None


def test_a_device_that_has_failed_does_not_hold_up_the_end(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from torch import nn\n"
        "model = nn.Embedding(8, 4).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(100):\n"
        "    model(torch.tensor([step // 11], device='cuda')).sum().backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
        "torch.cuda.synchronize()\n"
    )
    commands = [[sys.executable, "train.py"], [*TRACEML_RUN, "train.py"]]
    plain, traced = run_all(commands, tmp_path)
    assert plain.returncode == traced.returncode != 0, traced.stderr
    assert "EXCEPTION" in traced.stdout + traced.stderr
