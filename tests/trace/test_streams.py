"""Streams of a device that is not the current one, with CUDA replaced at the edge."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from traceml.trace.gpu import on_stream
from traceml.trace.loss import Losses

STREAM = SimpleNamespace(device="cuda:1")


@pytest.fixture
def entered(monkeypatch):
    """The devices and streams that became the current ones, in order; each again as it is left."""
    found = []

    @contextmanager
    def noted(what):
        found.append(what)
        yield
        found.append(what)

    monkeypatch.setattr(torch.cuda, "device", noted)
    monkeypatch.setattr(torch.cuda, "stream", noted)
    return found


def test_the_device_of_a_stream_is_the_current_one_before_and_after_the_stream_is(entered):
    """Torch leaves a stream of another device by a call that takes memory on the current one."""
    with on_stream(STREAM):
        assert entered == ["cuda:1", STREAM]
    assert entered == ["cuda:1", STREAM, STREAM, "cuda:1"]
    with on_stream(None):
        assert len(entered) == 4


def test_the_last_loss_is_sent_for_on_its_own_device(entered, traced, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    sent = []
    losses = Losses(traced.session)
    losses._stream, losses.on_device.hosts[torch.float32] = STREAM, torch.empty(())
    loss = torch.ones(())
    losses._recorder.latest_loss = loss, loss._version, 1
    monkeypatch.setattr(losses, "_send_for", lambda *_: sent.extend(entered))
    assert losses._send_for_latest()
    assert sent == ["cuda:1", STREAM]


class Mark:
    """A CUDA event that keeps on which stream it was recorded; without one, on the current."""

    def record(self, stream=None):
        self.stream = stream


def test_a_logged_value_is_marked_on_the_stream_of_its_own_device(traced, monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory, **other: empty(*sizes, **other))
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    traced.session.messages._fetch_later('"step":1', 1, "loss", torch.tensor(2.0))
    (pending,) = traced.session.messages._pending
    assert pending[-1].stream == "stream of cpu"
    traced.session.messages._pending.clear()
