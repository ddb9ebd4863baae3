"""The GPU's timeline on a device that is made up: every mark is passed as soon as it is made."""

import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import traceml
from traceml.model.record_layout import IDLE_CAUSES, NOT_MEASURED, StepFlag
from traceml.steps import events, gpu_idle_marks
from traceml.trace import gpu
from traceml.trace.recorder import Recorder


class Event:
    """A CUDA event of a device that is never behind."""

    is_behind = False
    stream = 0

    def __init__(self, enable_timing=False):
        self.at = 0.0

    def record(self, stream=None):
        self.at = time.perf_counter()

    def query(self):
        return not Event.is_behind

    def elapsed_time(self, later):
        return (later.at - self.at) * 1e3


@pytest.fixture
def device(monkeypatch):
    statistics = {"all": {"peak": 64, "current": 32}}
    for owner, name, value in (
        (torch._C, "_cuda_getCurrentRawStream", lambda device: Event.stream),
        (torch._C, "_cuda_isCurrentStreamCapturing", lambda: False),
        (
            torch._C,
            "_cuda_memoryStats",
            lambda device: {"allocated_bytes": statistics, "reserved_bytes": statistics},
        ),
        (torch._C, "_CudaEventBase", Event),
        (torch.cuda, "Event", Event),
        (torch.cuda, "current_stream", lambda device=None: None),
        (Event, "is_behind", False),
        (Event, "stream", 0),
        (gpu, "GPU_TIMING_SHARE", 1e9),
    ):
        monkeypatch.setattr(owner, name, value, raising=False)


