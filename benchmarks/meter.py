"""A clock around our own code: the benchmark build of the hooks.

A patched function of torch is clocked twice: outside our wrapper, and inside it where the wrapper
calls the original. The difference is ours, wrapper included; whatever happens inside the original
(another hook, say) is not. What the two clocks cost themselves is measured in the same run, in the
same steps with nothing of ours between them, and taken off.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any

from torch.optim import optimizer as torch_optimizer

CALIBRATION_ROUNDS = 10
CALIBRATION_STEPS = 20

Place = tuple[str, Any, str]
"""What a hook is called in the report, and the attribute that it replaces."""


class Clocked:
    """One hook: how often it was called and how long it took."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.outer_ns = 0
        self.inner_ns = 0
        self.clock_ns = 0.0
        """What clocking costs, per call."""

    def own_ns(self) -> float:
        """Our time so far."""
        return self.outer_ns - self.inner_ns - self.calls * self.clock_ns

    def inside(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The original, clocked."""

        def inner(*arguments: Any, **options: Any) -> Any:
            began = perf_counter_ns()
            try:
                return original(*arguments, **options)
            finally:
                self.inner_ns += perf_counter_ns() - began

        return inner

    def outside(self, hooked: Callable[..., Any]) -> Callable[..., Any]:
        """Our wrapper, or a hook that wraps nothing, clocked."""

        def outer(*arguments: Any, **options: Any) -> Any:
            began = perf_counter_ns()
            try:
                return hooked(*arguments, **options)
            finally:
                self.outer_ns += perf_counter_ns() - began
                self.calls += 1

        return outer


class Meter:
    """Clocks all hooks of a session: its methods are called in the order they stand here."""

    def __init__(self, places: list[Place]) -> None:
        self._places = places
        self._insides: dict[str, Any] = {}
        self._ways_back: list[Callable[[], None]] = []
        self.hooks: dict[str, Clocked] = {}

    def before_install(self) -> None:
        """Put the inner clocks where the hooks will find them in the original's place."""
        for name, owner, attribute in self._places:
            hook = self.hooks[name] = Clocked(name)
            inner = self._insides[name] = hook.inside(getattr(owner, attribute))
            self._set(owner, attribute, inner)

    def calibrate(self, step: Callable[[], Any]) -> None:
        """Learn what the clocks cost in a real step: outer and inner, with nothing between."""
        for name, owner, attribute in self._places:
            self._set(owner, attribute, self.hooks[name].outside(getattr(owner, attribute)))
        costs: dict[str, list[float]] = {name: [] for name in self.hooks}
        for _ in range(CALIBRATION_ROUNDS):
            for hook in self.hooks.values():
                hook.calls = hook.outer_ns = hook.inner_ns = 0
            for _ in range(CALIBRATION_STEPS):
                step()
            for name, hook in self.hooks.items():
                if hook.calls:
                    costs[name].append((hook.outer_ns - hook.inner_ns) / hook.calls)
        for name, hook in self.hooks.items():
            hook.clock_ns = median(costs[name]) if costs[name] else 0.0
            hook.calls = hook.outer_ns = 0
        self.remove_outer()

    def after_install(self, alone: list[Place]) -> None:
        """Put the outer clocks around what was installed, and around hooks that wrap nothing."""
        for name, owner, attribute in self._places:
            self.hooks[name].inner_ns = 0  # the first steps had no clock outside
            if getattr(owner, attribute) is not self._insides[name]:
                self._set(owner, attribute, self.hooks[name].outside(getattr(owner, attribute)))
        cost = _clock_cost()
        for name, owner, attribute in alone:
            hook = self._add(name, cost)
            self._set(owner, attribute, hook.outside(getattr(owner, attribute)))
        self._clock_optimizer_hooks(cost)
        self._clock_garbage_callbacks(cost)

    def _add(self, name: str, cost: float) -> Clocked:
        hook = self.hooks[name] = Clocked(name)
        hook.clock_ns = cost
        return hook

    def _clock_optimizer_hooks(self, cost: float) -> None:
        for name, registered in (
            ("optimizer, before", torch_optimizer._global_optimizer_pre_hooks),
            ("optimizer, after", torch_optimizer._global_optimizer_post_hooks),
        ):
            hook = self._add(name, cost)
            for key, function in list(registered.items()):
                registered[key] = hook.outside(function)

    def _clock_garbage_callbacks(self, cost: float) -> None:
        hook = self._add("garbage collection", cost)
        for index, callback in enumerate(gc.callbacks):
            if getattr(callback, "__module__", "").startswith("traceml"):
                gc.callbacks[index] = hook.outside(callback)
                self._ways_back.append(_put_back(callback, gc.callbacks[index]))

    def _set(self, owner: Any, name: str, value: Any) -> None:
        had, before = name in vars(owner), vars(owner).get(name)
        setattr(owner, name, value)
        self._ways_back.append(
            lambda: setattr(owner, name, before) if had else delattr(owner, name)
        )

    def remove_outer(self) -> None:
        """Take the outer clocks away, so that the session finds its hooks as it set them."""
        while len(self._ways_back) > len(self._places):
            self._ways_back.pop()()

    def remove_inner(self) -> None:
        """Take the inner clocks away, once the session has removed its hooks."""
        while self._ways_back:
            self._ways_back.pop()()


def _put_back(callback: Any, clocked: Any) -> Callable[[], None]:
    def put() -> None:
        gc.callbacks[gc.callbacks.index(clocked)] = callback

    return put


def _clock_cost(rounds: int = 20, calls: int = 2000) -> float:
    """What the clock takes, in nanoseconds: a hook that wraps nothing is ours but for this."""
    costs = []
    for _ in range(rounds):
        taken = 0
        for _ in range(calls):
            began = perf_counter_ns()
            taken += perf_counter_ns() - began
        costs.append(taken / calls)
    return median(costs)
