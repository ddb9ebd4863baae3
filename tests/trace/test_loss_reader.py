"""Losses on a device, with CUDA's events and streams replaced at the edge: no device is needed."""

import gc
import sys
import threading
import time
import weakref
from itertools import pairwise

import pytest
import torch

from traceml.steps import events
from traceml.trace import loss as loss_reader
from traceml.trace.loss_and_memory_sampler import LossAndMemorySampler
from traceml.trace.recorder import RecorderInPython, events_in_c, recorder_of


class Mark:
    """A CUDA event that is reached when the test says so."""

    is_reached = False

    def record(self, stream):
        pass

    def query(self):
        return Mark.is_reached


@pytest.fixture
def losses(traced, monkeypatch):
    """A reader that takes tensors of the host for a device's."""
    monkeypatch.setattr(loss_reader, "_stream_number", lambda device: 5)
    monkeypatch.setattr(loss_reader, "_is_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", Mark)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(Mark, "is_reached", False)
    monkeypatch.delitem(sys.modules, loss_reader.GRAPH_TREES, raising=False)
    reader = loss_reader.Losses(traced.session)
    reader.on_device.hosts[torch.float32] = torch.empty(())
    return reader


def passed_to_backward(value):
    return torch.ones((), requires_grad=True) * value


def in_time():
    return time.monotonic() + 10


def test_the_last_loss_is_read_after_one_that_was_sent_for(losses):
    first = losses._await(passed_to_backward(3.0))
    losses._await(passed_to_backward(2.0))
    last = losses._await(passed_to_backward(1.0))
    Mark.is_reached = True
    assert list(losses.read_last(in_time())) == [(3.0, first), (1.0, last)]
    assert list(losses.read_last(in_time())) == []


def test_a_device_that_does_not_answer_is_not_waited_for(losses):
    losses._await(passed_to_backward(3.0))
    losses._await(passed_to_backward(2.0))
    assert list(losses.read_last(time.monotonic())) == []


def test_no_more_than_one_loss_is_underway_and_none_too_soon(losses, monkeypatch):
    monkeypatch.setattr(loss_reader, "GAP_GROWS_BY_NS", loss_reader.SENT_EVERY_NS)
    Mark.is_reached = True
    losses._await(passed_to_backward(3.0))
    assert losses.arrived() is not None
    losses._await(passed_to_backward(2.0))
    assert losses.arrived() is None


def test_the_first_losses_are_sent_for_densely_and_later_ones_ten_times_a_second(
    losses, monkeypatch
):
    now, sent = 10**9, []
    monkeypatch.setattr(loss_reader, "perf_counter_ns", lambda: now)
    Mark.is_reached = True
    for step in range(1000):  # of 10 ms
        losses._await(passed_to_backward(3.0))
        if losses.arrived() is not None:
            sent.append(step)
        now += 10_000_000
    gaps = [after - before for before, after in pairwise(sent)]
    assert gaps[:3] == [1, 1, 1]
    assert sorted(gaps) == gaps and gaps[-1] == 10
    assert len([step for step in sent if step < 100]) < 25


def test_who_wants_to_know_the_losses_gets_each_that_arrives(losses, traced):
    told = []
    traced.session.on_loss_arrived.append(told.append)
    sampler = LossAndMemorySampler(traced.session)
    sampler.losses = losses
    losses._await(passed_to_backward(3.0))
    sampler.note_arrived()
    assert told == []
    Mark.is_reached = True
    sampler.note_arrived()
    sampler.note_arrived()
    assert told == [3.0]


def test_a_last_loss_that_was_changed_since_is_not_read(losses):
    sent = losses._await(passed_to_backward(3.0))
    loss = passed_to_backward(2.0)
    losses._await(loss)
    with torch.no_grad():
        loss.fill_(1e9)
    Mark.is_reached = True
    assert list(losses.read_last(in_time())) == [(3.0, sent)]


def test_a_loss_that_is_one_of_many_numbers_is_not_kept(losses):
    losses._await(passed_to_backward(3.0))
    losses._await((torch.ones(1000, requires_grad=True) * 2)[0])
    assert losses._recorder.latest_loss is None


def test_a_forked_child_touches_nothing_of_its_parents(losses, traced):
    losses._await(passed_to_backward(3.0))
    host, mark, _ = losses.on_device.coming
    inherited = [weakref.ref(host), weakref.ref(mark)]
    del host, mark
    traced.session.forget_parent()
    assert losses.on_device.coming is None
    gc.collect()
    assert all(each() is not None for each in inherited)  # nobody refers to them, and yet
    Mark.is_reached = True
    assert losses.arrived() is None
    assert list(losses.read_last(in_time())) == []


@pytest.mark.parametrize("in_graphs", [False, True], ids=["eager", "compiled to CUDA graphs"])
def test_what_a_cuda_graph_returned_is_not_kept_alive(losses, monkeypatch, in_graphs):
    """Torch would record the graph anew: a copy is kept in its place."""
    if in_graphs:
        monkeypatch.setitem(sys.modules, loss_reader.GRAPH_TREES, torch)
    losses._await(passed_to_backward(3.0))
    last = passed_to_backward(1.0)
    awaited = losses._await(last)
    kept = losses._recorder.latest_loss[0]
    assert (kept.data_ptr() == last.data_ptr()) is not in_graphs
    Mark.is_reached = True
    assert list(losses.read_last(in_time()))[-1] == (1.0, awaited)


class OnDevice(torch.Tensor):
    """A tensor that is on a CUDA device by its own account."""

    is_cuda = True
    _base = None  # it is no view

    def get_device(self):
        return 0