@pytest.fixture
def job(traced, device):
    """A session whose model turns out to be on the device in its first step."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inputs):
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()

    step(torch.ones(2, 4))
    traced.session.recorder.gpu = gpu.CudaTimeline(traced.session.recorder, 0)
    return model, step


def fetched(model, step):
    for (inputs,) in DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=2):
        step(inputs)


def unfetched(model, step):
    for _ in range(8):
        step(torch.ones(2, 4))


def explicit(model, step):
    for _ in range(8):
        with traceml.trace_step(model):
            step(torch.ones(2, 4))


@pytest.mark.parametrize("loop", [fetched, unfetched, explicit])
def test_every_step_after_the_first_ones_has_its_times_on_the_gpu(traced, job, loop):
    loop(*job)
    loop(*job)
    steps = traced.complete()[4:]
    timed = (steps["flags"] & int(StepFlag.GPU_TIMED)) > 0
    assert timed[:-1].all()  # the last one may be closed by the end of the process
    steps = steps[timed]
    assert len(steps) > 8
    assert (steps["gpu_forward_ns"] > 0).all()
    assert (steps["gpu_backward_ns"] > 0).all()
    assert (steps["gpu_optimizer_ns"] > 0).all()
    phases = steps["gpu_forward_ns"] + steps["gpu_backward_ns"] + steps["gpu_optimizer_ns"]
    assert (phases <= steps["gpu_body_ns"]).all()
    # The process may be held up between taking a moment and making its mark: so most of them.
    assert np.median(steps["gpu_body_ns"] - steps["wall_ns"]) <= 1_000_000
    assert (steps["flags"] & int(StepFlag.QUEUE_WATCHED) > 0).all()
    assert (steps["flags"] & int(StepFlag.QUEUE_DRY) > 0).all()


def test_the_tracer_stops_at_a_mark_that_is_not_passed_and_not_before():
    """Of so many marks that are told of at a time, the one that follows was not passed."""
    assert gpu.MIN_RESOLVED > gpu_idle_marks.MAX_TOLD


def sleeps(session):
    time.sleep(0.03)


def logs(session):
    session.recorder.note_spent(events.SPEND, events.LOGGING, 30_000_000)
    time.sleep(0.03)


def collects(session):
    session.collections.total_ns.append(session.collections.total_ns[0] + 30_000_000)
    time.sleep(0.03)


@pytest.mark.parametrize(
    ("pause", "cause"), [(sleeps, "python"), (logs, "logging"), (collects, "gc")]
)
@pytest.mark.parametrize("is_explicit", [False, True], ids=["found", "explicit"])
def test_what_the_host_does_between_phases_is_what_the_gpu_idles_for(
    traced, job, pause, cause, is_explicit
):
    """A device that is never behind is idle whenever the host launches nothing."""
    model, step = job
    for (inputs,) in DataLoader(TensorDataset(torch.ones(20, 4)), batch_size=2):
        with traceml.trace_step(model) if is_explicit else nullcontext():
            step(inputs)
            pause(traced.session)
    steps = traced.complete()[4:-1]
    assert len(steps) >= 4
    assert (steps[f"gpu_idle_{cause}_ns"] >= 29_000_000).all()
    # A busy machine may stop the host anywhere: one step in the middle says what they do.
    median = {each: np.median(steps[f"gpu_idle_{each}_ns"]) for each in IDLE_CAUSES}
    assert max(IDLE_CAUSES, key=lambda each: median[each]) == cause
    idle = sum(steps[f"gpu_idle_{each}_ns"] for each in IDLE_CAUSES)
    assert (idle <= steps["gpu_body_ns"]).all()


def test_memory_is_noted_in_the_step_that_it_was_read_in(traced, job, monkeypatch):
    monkeypatch.setattr(gpu, "MEMORY_EVERY_NS", 0)
    fetched(*job)
    steps = traced.complete()[2:]
    assert set(steps["allocated_bytes"].tolist()) == {32}


def test_of_short_steps_only_some_are_timed(traced, job, monkeypatch):
    monkeypatch.setattr(gpu, "GPU_TIMING_SHARE", 1e-9)
    for _ in range(40):
        fetched(*job)
    steps = traced.complete()
    timed = (steps["flags"] & int(StepFlag.GPU_TIMED)) > 0
    assert 4 < timed.sum() < len(steps) / 4
    assert (steps[timed]["gpu_body_ns"] > 0).all()
    assert (steps[~timed]["gpu_body_ns"] == NOT_MEASURED).all()


def test_short_steps_of_two_optimizers_are_timed_too(traced, job, monkeypatch):
    monkeypatch.setattr(gpu, "GPU_TIMING_SHARE", 1e-9)
    _, step = job
    others = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(others.parameters(), lr=0.1)
    for _ in range(20):
        for (inputs,) in DataLoader(TensorDataset(torch.ones(16, 4)), batch_size=2):
            step(inputs)
            optimizer.zero_grad()
            others(inputs).mean().backward()
            optimizer.step()
    steps = traced.complete()
    assert len(steps) == 1 + 160
    timed = (steps["flags"] & int(StepFlag.GPU_TIMED)) > 0
    assert 4 < timed.sum() < 80
    assert (steps[timed]["gpu_body_ns"] > 0).all()


def test_steps_wait_for_a_device_that_is_behind_and_are_not_lost(traced, job, monkeypatch):
    monkeypatch.setattr(Event, "is_behind", True)
    fetched(*job)
    monkeypatch.setattr(Event, "is_behind", False)
    steps = traced.complete()
    assert len(steps) == 9
    assert (steps[4:-1]["gpu_body_ns"] > 0).all()


def told(recorder):
    """The marks that were told and the distances between them."""
    content = bytes(recorder.staged[: recorder.written * events.EVENT_BYTES])
    return [
        (kind, mark, argument)
        for _, kind, _, mark, argument, _ in events.EVENT.iter_unpack(content)
        if kind in (events.REACH_MARK, events.LOSE_MARKS)
    ]


def test_a_device_that_is_too_far_behind_is_not_waited_for(device, monkeypatch):
    monkeypatch.setattr(gpu, "MAX_PENDING", 8)
    recorder = Recorder()
    timeline = gpu.CudaTimeline(recorder, 0)
    monkeypatch.setattr(Event, "is_behind", True)
    for _ in range(9):
        timeline.mark_boundary()
    assert told(recorder) == [(events.LOSE_MARKS, 4, 0)]
    monkeypatch.setattr(Event, "is_behind", False)
    timeline.resolve()
    kinds, marks, distances = zip(*told(recorder)[1:], strict=True)
    assert (set(kinds), marks) == ({events.REACH_MARK}, (5, 6, 7, 8, 9))
    assert distances[0] == 0 and all(distance > 0 for distance in distances[1:])


def test_untimed_steps_ask_the_device_for_nothing(traced, job, monkeypatch):
    """What it has not passed when a timed step ends is told when the next timed one does."""
    monkeypatch.setattr(gpu, "GPU_TIMING_SHARE", 1e-9)
    recorder, untimed = traced.session.recorder, []
    timeline, is_behind = recorder.gpu, True

    def query(event):
        if not recorder.timed:
            untimed.append(event)
        return not is_behind

    monkeypatch.setattr(timeline, "_query", query)
    for _ in range(20):
        fetched(*job)
    assert not untimed and timeline.outstanding > 8
    is_behind = False
    steps = traced.complete()
    timed = (steps["flags"] & int(StepFlag.GPU_TIMED)) > 0
    assert (steps[timed]["gpu_body_ns"] > 0).all() and timed.sum() > 4


@pytest.mark.parametrize("behind", range(8))
def test_marks_are_told_up_to_the_first_that_is_not_passed(device, behind):
    recorder, passed = Recorder(), set()
    timeline = gpu.CudaTimeline(recorder, 0)
    timeline._query = lambda event: event in passed
    for _ in range(7):
        timeline.mark()
        if len(passed) < 7 - behind:
            passed.add(timeline.latest)
    timeline.resolve()
    assert [mark for _, mark, _ in told(recorder)] == list(range(1, 8 - behind))
    assert timeline.outstanding == min(behind, 7)


def test_of_two_streams_each_may_be_behind(device, monkeypatch):
    """So what was passed on one says nothing of what was marked on the other before it."""
    recorder, passed = Recorder(), set()
    timeline = gpu.CudaTimeline(recorder, 0)
    timeline._query = lambda event: event in passed
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
    for stream in (0, 7, 0, 0):
        monkeypatch.setattr(Event, "stream", stream)
        timeline.mark()
        if stream == 0:
            passed.add(timeline.latest)
    timeline.resolve()
    assert [mark for _, mark, _ in told(recorder)] == [1]


@pytest.mark.parametrize(("stream", "is_marked"), [(0, True), (7, False)])
def test_a_stream_that_is_captured_is_not_marked_and_the_default_one_never_is_captured(
    device, monkeypatch, stream, is_marked
):
    timeline = gpu.CudaTimeline(Recorder(), 0)
    timeline._is_captured = lambda: stream != 0
    monkeypatch.setattr(Event, "stream", stream)
    assert bool(timeline.mark()) is is_marked
    assert (timeline.queue_is_dry(Event()) is not None) is is_marked
    assert (timeline.record_now() is not None) is is_marked


def test_a_step_of_very_many_micro_batches_keeps_its_host_times_alone(traced, job, monkeypatch):
    monkeypatch.setattr(gpu, "MAX_MARKS_PER_STEP", 6)
    fetched(*job)
    fetched(*job)
    steps = traced.complete()
    assert len(steps) == 17
    assert not (steps["flags"][4:] & int(StepFlag.GPU_TIMED)).any()
