"""Logging is told apart from the phase it happens in, and counted once."""

import logging
import sys
import threading
import time
import types

import numpy as np
import pytest
import torch
from torch import nn

import traceml
from traceml.trace import spending

HANDLING_S = 0.05


class SlowHandler(logging.Handler):
    """Writes as to a slow disk; the records it has handled are there to see."""

    def __init__(self, then=lambda: None):
        super().__init__()
        self.handled = 0
        self._then = then

    def emit(self, record):
        time.sleep(HANDLING_S)
        self.handled += 1
        self._then()


@pytest.fixture
def logger():
    made = logging.Logger("a script's own")
    made.addHandler(SlowHandler())
    return made


def train(steps, forward=lambda: None, after=lambda step: None):
    class Net(nn.Linear):
        def forward(self, inputs):
            forward()
            return super().forward(inputs)

    model = Net(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        with traceml.trace_step(model):
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
            after(step)


def test_a_slow_handler_is_logging_time_and_not_forward_time(traced, logger):
    train(4, forward=lambda: logger.info("inside the model"))
    steps = traced.complete()
    assert (steps["logging_ns"] >= HANDLING_S * 1e9).all()
    assert np.median(steps["forward_ns"]) < HANDLING_S * 1e9
    assert (steps["logging_ns"] < steps["body_ns"]).all()


def test_logging_inside_logging_is_counted_once(traced, logger):
    outer = logging.Logger("one that passes on")
    outer.addHandler(SlowHandler(then=lambda: logger.info("passed on")))
    train(4, after=lambda step: outer.info("both handlers are slow"))
    steps = traced.complete()
    assert (steps["logging_ns"] >= 2 * HANDLING_S * 1e9).all()
    assert (steps["logging_ns"] < steps["body_ns"]).all()  # counted twice, it would not fit


def test_logging_in_another_thread_holds_up_no_step(traced, logger):
    def log_elsewhere(step):
        thread = threading.Thread(target=lambda: logger.info("elsewhere"))
        thread.start()
        thread.join()

    train(3, after=log_elsewhere)
    assert logger.handlers[0].handled == 3
    assert (traced.complete()["logging_ns"] == 0).all()


def test_what_we_log_ourselves_is_not_counted(traced):
    train(3, after=lambda step: traceml.log_metrics({"loss": 1.0}))
    assert (traced.complete()["logging_ns"] == 0).all()


@pytest.mark.parametrize(("module", "kind", "methods"), spending.TRACKERS)
def test_a_tracker_that_is_loaded_while_training_is_seen(
    traced, monkeypatch, module, kind, methods
):
    name = methods[0].replace("*", "scalar")
    tracker = _stand_in(kind, name)
    plain = vars(tracker)[name]

    def log(step):
        if step == 1:
            stand_in = types.SimpleNamespace(**{kind: tracker})
            monkeypatch.setitem(sys.modules, module, stand_in)
        getattr(tracker(), name)("loss", value=step)

    train(4, after=log)
    steps = traced.complete()
    assert (steps["logging_ns"][:2] == 0).all()
    assert (steps["logging_ns"][2:] >= HANDLING_S * 1e9).all()
    assert tracker.logged == [("loss", 0), ("loss", 1), ("loss", 2), ("loss", 3)]
    assert vars(tracker)[name] is plain  # the session has ended


def _stand_in(kind, name):
    """A tracker's class with one method that logs: the libraries themselves are not installed."""

    def method(self, tag, value):
        time.sleep(HANDLING_S)
        self.logged.append((tag, value))

    return type(kind, (), {name: method, "logged": []})


def test_the_handlers_call_is_the_standard_librarys_again_afterwards(traced):
    assert logging.Logger.callHandlers.__wrapped__
    traced.finish()
    assert not hasattr(logging.Logger.callHandlers, "__wrapped__")
