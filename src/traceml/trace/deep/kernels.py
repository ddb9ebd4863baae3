"""What the GPU itself did in one step: every kernel and copy, and the layer that launched it.

Torch's own profiler (kineto) records the GPU's activity, and nothing of the CPU's, which would make
kernels seem longer. Which layer launched a kernel is known by when the host did so.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple

import torch
from torch.autograd import profiler

from traceml.trace.deep.layer_times import OUTSIDE, LayerMark, Owner, owners
from traceml.trace.session import Session

TEARDOWN = "TEARDOWN_CUPTI"
"""Set to 1, kineto takes CUPTI out of the process when it stops. Left in, every launch of the rest
of the run is slower: measured on an H200, steps of 28 ms took 38 ms from the first recording on."""
MAX_KERNELS = 48
"""Of a step's kernels, those with the longest times are kept by name; the others are summed up."""
MAX_NAME = 120
OTHERS = "(others)"
_TEMPLATE = re.compile(r"<[^<>]*>")
_COMMUNICATION = re.compile(r"nccl|rccl", re.IGNORECASE)
_COPY = ("Memcpy", "Memset")


class Activity(NamedTuple):
    """A kernel or a copy; moments are nanoseconds of the wall clock."""

    name: str
    start_ns: int
    end_ns: int
    launched_ns: int
    """When the host asked for it."""


class KernelRecording:
    """Records the GPU's activity, as long as nobody else wants to."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._restore: Callable[[], None] | None = None
        self._teardown: str | None = None
        self.was_taken = False
        """Whether the script began to record meanwhile, and had to have it."""
        self.offset_ns = 0
        """What to add to `perf_counter_ns` for the wall clock."""

    def begin(self) -> bool:
        """Record from here on; not where somebody else does: kineto serves one at a time."""
        if torch._C._autograd._profiler_enabled() or "NSYS_PROFILING_SESSION_ID" in os.environ:
            return False
        recording = _profile()
        self._teardown = os.environ.get(TEARDOWN)
        if self._teardown is None:
            os.environ[TEARDOWN] = "1"
        recording._prepare_trace()
        recording._start_trace()
        self.offset_ns = _offset_ns()
        prepare: Any = profiler.profile._prepare_trace

        def make_room(other: Any) -> Any:
            """The script begins to profile: ours is thrown away."""
            self.was_taken = True
            self.end()
            return prepare(other)

        self._restore = self._session.replace(profiler.profile, "_prepare_trace", make_room)
        return True

    def end(self) -> list[Activity]:
        """Record no more; returns what was recorded, once the GPU has done all of it."""
        if self._restore is None:
            return []
        self._restore()
        self._restore = None
        if torch.version.cuda or torch.version.hip:
            torch.cuda.synchronize()  # what the GPU has not done yet would not be recorded
        events = torch._C._autograd._disable_profiler().events()
        self._put_back_teardown()
        return [] if self.was_taken else activities(events)

    def forget(self) -> None:
        """Put torch back as it was in a forked child; kineto records the parent alone."""
        if self._restore is not None:
            self._restore()
            self._restore = None
            self._put_back_teardown()

    def _put_back_teardown(self) -> None:
        if self._teardown is None:
            os.environ.pop(TEARDOWN, None)


def _profile() -> Any:
    """Torch's profiler, for the GPU alone."""
    kind: Any = profiler.profile
    if "use_device" in signature(kind.__init__).parameters:
        return kind(use_cpu=False, use_device="cuda", use_kineto=True)
    return kind(use_cpu=False, use_cuda=True, use_kineto=True)  # before torch 2.3


