"""What is known of the memory that ran out: how much there was, and how large a batch would have
fitted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from traceml.facts.facts import Facts
from traceml.facts.layer_memory import FULL, LayerMemory
from traceml.facts.stability import Failure
from traceml.model.failure import MemoryAtFailure
from traceml.model.quantities import memory

CGROUP = 0.98  # of the machine's memory: a total below this is the limit of a cgroup
LARGE = 0.25  # of what the process had: growth of less than this is not why memory ran out
SAME = 0.1  # of the measured batch: sizes that differ by less than this count as equal


@dataclass(frozen=True, slots=True)
class ExhaustedMemory:
    """The memory that ran out, and the batch that did not fit."""

    failure: Failure
    held: MemoryAtFailure
    layers: LayerMemory | None
    """What layers hold, and keep for the backward pass of that batch: nothing in an evaluation;
    `None` without the deep profile."""
    saved_bytes: int | None
    """What they would keep of that batch for a backward pass, also in an evaluation; `None` where
    that is not known."""
    times_measured: float | None
    """How many times as large that batch was as the one whose activations were measured."""

    @property
    def is_evaluation(self) -> bool:
        """Whether the batch was one of an evaluation without gradients."""
        report = self.failure.report
        return report is not None and report.phase == "evaluation"

    @property
    def taken_bytes(self) -> int | None:
        """How much more of the host's memory the process had than in the steps before; `None` where
        that is not known."""
        now, before = self.held.resident_bytes, self.failure.resident_before_bytes
        return None if now is None or before is None else max(0, now - before)

    @property
    def growth(self) -> tuple[int, int, int] | None:
        """How large the process was on the host before and after it grew, and over how many steps;
        `None` where the growth is a small part of its size, or is not known."""
        now, before = self.held.resident_bytes, self.failure.resident_before_bytes
        grown = self.failure.resident_growth
        if now is None or before is None or grown is None or not self.held.is_host:
            return None
        first, steps = grown
        return (first, before, steps) if before - first >= LARGE * now else None

    @property
    def is_another_batch(self) -> bool:
        """Whether the batch had another size than the one that was measured."""
        return self.times_measured is not None and abs(self.times_measured - 1) > SAME

    @property
    def times_all_layers(self) -> float:
        """The requested memory as a multiple of all that layers hold and keep for backward; 0 where
        that was not counted."""
        if self.layers is None or self.saved_bytes is None or not self.held.tried_bytes:
            return 0.0
        return self.held.tried_bytes / max(1, self.layers.lasting_bytes + self.saved_bytes)

    @property
    def is_beyond_any_batch(self) -> bool:
        """Whether the one tensor that was asked for is so large that, if it grows with the batch,
        a batch of 1 would not fit either."""
        tried, total, samples = self.held.tried_bytes, self.held.total_bytes, self.failure.samples
        if tried is None or total is None or samples is None:
            return False
        return tried > samples * total

    def fitting_batch(self) -> int | None:
        """Returns the largest batch that would have fitted, assuming that activations grow with the
        batch; at most half, unless the deep profile measured the activations of layers."""
        samples = self.failure.samples
        if samples is None or samples < 2 or self.is_beyond_any_batch:
            return None
        measured = self._measured_batch(samples)
        if measured is not None:
            return measured
        half, held = samples // 2, self.held
        if held.is_host:
            return self._batch_on_host(samples)
        activations, total = held.activation_bytes, held.total_bytes
        if not activations or total is None or held.allocated_bytes is None:
            return half
        fixed = held.allocated_bytes - activations
        needed = activations + (held.tried_bytes or 0)
        fits = math.floor(samples * (FULL * total - fixed) / needed)
        return max(1, min(half, fits))

    def _measured_batch(self, samples: int) -> int | None:
        """Returns the largest batch that fits by the activations that the deep profile counted;
        `None` where they do not explain the failure."""
        held, layers = self.held, self.layers
        if layers is None or held.total_bytes is None or self.is_evaluation or held.is_host:
            return None
        reached = [*self.failure.allocated_bytes]
        if held.allocated_bytes is not None:
            reached.append(held.allocated_bytes + (held.tried_bytes or 0))
        fits = layers.fitting_batch(samples, held.total_bytes, max(reached, default=None))
        return fits if fits is not None and 1 <= fits < samples else None

    def _batch_on_host(self, samples: int) -> int:
        """Returns the largest batch that fits into the process's own memory limit, by the memory
        that the failed batch had taken; half the batch where the process has no such limit.

        It is at most half the batch, unless measured activations show that more would fit.
        """
        held, taken, half = self.held, self.taken_bytes, samples // 2
        if taken is None or held.limited_by is None:
            return half
        if held.total_bytes is None or held.free_bytes is None:
            return half
        fixed, tried = held.total_bytes - held.free_bytes - taken, held.tried_bytes or 0
        saved = 0 if self.is_evaluation else self.saved_bytes or 0
        needed = max(saved, taken) + tried
        fits = math.floor(samples * (FULL * held.total_bytes - fixed) / max(1, needed))
        return max(1, min(samples - 1 if saved > taken + tried else half, fits))


def exhausted_memory(facts: Facts, failure: Failure) -> ExhaustedMemory:
    """Returns what is known of the memory that ran out."""
    report = failure.report
    held = MemoryAtFailure() if report is None or report.memory is None else report.memory
    if held.is_host and held.total_bytes is None:
        held = replace(held, total_bytes=facts.host.ram_total_bytes)
    layers, is_evaluation = facts.layers.memory, report is not None and report.phase == "evaluation"
    if layers is None:
        return ExhaustedMemory(failure, held, None, None, None)
    times = _times_measured(failure, held, layers)
    of_batch = layers if times is None else layers.with_saved(times)
    saved = None if is_evaluation and times is None else of_batch.saved_bytes
    if is_evaluation:
        of_batch = of_batch.with_saved(0)
    return ExhaustedMemory(failure, held, of_batch, saved, times)


def _times_measured(failure: Failure, held: MemoryAtFailure, layers: LayerMemory) -> float | None:
    """Returns the batch's size as a multiple of the one whose activations were measured: by what
    the model was given, else by samples; `None` where neither is known.

    A step may hold several batches. So by samples, a batch that seems smaller than a step counts as
    equally large.
    """
    if held.input_elements and layers.input_elements:
        return held.input_elements / layers.input_elements
    if held.batch_samples is None or not failure.step_samples:
        return None
    return max(1.0, held.batch_samples / failure.step_samples)


_ALLOWED = {
    "RLIMIT_AS": "{} of address space that RLIMIT_AS (ulimit -v) allows",
    "RLIMIT_DATA": "{} that RLIMIT_DATA (ulimit -d) allows",
}


def limit_words(limited_by: str, limit_bytes: int | None) -> str:
    """Returns a limit on a process's own memory, with its size: `1.00 GiB that … allows`."""
    return _ALLOWED.get(limited_by, "{}").format(memory(limit_bytes))


def total_words(held: MemoryAtFailure) -> str:
    """Returns how much memory there was, and what limits it; empty where that is not known."""
    total = held.total_bytes
    if total is None:
        return ""
    if held.limited_by is not None:
        return f" of the {limit_words(held.limited_by, total)}"
    if held.machine_bytes is not None and total < CGROUP * held.machine_bytes:
        return f" of the {memory(total)} that its cgroup allows"
    return f" of {memory(total)}"
