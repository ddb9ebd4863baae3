"""What the GPU did in a step, from the events of kineto: here made by hand, as it makes them."""

from typing import NamedTuple

import torch

from traceml.trace.deep.kernels import activities, step_activity
from traceml.trace.deep.layer_times import ENTER, LEAVE, OUTSIDE, LayerMark

CPU, CUDA = (getattr(torch._C._autograd.DeviceType, name) for name in ("CPU", "CUDA"))
GEMM, RELU = "void cutlass::Kernel2<gemm>(Params)", "relu_kernel"
NCCL, TO_GPU, FILL = "ncclDevKernel_AllReduce", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)"


class Event(NamedTuple):
    """An event of kineto: a call of CUDA's on the host, or what the GPU did for it."""

    kind: object
    label: str
    began: int
    took: int
    number: int

    def device_type(self):
        return self.kind

    def name(self):
        return self.label

    def start_ns(self):
        return self.began

    def duration_ns(self):
        return self.took

    def correlation_id(self):
        return self.number


def recorded(*done):
    """What the GPU did, each as its name, its beginning and its end, launched 10 ns before."""
    events = []
    for number, (name, start, end) in enumerate(done, start=1):
        events.append(Event(CPU, "cudaLaunchKernel", start - 10, 5, number))
        events.append(Event(CUDA, name, start, end - start, number))
    return activities(events)


def times(*done):
    seen = step_activity(recorded(*done), [], 0)
    return {
        "busy": seen.busy,
        "copies": (seen.copies, seen.copies_alone),
        "communication": (seen.communication, seen.communication_alone),
    }


def test_copies_and_communication_are_alone_where_nothing_else_runs():
    found = times((GEMM, 100, 200), (TO_GPU, 150, 300), (NCCL, 180, 250), (RELU, 400, 500))
    assert found == {"busy": 300, "copies": (150, 50), "communication": (70, 0)}
    apart = times((GEMM, 100, 200), (FILL, 200, 240), (NCCL, 300, 360))
    assert apart == {"busy": 200, "copies": (40, 40), "communication": (60, 60)}


def test_copies_at_the_same_time_count_once():
    found = times((TO_GPU, 100, 200), (TO_GPU, 150, 250), (FILL, 160, 170), (GEMM, 240, 400))
    assert found == {"busy": 300, "copies": (150, 140), "communication": (0, 0)}


def test_copies_behind_compute_are_never_alone():
    assert times((GEMM, 100, 400), (TO_GPU, 120, 180), (TO_GPU, 200, 260))["copies"] == (120, 0)


def test_kernels_are_of_the_layer_that_worked_as_they_were_launched_and_copies_of_none():
    done = recorded((GEMM, 100, 200), (RELU, 210, 220), (RELU, 500, 540), (TO_GPU, 250, 260))
    moments = ((ENTER, 0, 80), (ENTER, 1, 150), (LEAVE, 1, 300), (LEAVE, 0, 400))
    marks = [LayerMark(kind, place, ns, None, ns) for kind, place, ns in moments]
    seen = step_activity(done, marks, 0)
    assert seen.kernels == 3
    assert seen.launches == {
        ("cutlass::Kernel2", 0): [1, 100],
        ("relu_kernel", 1): [1, 10],
        ("relu_kernel", OUTSIDE): [1, 40],
    }


def test_work_of_earlier_steps_is_left_out():
    late = Event(CUDA, GEMM, 50, 40, 99)
    assert activities([late]) == [] and step_activity([], [], 0).busy == 0
