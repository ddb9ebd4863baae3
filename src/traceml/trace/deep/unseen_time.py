"""Measures the time that torch takes around our hooks for each call of a layer, which the hooks
themselves do not see.

A hook of ours reads the clock when it is entered and when it is left. Before and after that, torch
finds and calls the hooks, in Python: a microsecond or two per call, measured on a module that does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from time import perf_counter_ns

from torch import nn
from torch.nn.modules import module as module_hooks

from traceml.trace.compiling import is_traced
from traceml.trace.deep.layer_marks import LayerMarks
from traceml.trace.deep.layer_names import ModelLayer
from traceml.trace.deep.layer_times import ENTER, LEAVE, NOTHING_UNSEEN, UnseenTime
from traceml.trace.session import Session

CALLS = 24
"""How often the empty module is called, with our hooks and without; the median of each counts."""
MEASURE_EVERY = 16
"""It is measured anew after this many timed steps: a processor's clock rate changes during a
run."""


class Empty(nn.Module):
    """A module that does nothing."""

    def forward(self, nothing: None) -> None:
        """Return what it is given."""


class UnseenTimes:
    """Measures the unseen time once in many steps, in the thread that trains."""

    def __init__(self, session: Session) -> None:
        self._session, self._empty = session, Empty()
        self._steps, self._latest = 0, NOTHING_UNSEEN

    def of_step(self) -> UnseenTime:
        """The unseen time of the step that begins; zero where the script has hooks of its own on
        all modules, or has replaced their calls, because measuring would call that."""
        if _has_global_hook() or not _is_call_of_torch() or is_traced():
            return NOTHING_UNSEEN
        if self._steps % MEASURE_EVERY == 0:
            self._latest = self._measure()
        self._steps += 1
        return self._latest

    def _measure(self) -> UnseenTime:
        plain_ns = _median_ns(self._empty)
        watched = LayerMarks(self._session, [ModelLayer("", "", self._empty)], None)
        watched.begin()
        try:
            _median_ns(self._empty)
        finally:
            watched.end()
        marks = watched.marks
        if [mark.kind for mark in marks] != [ENTER, LEAVE] * CALLS:
            return NOTHING_UNSEEN  # calls are not followed now, such as with gradients off
        gaps = [later.began_ns - mark.ns for mark, later in pairwise(marks)]
        inside, outside = median(gaps[::2]), median(gaps[1::2])
        added = max(0.0, inside + outside - plain_ns)
        inside = min(max(0.0, inside - _median_ns(self._empty.forward)), added)
        return UnseenTime(outside=added - inside, inside=inside)


def _has_global_hook() -> bool:
    return bool(
        module_hooks._global_forward_hooks
        or module_hooks._global_forward_pre_hooks
        or module_hooks._global_backward_hooks
        or module_hooks._global_backward_pre_hooks
    )


def _is_call_of_torch() -> bool:
    """Whether modules are called as torch calls them."""
    return nn.Module.__call__ is nn.Module._wrapped_call_impl


def _median_ns(call: Callable[[None], None]) -> float:
    """How long a call takes, the median of several."""
    moments = [perf_counter_ns()]
    for _ in range(CALLS):
        call(None)
        moments.append(perf_counter_ns())
    return median(after - before for before, after in pairwise(moments))