def _offset_ns() -> int:
    """How far the wall clock is ahead of `perf_counter_ns`, by the quickest of a few looks."""
    looks = []
    for _ in range(5):
        before, wall, after = perf_counter_ns(), time_ns(), perf_counter_ns()
        looks.append((after - before, wall - (before + after) // 2))
    return min(looks)[1]


def activities(events: Iterable[Any]) -> list[Activity]:
    """What the GPU did of what the host asked for meanwhile, from the events of kineto.

    Launches are matched by their number; work of earlier steps that the GPU was behind with is
    left out.
    """
    launched: dict[int, int] = {}
    done: list[tuple[Any, int]] = []
    on_cpu = torch._C._autograd.DeviceType.CPU
    for event in events:
        number = event.correlation_id()
        if event.device_type() == on_cpu:
            if number:
                launched[number] = event.start_ns()
        else:
            done.append((event, number))
    found = []
    for event, number in done:
        if number in launched:
            start = event.start_ns()
            end = start + event.duration_ns()
            found.append(Activity(event.name(), start, end, launched[number]))
    return found


class StepActivity(NamedTuple):
    """What the GPU did for one step, in nanoseconds."""

    busy: int
    """Time in which at least one kernel or copy ran."""
    kernels: int
    """How many kernels ran."""
    copies: int
    """Time in copies and fills."""
    communication: int
    """Time in kernels of NCCL, and how much of it nothing else ran beside."""
    communication_alone: int
    by_name: list[tuple[str, int, int, int]]
    """Kernels by name: how often, how long in all, and the layer that launched most of that time;
    the longest first."""
    layer_busy: dict[int, int]
    """Time in kernels, by the layer that launched them."""
    layer_kernels: dict[int, int]


def step_activity(
    found: Sequence[Activity], marks: Sequence[LayerMark], offset_ns: int
) -> StepActivity:
    """Sums up a step's activity; the marks say which layer worked when, on the host."""
    moments = [mark.ns + offset_ns for mark in marks]
    working = owners(marks)
    others = [each for each in found if not _COMMUNICATION.search(each.name)]
    nccl = [each for each in found if _COMMUNICATION.search(each.name)]
    layer_busy: dict[int, int] = {}
    layer_kernels: dict[int, int] = {}
    by_name: dict[str, list[int]] = {}
    by_name_and_layer: dict[str, dict[int, int]] = {}
    kernels = copies = 0
    for each in found:
        took = each.end_ns - each.start_ns
        if each.name.startswith(_COPY):
            copies += took
            continue
        kernels += 1
        name = short_name(each.name)
        entry = by_name.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += took
        place = _launcher(each, moments, working)
        layer_busy[place] = layer_busy.get(place, 0) + took
        layer_kernels[place] = layer_kernels.get(place, 0) + 1
        layers = by_name_and_layer.setdefault(name, {})
        layers[place] = layers.get(place, 0) + took
    everything, alone = _union(found), _union(others)
    return StepActivity(
        busy=everything,
        kernels=kernels,
        copies=copies,
        communication=_union(nccl),
        communication_alone=everything - alone,
        by_name=_longest(by_name, by_name_and_layer),
        layer_busy=layer_busy,
        layer_kernels=layer_kernels,
    )


def _launcher(each: Activity, moments: Sequence[int], working: Sequence[Owner | None]) -> int:
    """The layer that worked on the host when a kernel was launched."""
    owner = bisect_right(moments, each.launched_ns) - 1
    found = working[owner] if owner >= 0 else None
    return OUTSIDE if found is None else found[1]


def _union(found: Iterable[Activity]) -> int:
    """The time in which at least one of them ran."""
    total = until = 0
    for each in sorted(found, key=lambda each: each.start_ns):
        if each.end_ns > until:
            total += each.end_ns - max(each.start_ns, until)
            until = each.end_ns
    return total


def _longest(
    by_name: dict[str, list[int]], layers: dict[str, dict[int, int]]
) -> list[tuple[str, int, int, int]]:
    ordered = sorted(by_name.items(), key=lambda each: -each[1][1])
    found = [
        (name, calls, took, max(layers[name], key=lambda place: layers[name][place]))
        for name, (calls, took) in ordered[:MAX_KERNELS]
    ]
    rest = ordered[MAX_KERNELS:]
    if rest:
        sums = sum(each[1][0] for each in rest), sum(each[1][1] for each in rest)
        found.append((OTHERS, *sums, OUTSIDE))
    return found


def short_name(name: str) -> str:
    """A kernel's name as people know it: without arguments, templates and torch's namespaces."""
    text = name.removeprefix("void ")
    while "<" in text and text != (shorter := _TEMPLATE.sub("", text)):
        text = shorter
    text = text.replace("(anonymous namespace)::", "").partition("(")[0]
    text = text.replace("at::native::", "").strip() or name
    # Which of torch's many elementwise kernels it is stands in its first argument alone.
    inner = re.search(r"(\w+?)(?:Functor|_kernel_cuda|_kernel_impl)\b", name.partition("<")[2])
    if inner is not None and inner[1] not in text:
        text = f"{text} ({inner[1]})"
    return text[:MAX_NAME]
