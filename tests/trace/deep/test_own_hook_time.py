"""What our hooks take is no layer's time."""

import time

import numpy as np
import pytest
import torch
from tests.trace.deep.test_bursts import WAIT_S, Parts, WaitsForward, train
from torch import nn
from torch.nn.modules import module as module_hooks

from traceml.trace.deep.layer_marks import LayerMarks
from traceml.trace.deep.layer_times import (
    BEGIN_PHASE,
    END_PHASE,
    ENTER,
    FORWARD,
    LEAVE,
    NOTHING_UNSEEN,
    OUTSIDE,
    LayerMark,
    UnseenTime,
    gpu_durations,
    host_durations,
    own_times,
)
from traceml.trace.deep.unseen_time import UnseenTimes


def marks_of(*moments):
    """A model (0) that calls a layer (1): each mark's kind, place, and when our hook was entered
    and left."""
    return [LayerMark(kind, place, left, None, entered) for kind, place, entered, left in moments]


CALL = marks_of(
    (BEGIN_PHASE, FORWARD, 0, 5),
    (ENTER, 0, 10, 100),
    (ENTER, 1, 130, 200),
    (LEAVE, 1, 260, 300),
    (LEAVE, 0, 320, 400),
    (END_PHASE, FORWARD, 410, 420),
)


def test_what_passes_in_our_hooks_belongs_to_no_layer_and_the_rest_is_the_whole_phase():
    times = own_times(CALL, host_durations(CALL, NOTHING_UNSEEN)).forward
    assert times == {OUTSIDE: 5 + 10, 0: 30 + 20, 1: 60}
    ours = sum(mark.ns - mark.began_ns for mark in CALL[1:-1])
    assert sum(times.values()) == 410 - 5 - ours


def test_what_torch_takes_for_a_hook_is_taken_from_the_caller_and_from_the_layer():
    times = own_times(CALL, host_durations(CALL, UnseenTime(outside=8, inside=6))).forward
    assert times == {OUTSIDE: 1 + 6, 0: (30 - 3 - 4) + (20 - 4 - 3), 1: 60 - 6}


def test_no_time_becomes_negative():
    durations = host_durations(CALL, UnseenTime(outside=1000, inside=1000))
    assert durations == [0, 0, 0, 0, 0]


US = 1_000


class Passed:
    """A CUDA event, and when the GPU passed it."""

    def __init__(self, ns):
        self.ns = ns

    def elapsed_time(self, later):
        return (later.ns - self.ns) * 1e-6


class Queue:
    """A GPU that works off what the host launches, in order, and the host's clock."""

    def __init__(self):
        self.now = self.is_free_at = 0

    def event(self):
        return Passed(max(self.now, self.is_free_at))

    def mark(self, kind, place):
        """A hook of ours of 60 µs; its first event is recorded after 10."""
        began, self.now = self.now, self.now + 10 * US
        first, first_ns = self.event(), self.now
        self.now += 50 * US
        return LayerMark(kind, place, self.now, self.event(), began, first, first_ns)

    def work(self, host_us, kernel_us):
        """The host takes so long until it launches a kernel of that length."""
        self.now += host_us * US
        self.is_free_at = max(self.now, self.is_free_at) + kernel_us * US


def marks_of_layers(count, host_us, kernel_us):
    """A model that calls so many layers one after the other, each with the same work."""
    queue = Queue()
    marks = [queue.mark(BEGIN_PHASE, FORWARD)]
    for place in range(count):
        marks.append(queue.mark(ENTER, place))
        queue.work(host_us, kernel_us)
        marks.append(queue.mark(LEAVE, place))
    return [*marks, queue.mark(END_PHASE, FORWARD)]


def own_us(marks, unseen=NOTHING_UNSEEN):
    """Each layer's own time on the GPU's clock."""
    times = own_times(marks, gpu_durations(marks, unseen)).forward
    return {place: ns / US for place, ns in times.items()}


UNSEEN = UnseenTime(outside=8 * US, inside=6 * US)