def on_device(value):
    return torch.ones((), requires_grad=True).as_subclass(OnDevice) * value


class Keeper:
    """A reader that has nothing left to do in a step but to keep its loss."""

    def __init__(self, reader, recorder):
        self.reader, self.recorder = reader, recorder
        reader._recorder = recorder
        recorder.followed, recorder.due_ns = threading.get_ident(), sys.maxsize
        recorder.gpu, recorder.modules = object(), sys.modules
        recorder.modules_seen = len(sys.modules)
        recorder.loss_due_ns = recorder.loss_due_number = sys.maxsize
        recorder.loss_device, recorder.loss_stream = 0, 5

    def keep(self, loss):
        """What `Losses.keep` returns."""
        return self.reader.keep(loss)


class KeeperInC(Keeper):
    def keep(self, loss):
        """The same of a backward pass that begins in C: by its event, or that it went to Python."""
        slow = []
        self.recorder.backwards_open = self.recorder.written = 0
        self.recorder.modules_seen = len(sys.modules)
        self.recorder.shortcut("begin_backward", slow.append)(loss)
        if slow:
            assert self.recorder.written == self.recorder.backwards_open == 0
            return None
        assert self.recorder.written == self.recorder.backwards_open == 1
        _, kind, flags, _, number, _ = events.EVENT.unpack_from(self.recorder.buffer)
        assert (kind, flags) == (events.BEGIN_BACKWARD, events.AWAITED_LOSS if number else 0)
        return number


@pytest.fixture(params=["C", "Python"])
def keeper(request, losses, monkeypatch):
    monkeypatch.setattr(loss_reader, "_Tensor", OnDevice)
    monkeypatch.setattr(loss_reader, "_device_of", OnDevice.get_device)
    if request.param == "Python":
        yield Keeper(losses, RecorderInPython())
        return
    in_c = events_in_c()
    if in_c is None:
        pytest.skip("recorder.c is not built here")
    monkeypatch.setattr(loss_reader, "IN_C", in_c)
    loss_reader.show_torch_to_c()
    yield KeeperInC(losses, recorder_of(in_c.Events)())
    monkeypatch.undo()
    loss_reader.show_torch_to_c()


def test_a_loss_is_kept_with_its_number_and_read_at_the_end(keeper):
    for step in range(3):
        keeper.recorder.ends = step
        assert keeper.keep(on_device(step + 0.5)) == step + 1
        assert keeper.keep(on_device(9.0)) == 0  # a second one of the same step
    assert not keeper.recorder.latest_loss[0].requires_grad
    Mark.is_reached = True
    assert list(keeper.reader.read_last(in_time())) == [(2.5, 3)]


def test_a_loss_that_is_kept_and_changed_since_is_not_read(keeper):
    loss = on_device(2.5)
    assert keeper.keep(loss) == 1
    with torch.no_grad():
        loss.fill_(1e9)
    Mark.is_reached = True
    assert list(keeper.reader.read_last(in_time())) == []


def test_only_the_last_loss_is_kept_alive(keeper):
    kept = []
    for step in range(3):
        keeper.recorder.ends = step
        keeper.keep(on_device(step))
        kept.append(weakref.ref(keeper.recorder.latest_loss[0]))
    assert [each() is None for each in kept] == [True, True, False]


def test_where_more_is_to_be_done_about_a_loss_it_is_not_kept(keeper, monkeypatch):
    loss, recorder = on_device(1.0), keeper.recorder
    assert keeper.keep(None) is None
    assert keeper.keep(passed_to_backward(1.0)) is None  # of another kind
    assert keeper.keep(on_device(torch.ones(2))) is None  # no single number
    assert keeper.keep(loss.detach()) is None  # nobody knows whether it is a view
    with torch.device("cpu"):
        assert keeper.keep(loss) is None  # a mode of the script's would see what is asked
    for name, value in {
        "loss_due_ns": 0,  # one is to be sent for
        "loss_due_number": 0,  # one that was sent for may have come
        "loss_device": -1,  # the first one
        "loss_stream": 7,  # computed on another stream
    }.items():
        before = getattr(recorder, name)
        setattr(recorder, name, value)
        assert keeper.keep(loss) is None, name
        setattr(recorder, name, before)
    monkeypatch.setattr(OnDevice, "_base", loss)
    assert keeper.keep(loss) is None  # a view
    monkeypatch.setattr(OnDevice, "_base", None)
    monkeypatch.setitem(sys.modules, loss_reader.GRAPH_TREES, object())
    assert keeper.keep(loss) is None  # it would have to be copied
    monkeypatch.delitem(sys.modules, loss_reader.GRAPH_TREES)
    assert recorder.latest_loss is None and recorder.loss_number == 0
    assert keeper.keep(loss) == 1


class Marks:
    """A GPU's clock whose first mark is number 9."""

    def mark(self):
        return 9


def test_in_a_step_that_is_timed_a_kept_loss_has_a_mark(keeper):
    recorder = keeper.recorder
    recorder.gpu, recorder.timed = Marks(), True
    if type(keeper) is Keeper:
        recorder.note_backward(keeper.keep(on_device(1.0)))
    else:
        recorder.shortcut("begin_backward", None)(on_device(1.0))
    _, kind, flags, mark, number, _ = events.EVENT.unpack_from(recorder.buffer)
    assert (kind, flags) == (events.BEGIN_BACKWARD, events.AWAITED_LOSS | events.TIMED)
    assert (mark, number) == (9, 1) and recorder.latest_loss is not None
