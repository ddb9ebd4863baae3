"""What the GPU itself did in one step: every kernel and copy, and the layer that launched it.

Torch's own profiler (kineto) records the GPU's activity, and nothing of the CPU's, which would make
kernels seem longer. Which layer launched a kernel is known by when the host did so.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple

import torch

from traceml.trace.deep.layer_times import OUTSIDE, LayerMark, Owner, owners
from traceml.trace.failure import ended_by_device_error
from traceml.trace.profiler_turns import CuptiTeardown, ProfilerTurns, new_profile

MAX_NAME = 120
OTHERS = "(others)"
"""The name of kernels that are not told apart."""
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

    def __init__(self, turns: ProfilerTurns, device: str) -> None:
        """`device` is the one that the layers are on, which need not be the current one."""
        self._turns, self._device = turns, device
        self._is_on = False
        self._teardown = CuptiTeardown()
        self.offset_ns = 0
        """What to add to `perf_counter_ns` for the wall clock."""

    def begin(self) -> bool:
        """Record from here on; not where somebody else does: kineto serves one at a time."""
        if not self._turns.is_free:
            return False
        self._teardown.ask_for()
        try:
            self._turns.start(new_profile(on_cpu=False, on_gpu=True))
            self._is_on = True
        finally:
            if not self._is_on:
                self._teardown.put_back()
        self.offset_ns = _offset_ns()
        return True

    def end(self) -> list[Activity]:
        """Record no more; returns what was recorded, once the GPU has done all of it."""
        if not self._is_on:
            return []
        try:
            if self._device != "cpu" and not ended_by_device_error():
                # What the GPU has not done yet would not be recorded.
                torch.cuda.synchronize(self._device)
        finally:  # also where Ctrl-C ends the wait: a profiler that goes on takes all memory
            self._is_on = False
            result = self._turns.stop()
            self._teardown.put_back()
        return activities(result.events())

    def forget(self) -> None:
        """Put the environment back in a forked child; kineto records the parent alone."""
        self._is_on = False
        self._teardown.put_back()


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
    copies_alone: int
    """Time in copies and fills, and how much of it nothing else ran beside …"""
    communication: int
    communication_alone: int
    """… and the same of kernels of NCCL."""
    launches: dict[tuple[str, int], list[int]]
    """By the name of a kernel and the place of the layer that launched it: how often it ran, and
    how long in all."""


def step_activity(
    found: Sequence[Activity], marks: Sequence[LayerMark], offset_ns: int
) -> StepActivity:
    """Sums up a step's activity; the marks say which layer worked when, on the host."""
    moments = [mark.ns + offset_ns for mark in marks]
    working = owners(marks)
    launches: dict[tuple[str, int], list[int]] = {}
    kernels = 0
    for each in found:
        if _is_copy(each):
            continue
        kernels += 1
        key = short_name(each.name), _launcher(each, moments, working)
        entry = launches.setdefault(key, [0, 0])
        entry[0] += 1
        entry[1] += each.end_ns - each.start_ns
    copies, copies_alone = _times_of(found, _is_copy)
    communication, communication_alone = _times_of(found, _is_communication)
    return StepActivity(
        busy=_union(found),
        kernels=kernels,
        copies=copies,
        copies_alone=copies_alone,
        communication=communication,
        communication_alone=communication_alone,
        launches=launches,
    )


def _is_copy(each: Activity) -> bool:
    return each.name.startswith(_COPY)


def _is_communication(each: Activity) -> bool:
    return _COMMUNICATION.search(each.name) is not None


def _times_of(found: Sequence[Activity], is_one: Callable[[Activity], bool]) -> tuple[int, int]:
    """The time in which at least one of a kind ran, and in which nothing else did meanwhile."""
    others = [each for each in found if not is_one(each)]
    return _union(filter(is_one, found)), _union(found) - _union(others)


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
