"""What interrupts a hook belongs to the script; what our own code raises does not."""

import contextlib
import ctypes
import dis
import functools
import itertools
import signal
import sys
from threading import get_ident
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import traceml
from traceml.trace import interruptions, loaders
from traceml.trace.recorder import RecorderInPython


class TooLate(Exception):
    """What a script's own timeout raises."""


def raise_too_late(*_):
    raise TooLate("the user's")


def raise_timeout(signum, frame):
    raise TimeoutError("an OSError: our code expects some of those")


def restore_and_raise(signum, frame):
    signal.signal(signum, signal.SIG_IGN)
    raise TooLate("the user's")


class Alarm:
    def __call__(self, signum, frame):
        raise TooLate("the user's")

    def ring(self, signum, frame):
        self._ring()

    def _ring(self):
        raise TooLate("the user's")


HANDLERS = {
    "a function": raise_too_late,
    "a function that takes anything": lambda *_: raise_too_late(),
    "a timeout that is an OSError": raise_timeout,
    "a partial function": functools.partial(raise_too_late, "more"),
    "a method": Alarm().ring,
    "an object": Alarm(),
    "one that takes itself out": restore_and_raise,
}


@pytest.fixture
def on_alarm():
    """Sets the handler of SIGALRM, for one test."""
    before = signal.getsignal(signal.SIGALRM)
    yield functools.partial(signal.signal, signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


class Batch(NamedTuple):
    """No plain list: its samples are counted in Python, also where the hooks are in C."""

    inputs: torch.Tensor


def make_batch(samples):
    return Batch(torch.stack([sample for (sample,) in samples]))


def make_loader(batches=8):
    data = TensorDataset(torch.ones(4 * batches, 4))
    return DataLoader(data, batch_size=4, collate_fn=make_batch)


class Job:
    """A loop that goes through every hook there is without a GPU."""

    def __init__(self, is_explicit=False):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self._boundary = traceml.trace_step if is_explicit else contextlib.nullcontext

    def train(self, batches=8):
        for (inputs,) in make_loader(batches):
            with self._boundary(self.model):
                with traceml.trace_time("forward and loss"):
                    loss = self.model(inputs).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
def test_what_a_signals_handler_raises_inside_a_hook_reaches_the_script(
    traced, on_alarm, monkeypatch, handler
):
    job = Job()
    job.train()
    on_alarm(handler)
    monkeypatch.setattr(loaders, "contents_of", lambda _: signal.raise_signal(signal.SIGALRM))
    with pytest.raises((TooLate, TimeoutError)):
        job.train()
    monkeypatch.undo()
    job.train()
    assert len(traced.complete()) == 16  # and none was counted as a failure of ours


class Hostile:
    """Fails whatever it is asked for, as no handler of a signal does."""

    def __str__(self):
        raise TooLate("its own")

    __len__ = __bool__ = __float__ = __iter__ = __hash__ = __str__


@pytest.mark.parametrize("error", [TooLate("its own"), TooLate(), OSError(5, "its own")])
def test_what_user_code_raises_that_only_we_call_is_counted_and_goes_no_further(
    traced, on_alarm, monkeypatch, error
):
    def fail(batch):
        raise error

    on_alarm(raise_too_late)
    monkeypatch.setattr(loaders, "contents_of", fail)
    Job().train()
    assert traced.session._failures == 8


set_exception = ctypes.PyDLL(None).PyThreadState_SetAsyncExc
set_exception.argtypes = [ctypes.c_ulong, ctypes.py_object, ctypes.py_object]


def be_interrupted(batch):
    """What our code calls, of torch's for example, and is running when an exception is set."""
    set_exception(get_ident(), TooLate, batch)
    return sum(each for each in range(100))


@pytest.mark.parametrize(
    "interrupt",
    # A function in C, which ignores the batch: the next frame that runs is one of ours.
    [functools.partial(set_exception, get_ident(), TooLate), be_interrupted],
    ids=["in our code", "in what it calls"],
)
def test_an_exception_that_is_set_from_outside_reaches_the_script(traced, monkeypatch, interrupt):
    job = Job()
    job.train()
    monkeypatch.setattr(loaders, "contents_of", interrupt)
    with pytest.raises(TooLate):
        job.train()
    assert traced.session._failures == 0


def test_failures_whose_text_fails_are_counted(traced, monkeypatch):
    class Unspeakable(Exception):
        def __str__(self):
            raise ZeroDivisionError

    def fail(batch):
        raise Unspeakable

    monkeypatch.setattr(loaders, "contents_of", fail)
    Job().train()
    assert traced.session._failures == 8


class AtOurLine:
    """Raises a signal when Python comes to the n-th line of our code, and counts them."""

    def __init__(self, line=None):
        self._line = line
        self.seen = 0
        self.where = None

    def __enter__(self):
        sys.settrace(self._call)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _call(self, frame, event, argument):
        return self._trace if interruptions.is_ours(frame) else None

    def _trace(self, frame, event, argument):
        # Python looks for signals after calls, never at a line that only says `try`.
        if event == "line" and frame.f_code.co_code[frame.f_lasti] != dis.opmap["NOP"]:
            self.seen += 1
            if self.seen == self._line:
                self.where = (frame.f_code.co_filename, frame.f_lineno)
                signal.raise_signal(signal.SIGALRM)
        return self._trace


@pytest.mark.slow
@pytest.mark.parametrize("is_explicit", [False, True], ids=["found steps", "explicit steps"])
def test_an_interruption_at_any_line_of_ours_arrives_and_leaves_the_next_steps_whole(
    traced, on_alarm, is_explicit
):
    job, session = Job(is_explicit), traced.session
    job.train()
    on_alarm(raise_too_late)
    for line in itertools.count(1, 3):
        arrived = False
        try:
            with AtOurLine(line) as there:
                job.train(2)
        except TooLate:
            arrived = True
        if there.where is None:
            break  # there are no more lines
        assert arrived, there.where
        before = session.count_steps()
        job.train(3)
        assert session.count_steps() >= before + 2, there.where
    assert line > (400 if isinstance(session.recorder, RecorderInPython) else 150)
    job.train()
    assert session._failures == 0
    assert (traced.complete()["forward_ns"][-7:] > 0).all()