def test_a_gpu_that_waits_for_the_host_does_not_wait_for_our_hooks():
    marks = marks_of_layers(4, host_us=30, kernel_us=4)
    assert own_us(marks) == {OUTSIDE: 0, **dict.fromkeys(range(4), 30)}
    assert marks[-1].event.ns - marks[0].event.ns > 4 * (30 + 2 * 60) * US


def test_where_the_gpu_is_behind_a_layer_takes_as_long_as_its_kernels():
    marks = marks_of_layers(4, host_us=30, kernel_us=500)
    assert own_us(marks, UNSEEN) == {OUTSIDE: 0, 0: 30 + 500 - 3, 1: 500, 2: 500, 3: 500}


def test_what_torch_takes_for_a_hook_is_left_out_where_the_gpu_waits_for_it():
    marks = marks_of_layers(2, host_us=30, kernel_us=4)
    assert own_us(marks, UNSEEN) == {OUTSIDE: 0, 0: 30 - 6, 1: 30 - 6}


def test_a_busy_gpu_takes_a_moment_from_one_event_of_a_short_hook_to_the_other():
    """Such a hook records both at once; 2 µs between them are no wait."""
    hooks = [
        LayerMark(kind, 0, at + 3 * US, Passed(late + 2 * US), at, Passed(late), at + US)
        for kind, at, late in ((ENTER, 0, 0), (LEAVE, 50 * US, 900 * US))
    ]
    assert own_us(hooks, UNSEEN) == {0: 898}


class Adds(nn.Module):
    """A container that does nothing but add what its layers return."""

    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, inputs):
        return sum(layer(inputs) for layer in self.layers)


def test_a_container_is_not_charged_for_our_hooks_around_what_it_calls(deep, monkeypatch):
    """They are made to take as long as a slow layer."""
    watch = LayerMarks._watch_all

    def watch_slowly(marks, things, place):
        time.sleep(WAIT_S / 2)
        watch(marks, things, place)

    monkeypatch.setattr(LayerMarks, "_watch_all", watch_slowly)
    train(Parts(adds=Adds(4), slow=WaitsForward()))
    found = deep()
    seconds = dict(zip(found.names, found.times_ns["host_forward"].mean(axis=0) / 1e9, strict=True))
    assert seconds.pop("slow") >= WAIT_S > sum(seconds.values())
    assert np.nanmax(found.outside_ns["host_forward"]) < WAIT_S * 1e9


@pytest.fixture
def unseen(traced):
    train(nn.Linear(4, 4), steps=1)  # from here on it is known which thread trains
    return UnseenTimes(traced.session)


def test_the_unseen_time_is_measured_and_nothing_is_left_in_torch(unseen):
    before = nn.Module.__call__, dict(module_hooks._global_forward_hooks)
    found = unseen.of_step()
    assert found.outside >= 0 and found.inside >= 0 and found != NOTHING_UNSEEN
    assert (nn.Module.__call__, dict(module_hooks._global_forward_hooks)) == before
    assert unseen.of_step() is found  # not in every step


def test_hooks_of_the_script_on_all_modules_are_not_called_for_it(unseen):
    called = []
    handles = [
        module_hooks.register_module_forward_hook(lambda *_: called.append(1)),
        module_hooks.register_module_forward_pre_hook(lambda *_: called.append(1)),
    ]
    assert unseen.of_step() == NOTHING_UNSEEN and not called
    for handle in handles:
        handle.remove()


def test_a_call_of_all_modules_that_the_script_has_replaced_is_not_used_for_it(unseen, monkeypatch):
    called, call = [], nn.Module.__call__
    monkeypatch.setattr(
        nn.Module, "__call__", lambda *given: called.append(1) or call(*given), raising=True
    )
    assert unseen.of_step() == NOTHING_UNSEEN and not called


def test_where_gradients_are_off_nothing_is_known_of_it(unseen):
    with torch.no_grad():
        assert unseen.of_step() == NOTHING_UNSEEN


def test_a_timed_step_is_held_against_those_before_it(deep):
    train(Parts(one=WaitsForward()), steps=12)
    found = deep()
    assert len(found.took_ns) == len(found.usual_ns) == len(found.steps)
    assert (found.took_ns >= WAIT_S * 1e9).all() and (found.usual_ns >= WAIT_S * 1e9).all()
