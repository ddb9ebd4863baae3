"""Waiting for the device, with tensors that say they are on one: a real one is in tests/gpu."""

import logging
import time

import numpy as np
import pytest
import torch
from torch import nn

import traceml
from traceml.trace import current, synchronising

WAITING_S = 0.03

dynamo = pytest.importorskip("torch._dynamo")


class OnDevice(torch.Tensor):
    """A tensor that is on a device by its own account, and whose value takes a while."""

    is_cuda = True
    device = torch.device("cuda:0")

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        time.sleep(WAITING_S)
        return super().__torch_function__(function, types, args, kwargs)


@pytest.fixture
def watched(traced, monkeypatch):
    """The session anew, with the hooks that a build with CUDA gets."""
    current.end()
    with monkeypatch.context() as build:
        build.setattr(torch.version, "cuda", "12.8")
        traced.start()
    return traced


def train(read, steps=3):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with traceml.trace_step(model):
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
            read()


def on_device(value=1.0):
    return torch.tensor([value]).as_subclass(OnDevice)


READS = {
    "item": lambda tensor: tensor.item(),
    "cpu": lambda tensor: tensor.cpu(),
    "tolist": lambda tensor: tensor.tolist(),
    "float": float,
    "int": int,
    "bool": bool,
    "to": lambda tensor: tensor.to("cpu"),
    "to a device and a type": lambda tensor: tensor.to(torch.device("cpu"), torch.float64),
    "copy_": lambda tensor: torch.empty(1).copy_(tensor),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_a_value_from_the_device_is_waiting_for_it(watched, read):
    tensor = on_device()
    train(lambda: read(tensor))
    steps = watched.complete()
    assert (steps["sync_ns"] >= WAITING_S * 1e9).all()
    assert (steps["sync_ns"] <= steps["body_ns"]).all()


@pytest.mark.parametrize(
    "read",
    [
        *(lambda read=read: read(torch.ones(1)) for read in READS.values()),
        lambda: on_device().to("cpu", non_blocking=True),
        lambda: on_device().to("cpu", torch.float64, True),
        lambda: torch.empty(1).copy_(on_device(), non_blocking=True),
        lambda: on_device().to(torch.float64),
    ],
    ids=[*READS, "non-blocking", "non-blocking by position", "copy_ non-blocking", "only a type"],
)
def test_what_does_not_wait_is_not_counted(watched, read):
    train(read)
    assert (watched.complete()["sync_ns"] == 0).all()


def test_a_value_that_is_read_to_be_logged_is_waiting_and_not_logging(watched):
    class Reading(logging.Handler):
        def emit(self, record):
            record.args[0].item()

    logger = logging.Logger("reads what it logs")
    logger.addHandler(Reading())
    tensor = on_device()
    train(lambda: logger.info("%s", tensor))
    steps = watched.complete()
    assert (steps["sync_ns"] >= WAITING_S * 1e9).all()
    assert np.median(steps["logging_ns"]) < WAITING_S * 1e9


def test_values_and_errors_are_the_users(watched):
    assert on_device(2.5).item() == torch.tensor(2.5).item()
    assert int(torch.tensor(3)) == 3
    with pytest.raises(RuntimeError, match="Boolean value of Tensor"):
        bool(torch.ones(2))


def test_tensors_have_their_own_methods_again_afterwards(request):
    def methods():
        return {name: vars(torch.Tensor).get(name) for name in (*synchronising.READS, "to")}

    before = methods()
    watched = request.getfixturevalue("watched")
    assert all(method is not before[name] for name, method in methods().items())
    watched.finish()
    assert methods() == before
    assert bool(torch.ones(1))


@pytest.mark.slow
def test_compiled_code_that_reads_values_compiles_as_before(request):
    plain = _compile_and_read()
    request.getfixturevalue("watched")
    assert _compile_and_read() == plain
    assert plain[1]["unique_graphs"] >= 1


def _compile_and_read():
    """The results and dynamo's counts of a function whose graph breaks at each value."""
    dynamo.reset()
    dynamo.utils.counters.clear()

    @torch.compile(backend="eager")
    def positive(x):
        if x.sum() > 0:
            x = x * x.max().item()
        return float(x.mean()) + int(x.min()) + len(x.cpu().tolist())

    results = [positive(torch.full((4,), value)) for value in (1.0, 2.0, -1.0)]
    counters = dynamo.utils.counters
    counted = dict(counters["stats"]), dict(counters["graph_break"])
    counters.clear()
    return results, *counted
