"""What a script may say for itself; without a run every verb is a cheap no-op."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from traceml.model.errors import UsageError
from traceml.model.tracker import TRACKERS, parse_trackers, require_installed
from traceml.trace.current import current
from traceml.trace.interruptions import drop_our_frames
from traceml.trace.open_trackers import ask_agent
from traceml.trace.session import Session


def is_compiling() -> bool:
    """Whether torch compiles the code that calls us; the hooks put torch's own answer here."""
    return False


P = ParamSpec("P")
R = TypeVar("R")


class trace_step:  # noqa: N801 - a verb, as users write it
    """An explicit step boundary: `with traceml.trace_step(model): ...`."""

    __slots__ = ("_model", "_session")

    def __init__(self, model: Any = None) -> None:
        self._model = model
        self._session: Session | None = None

    def __enter__(self) -> None:
        if is_compiling():
            return
        session = current()
        if session is not None and session.steps is not None:
            self._session = session
            try:
                session.steps.enter(self._model)
            except BaseException:
                session.lose_track()  # this step will not be ended
                raise

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if not is_compiling() and self._session is not None and self._session.steps is not None:
                self._session.steps.exit(kind is not None)
        except BaseException:
            if self._session is not None:
                self._session.lose_track()
            raise


class trace_time:  # noqa: N801 - a verb, as users write it
    """A named region, as a decorator or a context manager.

    `use_gpu` times the region on the GPU's clock as well, without waiting for it.
    """

    __slots__ = ("_name", "_open", "_use_gpu")

    def __init__(self, name: str, use_gpu: bool = False) -> None:
        self._name = name
        self._use_gpu = use_gpu
        self._open: list[tuple[int, Any]] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Time every call of a function."""

        @functools.wraps(function)
        def timed(*arguments: P.args, **options: P.kwargs) -> R:
            if is_compiling():
                return function(*arguments, **options)
            try:
                with trace_time(self._name, self._use_gpu):
                    return function(*arguments, **options)
            except BaseException as error:
                drop_our_frames(error)
                raise

        return timed

    def __enter__(self) -> None:
        if is_compiling():
            return
        session = current()
        if session is not None:
            mark = session.regions.mark() if self._use_gpu else None
            self._open.append((time.perf_counter_ns(), mark))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if is_compiling():
            return
        session = current()
        if self._open and session is not None:
            began, mark = self._open.pop()
            session.regions.add(self._name, time.perf_counter_ns() - began, mark)


def trace_model_instance(model: Any) -> Any:
    """Look at this model layer by layer, in a few steps; returns it unchanged.

    Its calls are timed as forward passes from here on, also where the model is not to be found by
    itself.
    """
    session = current()
    if session is not None and session.steps is not None:
        session.steps.watch(model)
        session.begin_deep_profile()
    return model


def log_params(values: Mapping[str, Any]) -> None:
    """Record the run's parameters; later values of a name replace earlier ones."""
    session = None if is_compiling() else current()
    if session is not None:
        session.messages.params(values)


def log_metrics(
    values: Mapping[str, Any],
    step: int | None = None,
    *,
    higher_is_better: bool | Mapping[str, bool] | None = None,
    segment: object = None,
) -> None:
    """Record metric values at a step (by default the step that is running).

    A value is a number, or a dict of numbers by segment or class: `{"accuracy": {"cat": 0.9, "dog":
    0.8}}`. `segment` says that all of `values` are of one segment. `higher_is_better` says which
    way a metric improves: of all in `values`, or by name. It need be said once; without it,
    comparisons guess it from the name.
    """
    session = None if is_compiling() else current()
    if session is not None:
        if higher_is_better is not None:
            session.messages.directions(values, higher_is_better)
        if segment is None:
            session.messages.metrics(values, step)
        else:
            session.messages.segment(values, step, segment)


def log_samples(samples: Any, step: int | None = None, *, name: str = "samples") -> None:
    """Record the scores of single test examples, so that two runs can be compared example by
    example.

    `samples` is one sample (`{"id": 7, "score": 0.9, "segment": "night"}`), a list of them, or a
    dict of columns (lists, arrays or tensors). `id` says which example it is; `segment`, if there
    is one, to which part of the test set it belongs; every other field is a number or a truth value
    by its own name. Of an example that is logged again the last scores count. `name` tells several
    test sets apart.
    """
    session = None if is_compiling() else current()
    if session is not None:
        session.messages.samples(samples, name, step)


def log_artifact(path: str | Path, name: str | None = None) -> None:
    """Record a file of the run; the agent notes its size and hash, the training goes on."""
    session = None if is_compiling() else current()
    if session is not None:
        session.messages.artifact(path, name)


def log_to(*trackers: str) -> None:
    """Log the run to trackers, as `traceml run --log-to` does: `traceml.log_to("wandb", "mlflow")`.

    Raises UsageError for what is no name of a tracker, and where its package is not installed.
    """
    for each in trackers:
        if not isinstance(each, str):
            raise UsageError(
                f"traceml.log_to got a value of type {type(each).__name__}; expected names as "
                f'texts, one or more of {", ".join(TRACKERS)}: traceml.log_to("wandb", "mlflow")'
            )
    names = parse_trackers(",".join(trackers)) if trackers else ()
    session = None if is_compiling() else current()
    if session is not None and names:
        require_installed(names)
        session.guard(ask_agent, any_thread=True)(session, names)
